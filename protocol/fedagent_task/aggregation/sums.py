"""The running sum of a round's updates, and the mean of edge models: memory O(model)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_task.program import decode_program
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec
from fedagent_task.travelling import CONTROL

Arrays = Mapping[str, npt.NDArray[np.generic]]
_BLOCK = 1 << 12
"""Elements at a time: a block stays in the cache, and its float64 copy on the heap."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How the tensors of a model file are combined, by name."""

    train: frozenset[str] | None = None  # what an optimiser moves; None for all
    mean: frozenset[str] = frozenset()  # buffers: their plain mean, whatever the strategy
    latest: frozenset[str] = frozenset()  # buffers that take the value of the newest update

    def trains(self, name: str) -> bool:
        """Return whether a tensor is a parameter of the model."""
        return self.train is None or name in self.train


ALL_TRAIN = Rules()


@dataclass(slots=True)
class RunningMean:
    """Sum of coefficient·delta over updates, tensor by tensor, over the sum of their weights.

    In float64. With FedAvg the coefficient is the weight, and the quotient the weighted mean.
    """

    rules: Rules = ALL_TRAIN
    weight: float = 0.0
    count: int = 0
    _sums: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, sums: dict[str, npt.NDArray[np.float64]], weight: float, rules: Rules
    ) -> "RunningMean":
        """Return the mean of sums that were made elsewhere: flat float64, by tensor."""
        return cls(rules, weight, _sums=sums)

    def add(
        self,
        delta: Arrays,
        weight: float,
        coefficient: float | None = None,
        *,
        clip: float = 1.0,
        control_clip: float = 1.0,
    ) -> None:
        """Add one update; arrays of any shape, the same names and shapes every time.

        All of it is taken times `clip`, control variates times `control_clip`.
        """
        if not self._sums:
            self._sums = {name: np.zeros(array.size) for name, array in delta.items()}
        times = weight if coefficient is None else coefficient
        for name, array in delta.items():
            total, source = self._sums[name], array.reshape(-1)
            if name in self.rules.latest:
                total[:] = source
                continue
            by = weight if name in self.rules.mean else times
            by *= control_clip if name.startswith(CONTROL) else clip
            # Block by block, so that no float64 copy of a whole tensor is made.
            for block in blocks(source.size):
                part = source[block].astype(np.float64)
                part *= by
                total[block] += part
        self.weight += weight
        self.count += 1

    def change(self, by: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]) -> None:
        """Put something in the place of each sum of numbers, such as the same with noise."""
        for name, total in self._sums.items():
            if name not in self.rules.latest:
                total[:] = by(total)

    def apply(self, base: Arrays, scale: float = 1.0) -> dict[str, npt.NDArray[np.generic]]:
        """Return base + scale·mean in the base's dtypes; a buffer's mean is not scaled.

        Raises:
            ZeroDivisionError: Nothing was added.
        """
        if not self.weight:
            raise ZeroDivisionError("nothing was added")
        result: dict[str, npt.NDArray[np.generic]] = {}
        for name, array in base.items():
            total, source = self._sums[name], array.reshape(-1)
            by = 1.0 if name in self.rules.mean else scale
            over = 1.0 if name in self.rules.latest else self.weight
            fresh = np.empty(source.size, source.dtype)
            # Finite or not is the caller's check; overflow here is not worth a warning.
            with np.errstate(over="ignore", invalid="ignore"):
                for block in blocks(source.size):
                    moved = total[block] / over
                    if by != 1.0 and over is self.weight:
                        moved *= by
                    fresh[block] = source[block].astype(np.float64) + moved
            result[name] = fresh.reshape(array.shape)
        return result


def blocks(size: int, length: int = _BLOCK) -> Iterable[slice]:
    """Return slices of so many elements that cover `size`."""
    return (slice(start, start + length) for start in range(0, size, length))


def rules_of(model: ModelSpec) -> Rules:
    """Return how the tensors of a model are combined; built-in kinds have parameters only.

    Raises:
        TaskFormatError: Its program cannot be read.
    """
    if not model.program:
        return ALL_TRAIN
    program = decode_program(model.program)
    train, mean, latest = (
        frozenset(tensor.name for tensor in program.of_roles(role))
        for role in ("train", "mean", "latest")
    )
    return Rules(train, mean, latest)


def most_steps(learner: LearnerSpec, iterations: int) -> float:
    """Return the most steps of the optimiser in a round, as its momentum counts them.

    `iterations` are those of the order; 0 leaves them to the learner.
    """
    passes = max(iterations, 1) if iterations else learner.passes
    batches = -(-learner.buffer // learner.batch)
    return passes * batches * learner.steps / (1.0 - learner.momentum)
