"""Batch gradient descent: steps on the gradient of the whole memory."""

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Inputs, Labels, Model
from fedagent_task.spec import LearnerSpec

from .base import StepResult, Tensors, descend, difference, thawed
from .ring import Ring


class Bgd:
    """One iteration is one step on the mean gradient of the newest samples.

    Args:
        model: What is learnt.
        spec: Rate, default number of steps (`passes`), memory in samples.
        rng: Not needed here: nothing is chosen.
    """

    def __init__(self, model: Model, spec: LearnerSpec, rng: np.random.Generator) -> None:
        self._model = model
        self._spec = spec
        self._rng = rng
        self._memory = Ring(spec.buffer, model.spec.features)
        self._base: Tensors = {}
        self._weights: dict[str, npt.NDArray[np.float32]] = {}

    @property
    def default_iterations(self) -> int:
        """The recipe's number of passes."""
        return self._spec.passes

    @property
    def num_samples(self) -> int:
        """Samples in memory."""
        return len(self._memory)

    @property
    def dropped(self) -> int:
        """New samples that came in one gush larger than the memory."""
        return self._memory.dropped

    def begin(self, base: Tensors) -> None:
        """Start from a new global model; the memory stays."""
        self._base, self._weights = base, thawed(base)

    def absorb(self, x: Inputs, y: Labels) -> None:
        """Put new samples in the place of the oldest."""
        self._memory.absorb(x, y)

    def step(self, iterations: int) -> StepResult:
        """Do this many steps."""
        count = len(self._memory)
        if count == 0:
            return StepResult(0, 0, 0.0)
        x, y = self._memory.rows(slice(count))
        total = 0.0
        for _ in range(iterations):
            total += descend(self._model, self._weights, x, y, self._spec.rate)
        return StepResult(iterations, iterations * count, total / max(iterations, 1))

    def update(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the float32 difference to the model that `begin` gave."""
        return difference(self._weights, self._base)
