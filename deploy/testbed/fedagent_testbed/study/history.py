"""What one run of one policy left behind, round by round."""

from dataclasses import dataclass, field

import numpy as np

from fedagent_coordinator.policies import Feedback
from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_task.spec import MICRO

from .world import round_seconds


@dataclass(slots=True, eq=False)
class History:
    """Columns over T rounds.

    Attributes:
        policy: Who decided.
        seed: Of everything.
        wins: int64[T], updates in time.
        selected: int64[T].
        spent: float64[T], credits paid: for whatever valid came in.
        seconds: float64[T], of virtual time.
        decide_ms: float64[T], of real time: select and learn.
        accuracy: float64[T], NaN where not tested.
        opinion: float64[T], mean over the clients, NaN without opinions.
        counts: int64[N], how often each client was selected.
        notes: What the policy said of its last round.
    """

    policy: str
    seed: int
    wins: IntArray
    selected: IntArray
    spent: FloatArray
    seconds: FloatArray
    decide_ms: FloatArray
    accuracy: FloatArray
    opinion: FloatArray
    counts: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    explored: int = 0

    @classmethod
    def empty(cls, policy: str, seed: int, rounds: int) -> "History":
        """Return columns to be filled."""
        nan = np.full(rounds, np.nan)
        return cls(
            policy=policy,
            seed=seed,
            wins=np.zeros(rounds, dtype=np.int64),
            selected=np.zeros(rounds, dtype=np.int64),
            spent=np.zeros(rounds),
            seconds=np.zeros(rounds),
            decide_ms=np.zeros(rounds),
            accuracy=nan.copy(),
            opinion=nan.copy(),
        )

    def put(self, t: int, feedback: Feedback) -> None:
        """Take in round `t`, from 1."""
        view, row = feedback.view, t - 1
        self.wins[row] = int(feedback.X.sum())
        self.selected[row] = len(feedback.pairs)
        paid = view.pair_price[feedback.pairs][~feedback.void]
        self.spent[row] = int(paid.sum()) / MICRO
        self.seconds[row] = round_seconds(feedback)
        more = len(view.client_price) - len(self.counts)
        if more > 0:
            self.counts = np.concatenate((self.counts, np.zeros(more, dtype=np.int64)))
        self.counts[view.pair_client[feedback.pairs]] += 1

    def utility(self, kind: str) -> FloatArray:
        """Return the utility of every round, float64[T] (eq. 8 or eq. 19)."""
        return np.sqrt(self.wins) if kind == "sqrt-total" else self.wins.astype(np.float64)

    def rates(self) -> FloatArray:
        """Return every client's selection rate, float64[N]."""
        return self.counts / max(1, len(self.wins))

    def first_at(self, target: float) -> int | None:
        """Return the round in which the accuracy first reached a target."""
        reached = np.flatnonzero(self.accuracy >= target)
        return int(reached[0]) + 1 if len(reached) else None


def jain(rates: FloatArray) -> float:
    """Return Jain's fairness index of selection rates, 1/N to 1."""
    square = float((rates**2).sum())
    return float(rates.sum()) ** 2 / (len(rates) * square) if square else 1.0
