"""Steps of a local optimiser on one model: the arithmetic below the learners of batches."""

import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedagent_protocol.registry import Registry
from fedagent_task.errors import TaskFormatError
from fedagent_task.models import Factors, Floats, Inputs, Labels, Model
from fedagent_task.recipe.client_terms import NO_TERMS, ClientTerms
from fedagent_task.recipe.spec import LearnerSpec

from .base import Tensors

Arrays = dict[str, npt.NDArray[np.float32]]
Gradient = Mapping[str, Floats]
BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Of Adam, as torch's defaults."""
_CLIP_EPSILON = 1e-6


class Sgd:
    """``w - rate * gradient``, with torch's momentum, which starts as the first gradient."""

    def __init__(self, spec: LearnerSpec) -> None:
        self._momentum, self._decay = np.float32(spec.momentum), np.float32(spec.weight_decay)
        self._speed: Arrays = {}

    def apply(self, weights: Arrays, gradient: Gradient, rate: float) -> None:
        """Take one step."""
        step = np.float32(rate)
        for name, given in gradient.items():
            slope = given + self._decay * weights[name] if self._decay else given
            weights[name] -= step * (self._hurried(name, slope) if self._momentum else slope)

    def _hurried(self, name: str, slope: Floats) -> Floats:
        speed = self._speed.get(name)
        if speed is None:
            speed = self._speed[name] = np.array(slope, np.float32)
        else:
            speed *= self._momentum
            speed += slope
        return speed


class Adam:
    """Kingma and Ba's Adam; with `decoupled` decay AdamW (Loshchilov and Hutter)."""

    def __init__(self, spec: LearnerSpec, *, decoupled: bool) -> None:
        self._decay, self._decoupled = spec.weight_decay, decoupled
        self._first: Arrays = {}
        self._second: Arrays = {}
        self._steps = 0

    def apply(self, weights: Arrays, gradient: Gradient, rate: float) -> None:
        """Take one step."""
        self._steps += 1
        one, two = BETAS
        size = np.float32(rate / (1.0 - one**self._steps))
        root = np.float32(math.sqrt(1.0 - two**self._steps))
        for name, given in gradient.items():
            weight, slope = weights[name], given
            if self._decay and self._decoupled:
                weight *= np.float32(1.0 - rate * self._decay)
            elif self._decay:
                slope = given + np.float32(self._decay) * weight
            first = _mean(self._first, name, slope, one)
            second = _mean(self._second, name, np.square(slope), two)
            scale = np.sqrt(second)
            scale /= root
            scale += np.float32(EPSILON)
            weight -= size * (first / scale)


Optimizer = Sgd | Adam


def create_optimizer(spec: LearnerSpec) -> Optimizer:
    """Return the optimiser that a recipe names, at the start of a round."""
    return Sgd(spec) if spec.optimizer == "sgd" else Adam(spec, decoupled=spec.optimizer == "adamw")


def clip(gradient: dict[str, Floats], limit: float) -> None:
    """Scale the gradient to an L2 norm over all tensors of at most `limit`; 0 for no limit."""
    if limit <= 0:
        return
    norm = math.sqrt(sum(float(np.vdot(slope, slope)) for slope in gradient.values()))
    factor = limit / (norm + _CLIP_EPSILON)
    if factor < 1.0:
        for name, slope in gradient.items():
            gradient[name] = slope * slope.dtype.type(factor)


def _mean(means: Arrays, name: str, new: Floats, beta: float) -> npt.NDArray[np.float32]:
    """Move a running mean towards a new value; it begins at 0."""
    mean = means.get(name)
    if mean is None:
        mean = means[name] = np.zeros(new.shape, np.float32)
    mean *= np.float32(beta)
    mean += np.float32(1.0 - beta) * new
    return mean


if TYPE_CHECKING:
    from .torch_steps import TorchSteps

NOTHING: Tensors = {}
IN_TORCH: Registry[Any] = Registry(
    kind="part of torch",
    package=__package__,
    builtin={"steps": "torch_steps:TorchSteps", "held": "torch_steps:HeldInTorch"},
)
"""What takes 200 MB, and is imported where it is wanted."""


class NumpySteps:
    """Steps on a model of the task package, or of anybody's that is one in numpy."""

    def __init__(self, model: Model, spec: LearnerSpec, terms: ClientTerms = NO_TERMS) -> None:
        self._model, self._spec, self._mu = model, spec, terms.mu
        self._rate = spec.rate
        self._optimizer: Optimizer = create_optimizer(spec)
        self._base: Tensors = {}
        self._weights: Arrays = {}
        self._correction: Tensors = NOTHING

    def begin(self, base: Tensors, *, rate: float, correction: Tensors = NOTHING) -> None:
        """Start a round from these float32 tensors with a new optimiser.

        `correction` is what SCAFFOLD adds to the gradient, c - c_i by tensor.
        """
        self._base, self._correction, self._rate = base, correction, rate
        self._optimizer = create_optimizer(self._spec)
        self._weights = {name: np.array(tensor, np.float32) for name, tensor in base.items()}

    def step(self, x: Inputs, y: Labels) -> float:
        """Move by one batch, [n, features] and [n]; return its mean loss before the step."""
        if isinstance(self._model, Factors):
            return self._model.descend(self._weights, x, y, self._rate)
        loss, gradient = self._model.loss_and_gradient(self._weights, x, y)
        for name, slope in gradient.items() if self._mu or self._correction else ():
            gradient[name] = slope + self._term(name)
        clip(gradient, self._spec.clip_norm)
        self._optimizer.apply(self._weights, gradient, self._rate)
        return loss

    def loss(self, x: Inputs, y: Labels) -> float:
        """Return the mean loss of a batch."""
        return self._model.loss(self._weights, x, y)

    def moved(self, base: Tensors) -> Arrays:
        """Return the float32 difference to `base` of every tensor that travels."""
        return moved(base, self._weights)

    def local(self) -> Tensors:
        """Nothing: all of a numpy model travels."""
        return NOTHING

    def restore(self, local: Tensors) -> None:
        """Take nothing."""

    def _term(self, name: str) -> npt.NDArray[np.float32]:
        term = np.zeros_like(self._weights[name])
        if self._mu:
            term += np.float32(self._mu) * (self._weights[name] - self._base[name])
        if (shift := self._correction.get(name)) is not None:
            term += shift
        return term


Steps: TypeAlias = "NumpySteps | TorchSteps"
"""One model that an optimiser moves, batch by batch."""


def create_steps(
    model: Model,
    spec: LearnerSpec,
    terms: ClientTerms = NO_TERMS,
    *,
    once: Tensors = NOTHING,
    threads: int = 0,
    seed: int = 0,
) -> Steps:
    """Return the steps on a model by `learner.backend`.

    `seed` is of what drops out of a graph in training; `once` and `threads` are those of
    `gradient_descent.Shared`.

    Raises:
        TaskFormatError: torch is missing, or what the recipe asks of it is.
    """
    if not by_torch(model, spec):
        return NumpySteps(model, spec, terms)
    make = IN_TORCH.factory("steps")
    steps: Steps = make(model, spec, terms, once=once, threads=threads, seed=seed)
    return steps


def by_torch(model: Model, spec: LearnerSpec) -> bool:
    """Return whether torch does the steps; `TaskFormatError`: it must, and is not here."""
    graph = model.spec.kind == "graph"
    if not model.spec.is_network or (spec.backend == "numpy" and not graph):
        return False
    must = graph or spec.wants_torch
    if not must and model.spec.kind != "cnn":
        return False  # numpy is as fast on few dense layers, and much smaller
    if find_spec("torch") is not None:
        return True
    if must:
        key = "model.kind" if graph else "learner.backend"
        detail = "the task wants torch; `fedagent doctor` on the device says how to add it"
        raise TaskFormatError(key, detail)
    return False


def moved(base: Tensors, now: Mapping[str, npt.NDArray[np.float32]]) -> Arrays:
    """Return the float32 difference to `base` of each tensor."""
    return {name: np.subtract(tensor, base[name]) for name, tensor in now.items()}
