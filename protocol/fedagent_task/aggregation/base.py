"""What an aggregation strategy is, and which of a round's updates are used: the edge's rule.

A strategy weighs updates at an edge, and may act on the merged mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from .sums import ALL_TRAIN, Arrays, Rules

Tensors = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """An update that is to be weighed: what its device told, and what it was ordered to do."""

    num_samples: float
    norm: float = 0.0  # L2, of its averaged tensors, batch statistics with them
    base_loss: float = 0.0  # as `TrainCourse` has it; 0 where not told
    local_steps: float = 0.0  # the same
    uniform: bool = False  # updates count alike, not by samples
    rate: float = 1.0  # the learner's step size
    most_steps: float = 1.0  # of the optimiser: more than the order allows no device has done
    discount: float = 1.0  # what its weight is multiplied by, for its age

    @property
    def share(self) -> float:
        """What the recipe's weighting gives it."""
        return 1.0 if self.uniform else float(self.num_samples)


@dataclass(frozen=True, slots=True)
class Weighed:
    """An update's place in the sum: ``sum += coefficient * delta``, ``weight`` divides it.

    Of weight 0 it is not used, for the `reason`. Once a round's updates are all known, `clip`
    and `control_clip` are factors on the update and on its control variates, 1 where the norm
    is usual.
    """

    coefficient: float
    weight: float
    local_steps: float = 0.0
    reason: str = ""
    clip: float = 1.0
    control_clip: float = 1.0


@dataclass(slots=True)
class Sums:
    """The scalars of an edge's sum."""

    weight: float = 0.0
    weighted_steps: float = 0.0

    def add(self, weighed: Weighed) -> None:
        """Count one update."""
        self.weight += weighed.weight
        self.weighted_steps += weighed.weight * weighed.local_steps

    @property
    def local_steps(self) -> float:
        """Weighted mean of the updates' steps; 0 without any."""
        return self.weighted_steps / self.weight if self.weight else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeShare:
    """An edge model that is merged: the weight of the updates in it, and their steps, by round."""

    weight: float
    local_steps: float = 0.0
    uniform: bool = False
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Combination:
    """How edge models x_e become one: ``x + factor * (sum(w_e x_e) / sum(w_e) - x)``."""

    weights: tuple[float, ...]
    factor: float = 1.0
    buffers: tuple[float, ...] = ()  # weights for buffers, where they differ


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFacts:
    """What a server step may go by besides models."""

    weight: float = 0.0  # of all merged updates
    clients: int = 1  # devices known to the run
    factor: float = 1.0  # as `Combination` has it
    rules: Rules = ALL_TRAIN


class Strategy(Protocol):
    """What `fedagent.aggregators` name; `averaging.FedAvg` is one to begin from.

    Attributes:
        acts: The coordinator changes the merged mean; else `server` is never called.
        controls: Model files and updates have control variates beside the model's tensors.
        every_round: Edge models must be merged after every round.
        needs: What of `TrainCourse` devices must tell, by name.
    """

    needs: ClassVar[frozenset[str]]
    acts: ClassVar[bool]
    controls: ClassVar[bool]
    every_round: ClassVar[bool]

    def weigh(self, update: Contribution) -> Weighed:
        """Return an update's place in the edge's sum."""

    def scale(self, sums: Sums) -> float:
        """Return the factor on the edge's mean."""

    def most_weight(self, *, max_samples: int, norm_limit: float, rate: float) -> float:
        """Return the largest weight of one update, which an edge may claim."""

    def combine(self, edges: Sequence[EdgeShare]) -> Combination:
        """Return how edge models are merged; one of weight 0 is left out."""

    def server(
        self, base: Arrays, mean: Arrays, state: Arrays, facts: MergeFacts
    ) -> tuple[Tensors, Tensors]:
        """Return the next global model, and the state that the next merge gets.

        `base` is the last global model, `mean` that of the edge models; `state` is empty at first.
        """


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a round ended at one edge; arrays follow the updates."""

    in_time: npt.NDArray[np.bool_]  # bool[n], X: it came before the deadline
    used: npt.NDArray[np.bool_]  # bool[n], it is in the aggregate; none is if there were not enough
    known: npt.NDArray[np.bool_]  # bool[n], it came while the edge waited, and is paid
    wait_s: float  # when the edge stopped waiting for those that had not come


@dataclass(frozen=True, slots=True)
class RoundRule:
    """The limits of a round at one edge (ALGORITHMS section 1, eq. 6); `min_updates` is Z.

    Times are seconds since any instant that limits and updates share. A live edge asks update by
    update (`counts`, `is_over`), a study at once (`settle`); both come to the same.
    """

    deadline_s: float
    max_wait_s: float
    min_updates: int = 1

    @property
    def give_up_s(self) -> float:
        """When waiting ends without enough updates."""
        return max(self.deadline_s, self.max_wait_s)

    def enough(self, ordered: int) -> int:
        """Return Z_eff: how many updates an aggregate of so many ordered clients needs."""
        return max(1, min(self.min_updates, ordered))

    def counts(self, tau_s: float, *, used: int, ordered: int) -> bool:
        """Return whether an update that came at `tau_s` joins a sum of `used` others."""
        missing = used < self.enough(ordered)
        return tau_s <= self.deadline_s or (missing and tau_s <= self.give_up_s)

    def is_over(self, now_s: float, *, used: int, ordered: int, slack_s: float = 0.0) -> bool:
        """Return whether nobody is waited for any more, with `used` updates in the sum.

        `slack_s` is how long what came before a limit may take to be seen.
        """
        if now_s <= self.deadline_s + slack_s:
            return False
        return used >= self.enough(ordered) or now_s > self.give_up_s + slack_s

    def settle(self, tau_s: npt.NDArray[np.float64]) -> Settlement:
        """Return how a round ends whose updates come at float64[n]; infinite for never."""
        in_time = tau_s <= self.deadline_s
        used, wait_s, wanted = in_time, self.deadline_s, self.enough(len(tau_s))
        if int(in_time.sum()) < wanted <= len(tau_s):
            first = np.argsort(tau_s, kind="stable")[:wanted]
            last_s = float(tau_s[first[-1]])
            used = np.zeros(len(tau_s), dtype=np.bool_)
            used[first] = last_s <= self.give_up_s
            wait_s = min(last_s, self.give_up_s)
        return Settlement(in_time, used, tau_s <= wait_s, wait_s)
