"""What one run of a streaming study left behind, round by round."""

from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies.base import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRound:
    """One round.

    Attributes:
        rho: Iterations per arrival step that were ordered; 0: the learner's number.
        done: Iterations per arrival step that were done, mean over devices.
        arrivals: Samples that came to all devices.
        compute_s: Training, summed over devices.
        peak_s: Training of the device that trained longest.
        transfer_s: Models there and back, summed over devices.
        aggregate_s: At the edge.
        edge: Where, or -1.
        rent: Credits.
        loss: Of the global model after the round; infinite where learning diverged, NaN where
            not tested.
        squares, naive, tested: Sum of squared errors before learning, of a model of zeros,
            and of how many samples.
        limited: Share of the devices that their load limit stopped.
        decide_ms: Real milliseconds of deciding and learning from the round.
    """

    rho: int
    done: float
    arrivals: int
    compute_s: float
    peak_s: float
    transfer_s: float
    aggregate_s: float
    edge: int
    rent: float
    loss: float
    squares: float
    naive: float
    tested: int
    limited: float
    decide_ms: float


@dataclass(frozen=True, slots=True, eq=False)
class StreamHistory:
    """Columns over the rounds that were played.

    Attributes:
        policy: Who decided.
        seed: Of everything.
        first_loss: Of the first model.
        load_limit_s: pi.
        exhausted: The budget paid no more rent; else all rounds were played.
        rows: The rounds.
    """

    policy: str
    seed: int
    first_loss: float
    load_limit_s: float
    exhausted: bool
    rows: tuple[StreamRound, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> FloatArray:
        """Return a column as float64[T]."""
        return np.array([getattr(row, name) for row in self.rows], dtype=np.float64)

    @property
    def edges(self) -> IntArray:
        """int64[T], where each round was aggregated."""
        return np.array([row.edge for row in self.rows], dtype=np.int64)

    @property
    def latency_s(self) -> FloatArray:
        """float64[T], computation, transfers and aggregation of each round."""
        parts = (self.column(name) for name in ("compute_s", "transfer_s", "aggregate_s"))
        return np.asarray(sum(parts), dtype=np.float64)

    @property
    def final_loss(self) -> float:
        """The last loss that was tested."""
        losses = self.column("loss")
        known = losses[~np.isnan(losses)]
        return float(known[-1]) if len(known) else self.first_loss

    @property
    def within_limit(self) -> float:
        """Share of rounds in which no device trained for longer than pi; 1 of none."""
        return float((self.column("peak_s") <= self.load_limit_s).mean()) if self.rows else 1.0

    @property
    def violation_s(self) -> FloatArray:
        """float64[T], cumulative seconds over pi of each round's slowest device."""
        return np.cumsum(np.maximum(self.column("peak_s") - self.load_limit_s, 0.0))

    def seconds_to(self, loss: float) -> float | None:
        """Return the cumulative latency at which a tested loss was first reached."""
        reached = np.flatnonzero(self.column("loss") <= loss)
        return float(self.latency_s[: reached[0] + 1].sum()) if len(reached) else None

    @property
    def error(self) -> float | None:
        """Root mean squared error of samples before they were learnt, or None."""
        return self._error("squares")

    @property
    def naive_error(self) -> float | None:
        """The same of a model of zeros: persistence, where labels are changes."""
        return self._error("naive")

    def _error(self, key: str) -> float | None:
        tested = int(self.column("tested").sum())
        return float(np.sqrt(self.column(key).sum() / tested)) if tested else None
