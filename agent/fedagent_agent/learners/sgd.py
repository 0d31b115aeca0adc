"""Stochastic gradient descent on a stream: each new sample is used once."""

from collections import deque

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Floats, Labels, Model
from fedagent_task.spec import LearnerSpec

from .base import StepResult, Tensors, difference, thawed


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
        self._waiting: deque[tuple[npt.NDArray[np.float32], float]] = deque(maxlen=spec.buffer)
        self._used = 0
        self._dropped = 0
        self._base: Tensors = {}
        self._weights: dict[str, npt.NDArray[np.float32]] = {}

    @property
    def default_iterations(self) -> int:
        """As many as the waiting samples need."""
        return -(-len(self._waiting) // self._spec.batch)

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

    def absorb(self, x: Floats, y: Labels) -> None:
        """Let new samples wait for their step."""
        room = self._spec.buffer - len(self._waiting)
        self._dropped += max(0, len(y) - room)
        rows = np.asarray(x[-self._spec.buffer :], np.float32)
        # Copies: a view would keep the whole array of arrivals alive.
        self._waiting.extend(
            (row.copy(), float(label))
            for row, label in zip(rows, y[-self._spec.buffer :], strict=True)
        )

    def step(self, iterations: int) -> StepResult:
        """Do this many steps, or as many as there are samples for."""
        done = seen = 0
        total = 0.0
        while done < iterations and self._waiting:
            take = min(self._spec.batch, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(take)]
            x = np.stack([row for row, _ in batch])
            y = np.array([label for _, label in batch], np.float64)
            total += self._descend(x, y) * take
            seen += take
            done += 1
        self._used += seen
        return StepResult(done, seen, total / max(seen, 1))

    def update(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the float32 difference to the model that `begin` gave."""
        return difference(self._weights, self._base)

    def _descend(self, x: Floats, y: Labels) -> float:
        loss, gradient = self._model.loss_and_gradient(self._weights, x, y)
        rate = np.float32(self._spec.rate)
        for name, slope in gradient.items():
            self._weights[name] -= rate * slope
        return loss
