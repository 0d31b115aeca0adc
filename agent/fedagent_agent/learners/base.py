"""What the trainer asks of a learner."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Inputs, Labels

Tensors = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What some iterations did: samples counted each time, the mean loss before each's own step."""

    iterations: int
    samples: int
    loss: float


class Learner(Protocol):
    """Learns from samples as they arrive; deterministic by its seed.

    One round is `begin`, `absorb`, some `step`s, `update`. Samples stay over rounds
    as far as the learner keeps them.
    """

    @property
    def default_iterations(self) -> int:
        """Iterations of a round whose order leaves the number to the learner."""

    @property
    def num_samples(self) -> int:
        """Different samples that the next update rests on: its weight."""

    @property
    def dropped(self) -> int:
        """New samples that were never learnt from because memory is bounded."""

    def begin(self, base: Tensors) -> None:
        """Start from a new global model; float32 tensors by name."""

    def absorb(self, x: Inputs, y: Labels) -> None:
        """Take new samples: scaled float32 [n, features], or sparse, and labels [n]."""

    def step(self, iterations: int) -> StepResult:
        """Do this many local iterations; short enough to be cancelled between calls."""

    def update(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the float32 difference to the model that `begin` gave."""
