"""Batch gradient descent: steps on the gradient of the whole memory."""

from .base import StepResult, descend
from .minibatch import Minibatch


class Bgd(Minibatch):
    """One iteration is one step on the mean gradient of the newest samples.

    Memory, defaults and arguments are those of `Minibatch`; nothing is chosen at random,
    and the batch size means nothing.
    """

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
