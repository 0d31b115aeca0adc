"""Mini-batch gradient descent: passes over the newest samples.

The memory is a ring of the newest `buffer` samples, not a reservoir: streams
drift, and what a device sees now is what its model is for.
"""

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Floats, Labels, Model
from fedagent_task.spec import LearnerSpec

from .base import StepResult, Tensors, difference, thawed


class Minibatch:
    """One iteration is one pass over the memory in batches, shuffled anew.

    Args:
        model: What is learnt.
        spec: Rate, batch size, default number of passes, memory in samples.
        rng: Source of the shuffles.
    """

    def __init__(self, model: Model, spec: LearnerSpec, rng: np.random.Generator) -> None:
        self._model = model
        self._spec = spec
        self._rng = rng
        # Not filled with anything: pages are taken as samples come.
        self._x = np.empty((spec.buffer, model.spec.features), np.float32)
        self._y = np.empty(spec.buffer, np.float64)
        self._filled = 0
        self._next = 0
        self._dropped = 0
        self._base: Tensors = {}
        self._weights: dict[str, npt.NDArray[np.float32]] = {}

    @property
    def default_iterations(self) -> int:
        """The recipe's number of passes."""
        return self._spec.passes

    @property
    def num_samples(self) -> int:
        """Samples in memory."""
        return self._filled

    @property
    def dropped(self) -> int:
        """New samples that came in one gush larger than the memory."""
        return self._dropped

    def begin(self, base: Tensors) -> None:
        """Start from a new global model; the memory stays."""
        self._base, self._weights = base, thawed(base)

    def absorb(self, x: Floats, y: Labels) -> None:
        """Put new samples in the place of the oldest."""
        size = self._spec.buffer
        self._dropped += max(0, len(y) - size)
        x, y = x[-size:], y[-size:]
        places = (self._next + np.arange(len(y))) % size
        self._x[places] = x
        self._y[places] = y
        self._next = (self._next + len(y)) % size
        self._filled = min(size, self._filled + len(y))

    def step(self, iterations: int) -> StepResult:
        """Do this many passes."""
        if self._filled == 0:
            return StepResult(0, 0, 0.0)
        total = 0.0
        for _ in range(iterations):
            order = self._rng.permutation(self._filled)
            for start in range(0, self._filled, self._spec.batch):
                batch = order[start : start + self._spec.batch]
                total += self._descend(self._x[batch], self._y[batch]) * len(batch)
        seen = iterations * self._filled
        return StepResult(iterations, seen, total / max(seen, 1))

    def update(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the float32 difference to the model that `begin` gave."""
        return difference(self._weights, self._base)

    def _descend(self, x: Floats, y: Labels) -> float:
        loss, gradient = self._model.loss_and_gradient(self._weights, x, y)
        rate = np.float32(self._spec.rate)
        for name, slope in gradient.items():
            self._weights[name] -= rate * slope
        return loss
