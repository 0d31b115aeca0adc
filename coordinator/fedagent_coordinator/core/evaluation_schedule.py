"""After which merges the model is evaluated, and what clients said last."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_protocol.messages import OpinionMode

from .effects import BookOpinions, BookVolunteers

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(slots=True)
class EvaluationSchedule:
    """Counts towards the next call, as slots of policies count their rounds.

    Attributes:
        mode: What is called for; None for nothing, ever.
        every: Merges from one call to the next; rounds in mode ``peers``.
        count: Counted since the last call.
    """

    mode: OpinionMode | None
    every: int = 1
    count: int = 0

    def is_due(self, *, merges: bool, played: bool, last: bool) -> bool:
        """Take in a settled round; return whether its model is to be evaluated.

        A slot begins with the first round in which anybody played. Volunteers are called
        for again after a round in which none could play, and not after the last one.

        Args:
            merges: A merge follows the round.
            played: Somebody was ordered.
            last: No round follows.
        """
        if self.mode is None:
            return False
        peers = self.mode is OpinionMode.PEERS
        if (peers or merges) and (played or self.count):
            self.count += 1
        due = merges and (self.count >= self.every or (peers and not played))
        if due:
            self.count = 0
        return due and not (peers and last)


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """Where the calls of a run stand when the engine starts.

    Attributes:
        evaluated: Models evaluated so far.
        count: See `EvaluationSchedule`.
        owed: Round of the model to be evaluated before another round is decided, or None.
        opinions: Last opinion of each client that had one.
        volunteers: Clients of the last call; None before it.
        trained: Agents whose updates are in the model that is owed a call.
    """

    evaluated: int = 0
    count: int = 0
    pending_round: int | None = None
    opinions: dict[int, float] = field(default_factory=dict)
    volunteers: frozenset[int] | None = None
    trained: frozenset[str] = frozenset()


NO_CALLS = Calls()


class LastOpinions:
    """What clients said last, as a view shows it.

    Args:
        calls: What they said to former processes.
    """

    def __init__(self, calls: Calls) -> None:
        self.evaluated = calls.evaluated
        self._last: FloatArray = np.zeros(0)
        self._volunteers = calls.volunteers
        clients = np.array(list(calls.opinions), dtype=np.int64)
        self._put(clients, np.array(list(calls.opinions.values()), dtype=np.float64))

    def take(self, found: BookOpinions | BookVolunteers) -> None:
        """Take in what a call came to."""
        self.evaluated += 1
        if isinstance(found, BookOpinions):
            self._put(found.client, found.score)
        else:
            self._volunteers = frozenset(found.client.tolist())

    def opinions(self, clients: int) -> FloatArray:
        """Return float64[clients], the last opinion of each, NaN where none."""
        shown = np.full(clients, np.nan)
        known = self._last[:clients]
        shown[: len(known)] = known
        return shown

    def volunteers(self, clients: int) -> BoolArray:
        """Return bool[clients], who volunteered last; nobody before the first call."""
        shown = np.zeros(clients, dtype=np.bool_)
        shown[[client for client in self._volunteers or () if client < clients]] = True
        return shown

    def _put(self, client: npt.NDArray[np.int64], score: FloatArray) -> None:
        top = int(client.max()) + 1 if len(client) else 0
        if top > len(self._last):
            grown = np.full(top, np.nan)
            grown[: len(self._last)] = self._last
            self._last = grown
        self._last[client] = score
