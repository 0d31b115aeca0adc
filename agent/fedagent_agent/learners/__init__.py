"""Streaming learners, found by the name that a recipe gives."""

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

from fedagent_task.errors import TaskFormatError
from fedagent_task.models import Mlp, Model
from fedagent_task.spec import LearnerSpec, ModelSpec

from .base import Learner, StepResult, Tensors
from .bgd import Bgd
from .idle import Idle
from .minibatch import Minibatch
from .sgd import Sgd
from .strsaga import StrSaga

__all__ = [
    "NO_TRAINING",
    "Bgd",
    "Idle",
    "Learner",
    "Minibatch",
    "Sgd",
    "StepResult",
    "StrSaga",
    "Tensors",
    "create",
    "instead_of",
    "learner_names",
]

NO_TRAINING = "none"
"""The learner that takes any stream, because it does not look at it."""

_LEARNERS: dict[str, Callable[[Model, LearnerSpec, np.random.Generator], Learner]] = {
    "minibatch": Minibatch,
    "sgd": Sgd,
    "bgd": Bgd,
    "strsaga": StrSaga,
    NO_TRAINING: Idle,
}


def learner_names() -> tuple[str, ...]:
    """Return the names that a recipe may give."""
    return tuple(_LEARNERS)


_CONVEX_ONLY = {"strsaga": "minibatch"}
"""Learners whose step rests on a convex loss, and what trains a neural network instead."""


def instead_of(model: ModelSpec, spec: LearnerSpec) -> str | None:
    """Return the learner that takes the place of the named one, None if that one fits."""
    return _CONVEX_ONLY.get(spec.name) if model.is_network else None


def create(
    model: Model, spec: LearnerSpec, rng: np.random.Generator, *, compile_loops: bool = True
) -> Learner:
    """Return the learner that a task names, or what `instead_of` says.

    Args:
        model: What is learnt.
        spec: Name and parameters.
        rng: Source of the learner's random numbers.
        compile_loops: Whether strSAGA may use numba, and wait seconds if it has to compile.

    Raises:
        TaskFormatError: This software knows no such learner, it cannot learn the model, or
            torch is missing.
    """
    name = instead_of(model.spec, spec) or spec.name
    learner = _LEARNERS.get(name)
    if learner is None:
        known = ", ".join(_LEARNERS)
        raise TaskFormatError("learner.name", f"{name!r} is not known here, only {known}")
    if name == "strsaga" and spec.rate * model.spec.l2 >= 1:
        raise TaskFormatError("learner.rate", "times model.l2 must be < 1 for strsaga")
    if name == "strsaga":
        return StrSaga(model, spec, rng, compile_loops=compile_loops)
    return learner(_backed(model, spec), spec, rng)


def _backed(model: Model, spec: LearnerSpec) -> Model:
    """Return the model with the gradients of the back end that the task wants."""
    if not isinstance(model, Mlp) or spec.backend == "numpy" or spec.name == NO_TRAINING:
        return model
    if spec.backend == "auto" and model.spec.kind != "cnn":
        return model  # numpy is as fast on few dense layers, and much smaller
    if find_spec("torch") is None:
        if spec.backend == "auto":
            return model
        detail = "the task wants torch; `fedagent doctor` on the device says how to add it"
        raise TaskFormatError("learner.backend", detail)
    from .torch_model import TorchModel  # noqa: PLC0415 - 200 MB, only where it is wanted

    return TorchModel(model)
