"""Streaming learners, found by the name that a recipe gives."""

from collections.abc import Callable

import numpy as np

from fedagent_task.errors import TaskFormatError
from fedagent_task.models import Model
from fedagent_task.spec import LearnerSpec

from .base import Learner, StepResult, Tensors
from .idle import Idle
from .minibatch import Minibatch
from .sgd import Sgd

__all__ = [
    "NO_TRAINING",
    "Idle",
    "Learner",
    "Minibatch",
    "Sgd",
    "StepResult",
    "Tensors",
    "create",
    "learner_names",
]

NO_TRAINING = "none"
"""The learner that takes any stream, because it does not look at it."""

_LEARNERS: dict[str, Callable[[Model, LearnerSpec, np.random.Generator], Learner]] = {
    "minibatch": Minibatch,
    "sgd": Sgd,
    NO_TRAINING: Idle,
}


def learner_names() -> tuple[str, ...]:
    """Return the names that a recipe may give."""
    return tuple(_LEARNERS)


def create(model: Model, spec: LearnerSpec, rng: np.random.Generator) -> Learner:
    """Return the learner that a task names.

    Raises:
        TaskFormatError: This software knows no such learner.
    """
    learner = _LEARNERS.get(spec.name)
    if learner is None:
        known = ", ".join(_LEARNERS)
        raise TaskFormatError("learner.name", f"{spec.name!r} is not known here, only {known}")
    return learner(model, spec, rng)
