"""What one run of one policy left behind, round by round; and who was ordered over it.

Coverage holds who is ordered against who could deliver. It is counted round by round, so that a
run of a million clients keeps a few columns.
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies import RoundView
from fedagent_coordinator.policies.base import BoolArray, FloatArray, IndexArray, IntArray

Column = npt.NDArray[Any]
"""int64[T] or float64[T]."""
Row = dict[str, float]
Known = TypeVar("Known", bound=np.generic)


_SETTLED = 20
"""Rounds without a chance that a policy has to find out."""
_SURE = 1.0 - 1e-9
_COUNTS = ("idle", "longest", "ill", "known_ill", "wasted", "waiting", "waited")


def _zeros() -> IntArray:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Coverage:
    """What is counted of every client, each int64[N] or bool[N] (ALGORITHMS section 9).

    A client cannot deliver while each of its pairs has the chance 0. It always delivers, and can
    be paid, if in every round a pair that its edge's budget pays has the chance 1.
    """

    rounds: int = 0
    always: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    payable: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    idle: IntArray = field(default_factory=_zeros)  # rounds since the last order
    longest: IntArray = field(default_factory=_zeros)  # most of them so far
    ill: IntArray = field(default_factory=_zeros)  # rounds on end without a chance
    known_ill: IntArray = field(default_factory=_zeros)  # of those, the ones after the first 20
    wasted: IntArray = field(default_factory=_zeros)  # orders in these
    waiting: IntArray = field(default_factory=_zeros)  # 1 + rounds since it has a chance again
    waited: IntArray = field(default_factory=_zeros)  # most of them at its next order; 0: none yet

    def count(self, view: RoundView, ordered: IndexArray) -> None:
        """Count a round with its truth: int32[S], the clients that were ordered."""
        total, first = len(view.client_price), self.rounds == 0
        self._grow(total, first=first)
        self.rounds += 1
        truth, there = view.known_truth(), view.eligible
        paid = there & (view.pair_price <= view.of_edge(view.edge_budget))
        said = there, truth.chance > 0, paid, paid & (truth.chance >= _SURE)
        present, able, payable, sure = _any(view, total, said)
        taken = np.zeros(total, dtype=np.bool_)
        taken[ordered] = True
        self.payable |= payable
        self.always &= sure
        self.idle = np.where(taken, 0, self.idle + 1)
        self.longest = np.maximum(self.longest, self.idle)
        self._wait(able, payable, taken)
        self.ill = np.where(able | ~present, 0, self.ill + 1)
        known = self.ill > _SETTLED
        self.known_ill += known
        self.wasted += known & taken

    def _wait(self, able: BoolArray, payable: BoolArray, taken: BoolArray) -> None:
        """Count the rounds in which one could be ordered again, until it is."""
        self.waiting[able & (self.ill > _SETTLED)] = 1
        waits = self.waiting > 0
        back = waits & taken & able
        self.waited[back] = np.maximum(self.waited, self.waiting)[back]
        self.waiting[back] = 0
        self.waiting += waits & able & payable & ~taken

    @property
    def never_rate(self) -> float | None:
        """Largest share of rounds in which a client is ordered that has had no chance for 20."""
        some = self.known_ill > 0
        if not some.any():
            return None
        return float((self.wasted[some] / self.known_ill[some]).max())

    @property
    def back_rounds(self) -> float | None:
        """Most rounds in which one that has a chance again could be paid and is not ordered.

        Up to the end for who was not ordered again.
        """
        most = np.maximum(self.waited, self.waiting)
        return float(most.max()) - 1 if most.any() else None

    @property
    def left_out(self) -> float | None:
        """Most rounds on end without an order, of those that always deliver and can be paid."""
        return float(self.longest[self.always].max()) if self.always.any() else None

    def _grow(self, total: int, *, first: bool) -> None:
        # Who comes later was not there in every round.
        self.always = longer(self.always, total, fill=first)
        self.payable = longer(self.payable, total, fill=False)
        for name in _COUNTS:
            setattr(self, name, longer(getattr(self, name), total, fill=False))


@dataclass(slots=True, eq=False)
class History:
    """The rounds that were played, and what is known of the whole run.

    A round of selection has `wins` (updates in time), `selected`, `spent` (credits for whatever
    valid came in), `seconds` (virtual), `decide_ms` (real: select and learn), `accuracy` and
    `opinion` (mean over clients; NaN where there is none) and `explored` (by the policy's notes).

    A round of streams has `rho` (iterations per arrival step; 0: the learner's number), `done`
    (mean over devices), `arrivals`, `compute_s` and `transfer_s` (summed over devices),
    `aggregate_s`, `peak_s` (of the device that trained longest), `over_s` (of that over the load
    limit), `edge` (-1: none), `rent` (credits), `loss` (infinite where learning diverged, NaN
    where not tested), `squares`, `naive`, `tested` and `limited` (as in `FleetRound`) and
    `decide_ms`.

    Attributes:
        counts: int64[N], how often each client was selected.
        coverage: Who could deliver and who was ordered; None where no truth is known.
    """

    policy: str
    seed: int
    rows: list[Row] = field(default_factory=list)
    counts: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    coverage: Coverage | None = None
    first_loss: float = np.nan
    exhausted: bool = False  # the budget of streams paid no more rent; else all rounds were played

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Column:
        """Return a column over the rounds."""
        return np.array([row[name] for row in self.rows])

    def count(self, clients: IndexArray, known: int) -> None:
        """Count these clients as selected, of so many that are known by now."""
        self.counts = longer(self.counts, known, fill=False)
        self.counts[clients] += 1

    def utility(self, kind: str) -> FloatArray:
        """Return the utility of every round, float64[T] (eq. 8 or eq. 19)."""
        wins = self["wins"].astype(np.float64)
        return np.sqrt(wins) if kind == "sqrt-total" else wins

    def rates(self) -> FloatArray:
        """Return every client's selection rate, float64[N]."""
        return self.counts / max(1, len(self))

    @property
    def min_rate(self) -> float | None:
        """Smallest selection rate of those that could be paid, in some round at least."""
        rates = self.rates()
        payable = np.ones(len(rates), np.bool_) if self.coverage is None else self.coverage.payable
        return float(rates[payable].min()) if payable.any() else None

    @property
    def accuracy(self) -> float | None:
        """The last accuracy that was tested."""
        tested = [row["accuracy"] for row in self.rows if np.isfinite(row["accuracy"])]
        return tested[-1] if tested else None

    def first_at(self, target: float) -> int | None:
        """Return the round in which the accuracy first reached a target."""
        reached = np.flatnonzero(self["accuracy"] >= target)
        return int(reached[0]) + 1 if len(reached) else None

    @property
    def latency_s(self) -> FloatArray:
        """float64[T], computation, transfers and aggregation of each round of streams."""
        return np.asarray(self["compute_s"] + self["transfer_s"] + self["aggregate_s"], float)

    @property
    def final_loss(self) -> float:
        """The last loss that was tested."""
        known = [row["loss"] for row in self.rows if not np.isnan(row["loss"])]
        return known[-1] if known else self.first_loss

    @property
    def mean_loss(self) -> float:
        """The mean of the losses that were tested: of the models while they were in use."""
        known = [row["loss"] for row in self.rows if not np.isnan(row["loss"])]
        return float(np.mean(known)) if known else self.first_loss

    @property
    def within_limit(self) -> float:
        """Share of rounds in which no device trained for longer than its limit; 1 of none."""
        return float((self["over_s"] <= 0).mean()) if self.rows else 1.0

    def seconds_to(self, loss: float) -> float | None:
        """Return the cumulative latency at which a tested loss was first reached."""
        reached = np.flatnonzero(self["loss"] <= loss)
        return float(self.latency_s[: reached[0] + 1].sum()) if len(reached) else None

    def error(self, of: str = "squares") -> float | None:
        """Return the root mean squared error of samples before they were learnt; None without any.

        Of ``naive`` it is that of a model of zeros: persistence, where labels are changes.
        """
        tested = int(self["tested"].sum())
        return float(np.sqrt(self[of].sum() / tested)) if tested else None


def longer(column: npt.NDArray[Known], total: int, *, fill: bool) -> npt.NDArray[Known]:
    """Return a column with so many rows at least; new ones are 1 or 0."""
    more = total - len(column)
    return column if more <= 0 else np.pad(column, (0, more), constant_values=fill)


def jain(rates: FloatArray) -> float:
    """Return Jain's fairness index of selection rates, 1/N to 1."""
    square = float((rates**2).sum())
    return float(rates.sum()) ** 2 / (len(rates) * square) if square else 1.0


def _any(view: RoundView, total: int, said: tuple[BoolArray, ...]) -> list[BoolArray]:
    """Return bool[N] for each bool[P]: whether it holds for a pair of the client."""
    bits, found = np.zeros(len(view.pair_client), dtype=np.uint8), np.zeros(total, dtype=np.uint8)
    for k, pairs in enumerate(said):
        bits |= pairs.view(np.uint8) << k
    np.bitwise_or.at(found, view.pair_client, bits)
    return [(found >> k & 1).view(np.bool_) for k in range(len(said))]
