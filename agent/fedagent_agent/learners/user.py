"""Training code of somebody else's package: a function, called once per order or arrival step.

It gets the model, the samples in batches, and a context. Whatever it raises becomes one line with
its own file and line; nothing of a sample is said. A loop that does not end is ended with the
process, as any training that takes too long.
"""

import inspect
import logging
import math
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt

from fedagent_protocol.messages import TrainCourse
from fedagent_task.models import Doubles, Floats, Inputs, Labels, Model
from fedagent_task.models.base import batches
from fedagent_task.recipe.spec import LearnerSpec, ParamValue

from .base import StepResult, Tensors, enough, failed_code
from .gradient_descent import Remembering, Ring, Shared
from .steps import IN_TORCH, by_torch, moved

if TYPE_CHECKING:
    from .torch_steps import HeldInTorch

MAX_METRICS = 32
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")

_log = logging.getLogger(__name__)


class NumpyModel:
    """A numpy model on the device: `weights` may be changed in place or replaced by name."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.weights: dict[str, npt.NDArray[np.float32]] = {}

    def loss_and_gradient(self, x: Inputs, y: Labels) -> tuple[float, dict[str, Floats]]:
        """Return the mean loss of a batch and its gradient by tensor."""
        return self._model.loss_and_gradient(self.weights, x, y)

    def loss(self, x: Inputs, y: Labels) -> float:
        """Return the mean loss of a batch."""
        return self._model.loss(self.weights, x, y)

    def forward(self, x: Inputs) -> Doubles:
        """Return probabilities [n, classes], or values [n, 1]."""
        return self._model.forward(self.weights, x)


class HeldInNumpy:
    """Any numpy model; a batch is ``(x, y)``."""

    device = "cpu"

    def __init__(self, model: Model) -> None:
        self.view = NumpyModel(model)
        self._shapes = {one.name: one.shape for one in model.manifest().specs}

    def load(self, tensors: Tensors) -> None:
        """Take copies."""
        self.view.weights |= {n: np.array(t, np.float32) for n, t in tensors.items()}

    def batch(self, x: Inputs, y: Labels) -> tuple[Inputs, Labels]:
        """Return rows and labels as they are."""
        return x, y

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the model's tensors; `FailedTrainingError`: one is gone or of another shape."""
        try:
            found = {n: np.asarray(self.view.weights.get(n), np.float32) for n in self._shapes}
        except (TypeError, ValueError) as error:
            raise failed_code("no error, but left values that are not numbers") from error
        for name, tensor in found.items():
            if tensor.shape != self._shapes[name]:
                raise failed_code(f"no error, but left {name!r} in another shape")
        return found

    def local(self) -> Tensors:
        """Return nothing."""
        return {}


Held: TypeAlias = "HeldInNumpy | HeldInTorch"
"""A model as the device holds it, and the `view` of it that the training function gets."""


class Batches:
    """The device's samples in batches: every ``for`` is one pass, shuffled anew, drawn lazily."""

    def __init__(self, memory: Ring, size: int, rng: np.random.Generator, held: Held) -> None:
        self._memory, self._size, self._rng, self._held = memory, size, rng, held
        self.drawn = 0
        """Samples that were given out."""

    @property
    def samples(self) -> int:
        """Samples in the device's memory."""
        return len(self._memory)

    def __len__(self) -> int:
        return len(batches(len(self._memory), self._size))

    def __iter__(self) -> Iterator[Any]:
        order = self._rng.permutation(len(self._memory))
        for part in batches(len(order), self._size):
            x, y = self._memory.rows(order[part])
            self.drawn += len(y)
            yield self._held.batch(x, y)


@dataclass(slots=True)
class TrainContext:
    """What a training function is told, and how it tells.

    `iterations` are what the order asks for, or the recipe's `passes`; `rate` is that of the round.
    """

    round: int
    iterations: int
    device: str
    rate: float
    seed: int
    rng: np.random.Generator
    params: Mapping[str, ParamValue]
    should_stop: Callable[[], bool]
    """Ask it in long loops: whether the round was given up, or the load limit is reached."""
    metrics: dict[str, float] = field(default_factory=dict)

    def report(self, **metrics: float) -> None:
        """Tell numbers of this training: ``loss`` goes to the coordinator, all to the log.

        Raises:
            ValueError: One is not finite, or there are too many.
        """
        for name, value in metrics.items():
            number = float(value)
            if not math.isfinite(number) or not _NAME.fullmatch(name):
                raise ValueError(f"report({name}=...) must be a finite number")
            self.metrics[name] = number
        if len(self.metrics) > MAX_METRICS:
            raise ValueError(f"report takes at most {MAX_METRICS} names")


Train = Callable[[Any, Batches, TrainContext], object]


def trainer(train: Train) -> Train:
    """Mark a function as training code, ``train(model, batches, ctx)``.

    An entry point in the group ``fedagent.learners`` makes it known to devices; see
    docs/learners.md.

    Raises:
        TypeError: It does not take these three.
    """
    if len(inspect.signature(train).parameters) != len(("model", "batches", "ctx")):
        raise TypeError(f"{train.__name__} must take three arguments: model, batches, ctx")
    return train


class UserLearner(Remembering):
    """Somebody's training function as a learner; an iteration is what the function makes of one.

    `stop` is set by the trainer before a training.
    """

    def __init__(
        self, train: Train, held: Held, model: Model, spec: LearnerSpec, rng: np.random.Generator
    ) -> None:
        super().__init__(model, spec, rng)
        self._train, self._held = train, held
        self._base: Tensors = {}
        self._first_local: dict[str, npt.NDArray[np.float32]] = {
            name: np.array(tensor) for name, tensor in held.local().items()
        }
        self._number, self._loss = 1, 0.0
        self.stop: Callable[[], bool] = lambda: False

    def begin(self, base: Tensors, number: int = 1) -> None:
        """Start from a new global model."""
        self._base, self._number, self._loss = base, max(1, number), 0.0
        self._held.load(base)

    def step(self, iterations: int) -> StepResult:
        """Call the function; `FailedTrainingError`: it failed, or one sample is too few."""
        if not enough(self._model, len(self._memory)):
            return StepResult(0, 0, 0.0)
        batches = Batches(self._memory, self._spec.batch, self._rng, self._held)
        context = TrainContext(
            round=self._number,
            iterations=iterations,
            device=self._held.device,
            rate=self._spec.rate_at(self._number),
            seed=int(self._rng.integers(2**31)),
            rng=self._rng,
            params=self._spec.params,
            should_stop=self.stop,
        )
        try:
            self._train(self._held.view, batches, context)
        except Exception as error:
            raise failed_code(place_in(error, self._train)) from error
        if context.metrics:
            told = ", ".join(f"{name}={n:.6g}" for name, n in sorted(context.metrics.items()))
            _log.info("round %d: the task reports %s", self._number, told)
        self._loss = context.metrics.get("loss", 0.0)
        return StepResult(iterations, max(1, batches.drawn), self._loss)

    def update(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the float32 difference to the model that `begin` gave."""
        return moved(self._base, self._held.tensors())

    @property
    def course(self) -> TrainCourse:
        """The loss that was reported, if it was."""
        return TrainCourse(loss_rms=abs(self._loss))

    @property
    def local(self) -> Tensors:
        """Tensors that stay on the device."""
        return self._held.local()

    def restore(self, kept: Tensors) -> None:
        """Take what `keep` gave; without it begin anew."""
        self._held.load({name: kept.get(name, t) for name, t in self._first_local.items()})


def create_held(model: Model, spec: LearnerSpec, **shared: Unpack[Shared]) -> Held:
    """Return a model for user code: a torch module of a graph, else the numpy model.

    Raises:
        TaskFormatError: It is a graph, and torch or what the recipe asks of it is not here.
    """
    if not by_torch(model, spec) or model.spec.kind != "graph":
        return HeldInNumpy(model)
    held: Held = IN_TORCH.factory("held")(model, spec, **shared)
    return held


def place_in(error: BaseException, train: Train) -> str:
    """Name an exception by type, and by file and line of the user's own code."""
    code = getattr(train, "__code__", None)
    home = Path(code.co_filename).parent if code is not None else None
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if home and home in Path(frame.filename).parents]
    last = (own or frames)[-1:]
    where = "".join(f" at {Path(one.filename).name}:{one.lineno}" for one in last)
    return type(error).__name__ + where
