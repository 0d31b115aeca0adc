"""Steps of a local optimiser on one model: the arithmetic below the learners of batches."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedagent_protocol.registry import Registry
from fedagent_task.errors import TaskFormatError
from fedagent_task.models import Factors, Inputs, Labels, Model
from fedagent_task.recipe.client_terms import NO_TERMS, ClientTerms
from fedagent_task.recipe.spec import LearnerSpec

from .base import Tensors
from .optimizers import Arrays, Optimizer, clip, create_optimizer

NOTHING: Tensors = {}
IN_TORCH: Registry[Any] = Registry(
    kind="part of torch",
    package=__package__,
    builtin={"steps": "torch_steps:TorchSteps", "held": "torch_steps:HeldInTorch"},
)
"""What takes 200 MB, and is imported where it is wanted."""


class Steps(Protocol):
    """One model that an optimiser moves, batch by batch."""

    def begin(self, base: Tensors, *, rate: float, correction: Tensors = NOTHING) -> None:
        """Start a round from these float32 tensors with a new optimiser.

        `correction` is what SCAFFOLD adds to the gradient, c - c_i by tensor.
        """

    def step(self, x: Inputs, y: Labels) -> float:
        """Move by one batch, [n, features] and [n]; return its mean loss before the step."""

    def loss(self, x: Inputs, y: Labels) -> float:
        """Return the mean loss of a batch as the model is now."""

    def moved(self, base: Tensors) -> Arrays:
        """Return the float32 difference to `base` of every tensor that travels."""

    def local(self) -> Tensors:
        """Return the tensors that stay on the device, float32."""

    def restore(self, local: Tensors) -> None:
        """Take tensors that `local` gave; of one that is missing the first value is taken."""


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
        """Start a round."""
        self._base, self._correction, self._rate = base, correction, rate
        self._optimizer = create_optimizer(self._spec)
        self._weights = {name: np.array(tensor, np.float32) for name, tensor in base.items()}

    def step(self, x: Inputs, y: Labels) -> float:
        """Move by one batch."""
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
        """Return the difference of every tensor of the model."""
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
