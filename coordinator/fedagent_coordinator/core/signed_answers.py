"""Whose word an opinion is, and that a client volunteers: the client's own, signed.

An edge hands on the claim that a client made for the site, the run, the round, the task and the
model that it was asked of. Asked only in a site with certificates: elsewhere anybody may speak.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_protocol.opinions import Asked
from fedagent_protocol.signatures import is_claim

BoolArray = npt.NDArray[np.bool_]
Said = Callable[[Asked, str, int], bytes]
"""Gives what the claim in a row must be a signature of, for an agent."""


@dataclass(frozen=True, slots=True, eq=False)
class ClaimedRows:
    """Rows of an edge's answer as they came: int64[P] clients, -1 of none, their ids, claims."""

    edge: str
    client: npt.NDArray[np.int64]
    agents: list[str]
    claims: npt.NDArray[np.uint8]  # uint8[P, 96], or uint8[0, 96] where no agent has signed
    said: Said


@dataclass(slots=True)
class SignedAnswers:
    """What is each client's own word.

    What an edge says of a client is checked once in a call: an edge that repeats itself, with one
    claim after the other, costs nothing.
    """

    _asked: Asked | None = None
    _judged: dict[tuple[str, int], tuple[bytes, bool]] = field(default_factory=dict)

    def judge(self, rows: ClaimedRows, asked: Asked) -> tuple[BoolArray, int]:
        """Return bool[P], whose word counts, and how many more than before do not.

        Rows without an index have no word.
        """
        if asked != self._asked:
            self._asked, self._judged = asked, {}
        theirs, refused = np.zeros(len(rows.client), dtype=np.bool_), 0
        for row, client in enumerate(rows.client.tolist()):
            if client < 0:
                continue
            place, said = (rows.edge, client), rows.said(asked, rows.agents[row], row)
            known = self._judged.get(place)
            if known is None or known[0] != said:
                claim = rows.claims[row].tobytes() if len(rows.claims) else b""
                word = is_claim(claim, rows.agents[row], said)
                known = self._judged[place] = said, word
                refused += not word
            theirs[row] = known[1]
        return theirs, refused
