"""No learning at all: for benches of the wire.

Every update is one small random number in every place, so that each update and
each model after it has another digest and is really sent.
"""

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Inputs, Labels, Model
from fedagent_task.spec import LearnerSpec

from .base import StepResult, Tensors

_LARGEST = 1e-3


class NoTraining:
    """The learner ``none``; an iteration does nothing.

    Args:
        model: Whose manifest the updates have.
        spec: Nothing of it is used.
        rng: Source of the number in the updates.
    """

    def __init__(self, model: Model, spec: LearnerSpec, rng: np.random.Generator) -> None:
        self._manifest = model.manifest()
        self._spec = spec
        self._rng = rng
        self._arrived = 0

    @property
    def default_iterations(self) -> int:
        """One."""
        return 1

    @property
    def num_samples(self) -> int:
        """Samples that have arrived; 1 before the first, so that a round never lacks data."""
        return max(1, self._arrived)

    @property
    def dropped(self) -> int:
        """None: nothing is kept."""
        return 0

    def begin(self, base: Tensors) -> None:
        """Ignore the model."""

    def absorb(self, x: Inputs, y: Labels) -> None:
        """Count the samples and forget them."""
        del x
        self._arrived += len(y)

    def step(self, iterations: int) -> StepResult:
        """Do nothing."""
        return StepResult(iterations, 0, 0.0)

    def update(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return tensors full of one small random number."""
        number = self._rng.uniform(-_LARGEST, _LARGEST)
        return {spec.name: np.full(spec.shape, number, np.float32) for spec in self._manifest.specs}
