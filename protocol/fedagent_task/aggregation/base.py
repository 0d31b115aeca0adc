"""What an aggregation strategy is: what it weighs at an edge, and does with the merged mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from .sums import ALL_TRAIN, Arrays, Rules, edge_weight

Tensors = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """An update that is to be weighed: what its device told, and what it was ordered to do.

    Attributes:
        norm: L2 norm of the update's averaged tensors, batch statistics with them.
        base_loss, local_steps: As `TrainCourse` has them; 0 where not told.
        uniform: Updates count alike, not by samples.
        rate: The learner's step size.
        most_steps: More steps of the optimiser than the order allows no device has done.
        discount: What its weight is multiplied by, for its age.
    """

    num_samples: float
    norm: float = 0.0
    base_loss: float = 0.0
    local_steps: float = 0.0
    uniform: bool = False
    rate: float = 1.0
    most_steps: float = 1.0
    discount: float = 1.0

    @property
    def share(self) -> float:
        """What the recipe's weighting gives it."""
        return 1.0 if self.uniform else float(self.num_samples)


@dataclass(frozen=True, slots=True)
class Weighed:
    """An update's place in the sum: ``sum += coefficient * delta``, ``weight`` divides it.

    Of weight 0 it is not used, for the `reason`.
    """

    coefficient: float
    weight: float
    local_steps: float = 0.0
    reason: str = ""


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
    """How edge models x_e become one: ``x + factor * (sum(w_e x_e) / sum(w_e) - x)``.

    Attributes:
        buffers: Weights for buffers, where they differ.
    """

    weights: tuple[float, ...]
    factor: float = 1.0
    buffers: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFacts:
    """What a server step may go by besides models.

    Attributes:
        weight: Sum of the weights of the merged updates.
        clients: Devices known to the run.
        factor: As `Combination` has it.
    """

    weight: float = 0.0
    clients: int = 1
    factor: float = 1.0
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


def combined_by_weight(edges: Sequence[EdgeShare]) -> Combination:
    """Return FedAvg's: by the recipe's weighting (ALGORITHMS section 1)."""
    return Combination(
        tuple(edge_weight(one.weight, uniform=one.uniform, holds=one.holds) for one in edges)
    )
