"""Stochastic gradient descent on a stream: each new sample is used once."""

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Inputs, Labels, Model
from fedagent_task.samples import Csr, joined
from fedagent_task.spec import LearnerSpec

from .base import StepResult, Tensors, descend, difference, thawed


class Sgd:
    """One iteration is one step on the next `batch` waiting samples, oldest first.

    What a round leaves waits for the next one, at most `buffer` samples; beyond
    that the oldest are dropped and counted.

    Args:
        model: What is learnt.
        spec: Rate, samples of one step, most waiting samples.
        rng: Not needed here: the order is the order of arrival.
    """

    def __init__(self, model: Model, spec: LearnerSpec, rng: np.random.Generator) -> None:
        self._model = model
        self._spec = spec
        self._rng = rng
        self._x: Inputs = np.empty((0, model.spec.features), np.float32)
        self._y = np.empty(0)
        self._next = 0
        self._used = 0
        self._dropped = 0
        self._base: Tensors = {}
        self._weights: dict[str, npt.NDArray[np.float32]] = {}

    @property
    def default_iterations(self) -> int:
        """As many as the waiting samples need."""
        return -(-self._waiting // self._spec.batch)

    @property
    def num_samples(self) -> int:
        """Samples used since `begin`."""
        return self._used

    @property
    def dropped(self) -> int:
        """Samples that were pushed out while they waited."""
        return self._dropped

    def begin(self, base: Tensors) -> None:
        """Start from a new global model; waiting samples stay."""
        self._base, self._weights = base, thawed(base)
        self._used = 0

    def absorb(self, x: Inputs, y: Labels) -> None:
        """Let new samples wait for their step."""
        size = self._spec.buffer
        self._dropped += max(0, self._waiting + len(y) - size)
        self._x = _after(self._x[self._next :], x)[-size:]
        self._y = np.concatenate([self._y[self._next :], y])[-size:]
        self._next = 0

    def step(self, iterations: int) -> StepResult:
        """Do this many steps, or as many as there are samples for."""
        done = seen = 0
        total = 0.0
        while done < iterations and self._waiting:
            batch = slice(self._next, self._next + self._spec.batch)
            x, y = self._x[batch], self._y[batch]
            total += descend(self._model, self._weights, x, y, self._spec.rate) * len(y)
            self._next += len(y)
            seen += len(y)
            done += 1
        self._used += seen
        return StepResult(done, seen, total / max(seen, 1))

    def update(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the float32 difference to the model that `begin` gave."""
        return difference(self._weights, self._base)

    @property
    def _waiting(self) -> int:
        return len(self._y) - self._next


def _after(old: Inputs, new: Inputs) -> Inputs:
    """Return old samples and then new ones, in arrays of their own."""
    if isinstance(new, Csr):
        return joined([old if isinstance(old, Csr) else Csr.from_dense(old), new])
    first = old.dense() if isinstance(old, Csr) else old
    return np.concatenate([first, new]).astype(np.float32, copy=False)
