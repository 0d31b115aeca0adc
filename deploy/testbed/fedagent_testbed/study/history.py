"""What one run of one policy left behind, round by round."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import FloatArray, IndexArray, IntArray

if TYPE_CHECKING:
    from .coverage import Coverage

Column = npt.NDArray[Any]
"""int64[T] or float64[T]."""
Row = dict[str, float]
Known = TypeVar("Known", bound=np.generic)


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
    coverage: "Coverage | None" = None
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
    def violation_s(self) -> FloatArray:
        """float64[T], cumulative seconds over the load limit of each round's slowest device."""
        return np.cumsum(self["over_s"], dtype=np.float64)

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
