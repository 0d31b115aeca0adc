"""Whose word the terms of a client are, where several edges name it: its own, signed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_protocol.terms import are_signed

from .heard import Observation

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Row:
    """What one edge says of one client; `terms` are edge, number, price and availability."""

    seen: Observation
    at: int

    @property
    def terms(self) -> tuple[str, int, int, bool]:
        c = self.seen.columns
        number, price = int(c.context_seq[self.at]), int(c.price[self.at])
        return self.seen.edge_id, number, price, bool(c.available[self.at])

    @property
    def claim(self) -> bytes:
        c = self.seen.columns
        return c.claim[self.at].tobytes() if len(c.claim) else b""

    def is_signed(self) -> bool:
        """Return whether the client signed these terms for this edge."""
        edge, seq, price, available = self.terms
        agent = self.seen.ids[int(self.seen.columns.session[self.at])]
        claim = self.claim
        return any(claim) and are_signed(
            claim, edge=edge, agent=agent, seq=seq, price=price, available=available
        )


@dataclass(slots=True)
class SignedTerms:
    """What clients have signed that several edges name.

    Of such a client the rows are gone through from the newest to the first that it signed: those
    before it are not its word. An edge alone with a client is believed unless the client has
    signed something else before: it could keep the client's work from the run anyway.

    Attributes:
        unsigned: Rows of the last observation that were not their client's word, by edge.
    """

    unsigned: Counter[str] = field(default_factory=Counter)
    _last: dict[int, tuple[tuple[str, int, int, bool], bytes]] = field(default_factory=dict)
    """What each client signed last, and its claim: it is not checked again."""

    def refused(
        self, ordered: Sequence[Observation], client: npt.NDArray[np.int32], fresh: BoolArray
    ) -> BoolArray:
        """Return bool[P], which of the fresh rows are not their client's word."""
        self.unsigned.clear()
        refused = np.zeros(len(client), dtype=np.bool_)
        rows = [_Row(seen, at) for seen in ordered for at in range(len(seen.client))]
        for group in self._disputed(rows, client, fresh):
            for row in self._not_its_word(int(client[group[0]]), group, rows):
                refused[row] = True
                self.unsigned[rows[row].seen.edge_id] += 1
        return refused

    def _disputed(
        self, rows: list[_Row], client: npt.NDArray[np.int32], fresh: BoolArray
    ) -> list[list[int]]:
        """Return the fresh rows of each client of several edges or with a signature."""
        by_client: dict[int, list[int]] = {}
        for row in np.flatnonzero(fresh).tolist():
            by_client.setdefault(int(client[row]), []).append(row)
        return [
            sorted(group, key=lambda row: -rows[row].terms[1])
            for one, group in by_client.items()
            if len(group) > 1 or one in self._last
        ]

    def _not_its_word(self, client: int, group: list[int], rows: list[_Row]) -> list[int]:
        doubted: list[int] = []
        for row in group:
            said = rows[row].terms, rows[row].claim
            if self._last.get(client) == said or rows[row].is_signed():
                self._last[client] = said
                return doubted
            doubted.append(row)
        return doubted
