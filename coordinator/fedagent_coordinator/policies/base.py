"""What every selection policy sees, decides and learns from.

Everything is a column, and read-only: who keeps to a budget is checked by the view that its
policy has seen. `P` client-edge pairs are visible this round, `N` clients and `M` edges have ever
been seen in the run: their indices are run-wide, never reused, and only grow. Money is int64
micro-credits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.errors import (
    InvalidViewError,
)

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
IndexArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float64]
State = Mapping[str, npt.NDArray[np.generic]]
T = TypeVar("T", bound=np.generic)

MAX_MICRO = 10**15
"""Largest price or budget: ten thousand of them still fit an int64 sum."""

MAX_COUNT = 2**31 - 1
"""Largest count of clients or rounds: what an int32 index can name."""

OPINIONS = "opinions"
TRUTH = "truth"
VOLUNTEERS = "volunteers"
CLAIM_GAP = "claim_gap"
"""Feature that the coordinator makes for policies that need it: observed time over claimed."""
LOSSES = "losses"
"""What devices tell of their samples' losses; where they do not, a policy must do without."""
NOT_FEATURES = frozenset({OPINIONS, TRUTH, VOLUNTEERS, CLAIM_GAP, LOSSES})
"""Needs that are no features of a pair; ``truth`` exists in testbed and replay only."""


class Purpose(IntEnum):
    """What a round's random numbers are for; each purpose has its own stream."""

    SELECT = 0
    PLACE = 1
    ITERATE = 2
    ENVIRONMENT = 3
    EXPLORE = 4


def round_rng(seed: int, t: int, purpose: int) -> np.random.Generator:
    """Return the generator of round `t` for one purpose."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(t, purpose)))


class Bound(IntEnum):
    """Which constraint kept a pair out; `CHOSEN` for those that are in."""

    CHOSEN = 0
    RANK = 1  # it would still fit: the policy wanted no more, or not this one
    EDGE_BUDGET = 2  # its price is more than what is left at its edge
    CLIENT_TAKEN = 3  # its client trains at another edge
    UNAVAILABLE = 4  # its client is not available or not there


class Ending(IntEnum):
    """How an order ended, for policies that tell the causes apart."""

    IN_TIME = 0
    LATE = 1  # a valid update, after the deadline and before the edge stopped waiting
    MISSED = 2  # nothing until the edge stopped waiting, or too late
    DECLINED = 3
    REJECTED = 4  # the update was not valid
    GONE = 5  # the device left, or never showed that it had its order
    EDGE = 6  # the edge failed or did not report: nothing is known of the device


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Truth:
    """What only a testbed or a replay can know of a round's pairs, for oracles."""

    arrives: BoolArray  # bool[P], X of every pair if it were ordered now (hindsight)
    chance: FloatArray  # float64[P], probability of X given all that is known before the order
    tau_s: FloatArray  # float64[P], expected exchange time given the same

    def __post_init__(self) -> None:
        _protect(self)

    def take(self, pairs: npt.NDArray[np.generic]) -> "Truth":
        """Return the truth of these pairs only (a mask or indices)."""
        return Truth(
            arrives=self.arrives[pairs], chance=self.chance[pairs], tau_s=self.tau_s[pairs]
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundView:
    """One round as a policy sees it.

    Attributes:
        pair_client, pair_edge: int32[P], the two ends of each visible pair.
        opinions: float64[N], each client's last opinion, NaN where none; or None.
        volunteers: bool[N], clients that have volunteered for this round; or None.
        client_starts: int64[N], how often each client is known to have started; or None.
        trust: float64[N] in [0, 1], how far its updates are to be trusted; None if nobody is
            doubted.

    Raises:
        InvalidViewError: Shapes, dtypes or ranges contradict each other.
    """

    round: int  # from 1
    pair_client: IndexArray
    pair_edge: IndexArray
    pair_features: npt.NDArray[np.float32]  # float32[P, F]; NaN where an agent did not report
    feature_names: tuple[str, ...]
    client_price: IntArray  # int64[N], micro-credits for one round
    client_available: BoolArray  # bool[N]
    edge_budget: IntArray  # int64[M], micro-credits for this round
    deadline_s: float = math.inf  # updates that take longer are late; infinite if unknown
    model_bytes: int = 0  # size of the model that goes each way; 0 if unknown
    opinions: FloatArray | None = None
    truth: Truth | None = None  # what oracles know; None in a live run
    volunteers: BoolArray | None = None
    client_starts: IntArray | None = None
    trust: FloatArray | None = None

    def __post_init__(self) -> None:
        _protect(self)
        p, n = len(self.pair_client), len(self.client_price)
        check_columns(self, np.int32, (p,), "pair_client", "pair_edge")
        check_columns(self, np.float32, (p, len(self.feature_names)), "pair_features")
        check_columns(self, np.int64, (n,), "client_price")
        check_columns(self, np.bool_, (n,), "client_available")
        check_columns(self, np.int64, (len(self.edge_budget),), "edge_budget")
        check_columns(self, np.float64, (n,), "opinions", optional=True)
        check_columns(self, np.bool_, (n,), "volunteers", optional=True)
        check_columns(self, np.int64, (n,), "client_starts", optional=True)
        check_columns(self, np.float64, (n,), "trust", optional=True)
        if self.truth is not None:
            check_columns(self.truth, np.bool_, (p,), "arrives")
            check_columns(self.truth, np.float64, (p,), "chance", "tau_s")
        if self.round < 1:
            raise InvalidViewError("round", f"is {self.round}, rounds count from 1")
        if not self.deadline_s > 0:
            raise InvalidViewError("deadline_s", f"is {self.deadline_s}, must be > 0")
        if len(set(self.feature_names)) != len(self.feature_names):
            raise InvalidViewError("feature_names", "names a feature twice")
        _within("pair_client", self.pair_client, n - 1)
        _within("pair_edge", self.pair_edge, len(self.edge_budget) - 1)
        _within("client_price", self.client_price, MAX_MICRO)
        _within("edge_budget", self.edge_budget, MAX_MICRO)

    def of_client(self, column: npt.NDArray[T]) -> npt.NDArray[T]:
        """Return what a column over clients, [N], has for every pair, [P].

        Indices of the machine's own width are followed several times as fast.
        """
        return column[self.pair_client.astype(np.intp)]

    def of_edge(self, column: npt.NDArray[T]) -> npt.NDArray[T]:
        """Return likewise what a column over edges, [M], has for every pair."""
        return column[self.pair_edge.astype(np.intp)]

    @property
    def pair_price(self) -> IntArray:
        """int64[P], what choosing each pair costs."""
        return self.of_client(self.client_price)

    def prices(self, pairs: IntArray) -> IntArray:
        """Return what choosing each of some pairs costs, int64[S]."""
        return self.client_price[self.pair_client[pairs]]

    @property
    def eligible(self) -> BoolArray:
        """bool[P], the pairs whose client is available."""
        return self.of_client(self.client_available)

    def feature(self, name: str) -> FloatArray:
        """Return the named feature of all pairs, float64[P], finite.

        Raises:
            InvalidViewError: There is no such feature, or a value is NaN or infinite; see
                `reported`.
        """
        if name not in self.feature_names:
            raise self.lacks(name)
        column = self.pair_features[:, self.feature_names.index(name)].astype(np.float64)
        bad = ~np.isfinite(column)
        if bad.any():
            where = f"in {int(bad.sum())} pairs, first in {int(np.argmax(bad))}"
            raise InvalidViewError(f"feature {name!r}", f"is not finite {where}")
        return column

    def lacks(self, name: str) -> InvalidViewError:
        """Return the error of a policy that needs what is not there."""
        known = ", ".join(self.feature_names) or "none"
        return InvalidViewError(name, f"is missing; there are: {known}")

    def optional(self, name: str) -> FloatArray:
        """Return the named feature of all pairs, float64[P]; NaN where it is unknown."""
        if name not in self.feature_names:
            return np.full(len(self.pair_client), np.nan)
        column = self.pair_features[:, self.feature_names.index(name)].astype(np.float64)
        return np.where(np.isfinite(column), column, np.nan)

    def known_truth(self) -> Truth:
        """Return what oracles need, or raise `InvalidViewError` where it is unknown."""
        if self.truth is None:
            raise self.lacks(TRUTH)
        return self.truth

    def reported(self, needs: frozenset[str]) -> BoolArray:
        """Return bool[P]: pairs whose every needed feature is finite.

        The round engine drops the others (`take`) and counts them, so that one agent that does
        not report a feature cannot stop the round.

        Raises:
            InvalidViewError: No agent reports a needed feature.
        """
        wanted = sorted(needs - NOT_FEATURES)
        for name in wanted:
            if name not in self.feature_names:
                raise self.lacks(name)
        if not wanted:
            return np.ones(len(self.pair_client), dtype=np.bool_)
        index = [self.feature_names.index(name) for name in wanted]
        return np.asarray(np.isfinite(self.pair_features[:, index]).all(axis=1), dtype=np.bool_)

    def take(self, pairs: npt.NDArray[np.generic]) -> "RoundView":
        """Return the view of these pairs only (a mask or indices); N and M stay."""
        return replace(
            self,
            pair_client=self.pair_client[pairs],
            pair_edge=self.pair_edge[pairs],
            pair_features=self.pair_features[pairs],
            truth=None if self.truth is None else self.truth.take(pairs),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """What a policy decided, and why."""

    pairs: IntArray  # int64[S], chosen pairs of the view, in the policy's order
    scores: FloatArray  # float64[P], what the policy ranked every pair by; NaN if unranked
    bound: npt.NDArray[np.int8]  # int8[P], the `Bound` of every pair
    notes: Mapping[str, float]  # named numbers that explain the choice, e.g. ``explore`` 1.0
    propensities: FloatArray | None = None
    """float64[P], chance of every pair to be ordered, where the run explores (`exploration`)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Feedback:
    """How the ordered pairs of a round ended; rows follow `pairs`.

    Attributes:
        dt_s, lc_s, ut_s: float64[S], download, computation, upload; NaN if unknown.
        opinions: float64[N], opinions of this round's model, NaN where none; or None.
        psi: Cost observed at the edge that aggregated (ALGORITHMS section 7), or None.
        iterations: int64[S], local iterations of a step, 0 if unknown; or None.
        train_s: float64[S], computation of the learning alone, NaN if unknown; or None.
        loss: float64[S], mean over the device's training, NaN if unknown; or None.
        loss_rms: float64[S], root mean square of its samples' losses, likewise.
        ending: int8[S], the `Ending` of every order; None stands for what the flags say.
        evidence: float64[S], how far a valid update is believed; NaN where unknown, or None.

    Raises:
        InvalidViewError: Shapes, dtypes or ranges contradict each other.
    """

    view: RoundView  # what the policy had seen
    pairs: IntArray  # int64[S], pairs of the view that were ordered and played
    X: BoolArray  # bool[S], a valid update arrived before the deadline
    used: BoolArray  # bool[S], it is part of an aggregate
    tau_s: FloatArray  # float64[S], order to whole valid update; the time waited if censored
    dt_s: FloatArray
    lc_s: FloatArray
    ut_s: FloatArray
    censored: BoolArray  # bool[S], no valid update was reported
    unpaid: BoolArray  # bool[S], not paid: no valid update, or a silent edge. X is False
    arrivals: IntArray  # int64[S], samples that came in on the stream during the round
    num_samples: IntArray  # int64[S], samples the update was trained on
    seconds_per_iteration: FloatArray  # float64[S]; NaN if unknown
    opinions: FloatArray | None = None
    psi: float | None = None
    steps: IntArray | None = None  # int64[S], arrival steps of the training, 0 if unknown; or None
    iterations: IntArray | None = None
    train_s: FloatArray | None = None
    loss: FloatArray | None = None
    loss_rms: FloatArray | None = None
    rent_micro: int = 0  # what the edge that aggregated was paid
    ending: npt.NDArray[np.int8] | None = None
    evidence: FloatArray | None = None

    def __post_init__(self) -> None:
        _protect(self)
        s = (len(self.pairs),)
        check_columns(self, np.int64, s, "steps", "iterations", optional=True)
        check_columns(self, np.float64, s, "train_s", "loss", "loss_rms", "evidence", optional=True)
        check_columns(self, np.int8, s, "ending", optional=True)
        check_columns(self, np.bool_, s, "X", "used", "censored", "unpaid")
        check_columns(self, np.int64, s, "pairs", "arrivals", "num_samples")
        times = "tau_s", "dt_s", "lc_s", "ut_s", "seconds_per_iteration"
        check_columns(self, np.float64, s, *times)
        clients = (len(self.view.client_price),)
        check_columns(self, np.float64, clients, "opinions", optional=True)
        _within("pairs", self.pairs, len(self.view.pair_client) - 1)
        if len(set(self.pairs.tolist())) != len(self.pairs):
            raise InvalidViewError("pairs", "names a pair twice")
        if (self.X & self.unpaid).any():
            raise InvalidViewError("unpaid", "is set for an update in time")
        if not np.isfinite(self.tau_s).all():
            raise InvalidViewError("tau_s", "is not finite")
        if self.ending is not None and ((self.ending == Ending.IN_TIME) != self.X).any():
            raise InvalidViewError("ending", "contradicts X")

    @property
    def endings(self) -> npt.NDArray[np.int8]:
        """int8[S], how every order ended, by `ending` or as far as the flags tell."""
        if self.ending is not None:
            return self.ending
        missed = np.where(self.censored, Ending.MISSED, Ending.REJECTED)
        late = np.where(self.unpaid, missed, Ending.LATE)
        return np.where(self.X, Ending.IN_TIME, late).astype(np.int8)


@runtime_checkable
class SelectionPolicy(Protocol):
    """Who trains at which edge. Deterministic: all chance comes from `rng`."""

    @property
    def needs(self) -> frozenset[str]:
        """Features it reads, and of the words above (``opinions``, ``truth``, ...)."""

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round. Changes no state."""

    def learn(self, feedback: Feedback) -> None:
        """Take in how the round ended; running bounds move here."""

    def state(self) -> State:
        """Return a copy of everything learnt."""

    def restore(self, state: State) -> None:
        """Continue from `state` exactly; raise `PolicyError` if it is of other parameters."""


Aspects = Mapping[str, FloatArray]
"""What a policy's scores are made of, by name: float64[P] of pairs; NaN where there is none."""


@runtime_checkable
class Explains(Protocol):
    """A policy that says what its scores are made of; others have their scores alone."""

    def aspects(self, view: RoundView) -> Aspects:
        """Return what it knows of a view's pairs. Changes no state."""


def check_columns(
    record: object,
    dtype: type[np.generic],
    shape: tuple[int, ...],
    *names: str,
    optional: bool = False,
) -> None:
    """Raise `InvalidViewError` for columns of another dtype or shape than they must have."""
    for name in names:
        value = getattr(record, name)
        if optional and value is None:
            continue
        if not isinstance(value, np.ndarray) or value.dtype != dtype:
            raise InvalidViewError(name, f"is not an array of {np.dtype(dtype).name}")
        if value.shape != shape:
            raise InvalidViewError(name, f"has shape {value.shape}, expected {shape}")


def _protect(record: "Truth | RoundView | Feedback") -> None:
    """Make every column of a record read-only, not the array that it was made of."""
    for name in type(record).__slots__:
        column = getattr(record, name)
        if isinstance(column, np.ndarray) and column.flags.writeable:
            column = column.view()
            column.flags.writeable = False
            object.__setattr__(record, name, column)


def _within(name: str, column: npt.NDArray[np.integer], top: int) -> None:
    # As an unsigned number a negative one is larger than any that is allowed.
    if len(column) and column.view(f"u{column.itemsize}").max() >= top + 1:
        raise InvalidViewError(name, f"has a value outside 0..{top}")
