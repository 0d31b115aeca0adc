"""Streaming learners, found by the name that a recipe gives."""

import inspect
from typing import Unpack

import numpy as np

from fedagent_protocol.errors import PluginError, UnknownNameError
from fedagent_protocol.registry import Registry
from fedagent_task.errors import TaskFormatError
from fedagent_task.models import Model, missing
from fedagent_task.recipe.client_terms import client_terms
from fedagent_task.recipe.spec import LEARNERS, AggregationSpec, LearnerSpec, ModelSpec

from .base import Learner, StepResult, Tensors
from .gradient_descent import Shared
from .user import UserLearner, create_held

__all__ = [
    "Learner",
    "StepResult",
    "Tensors",
    "create",
    "instead_of",
    "registry",
]

# Every device of a fleet has what is built in; a package must be installed where it is used.
registry: Registry[Learner] = Registry(
    kind="learner",
    package=__name__,
    builtin={name: where for name, where in LEARNERS.items() if where},
    group="fedagent.learners",
    by_package=True,
)

FEDAVG = AggregationSpec()
"""The strategy that asks nothing of a device."""

_CONVEX_ONLY = {"strsaga": "minibatch"}
"""Learners whose step rests on a convex loss, and what trains a neural network instead."""


def instead_of(model: ModelSpec, spec: LearnerSpec) -> str | None:
    """Return the learner that takes the place of the named one, None if that one fits."""
    return _CONVEX_ONLY.get(spec.name) if model.is_network else None


def create(
    model: Model,
    spec: LearnerSpec,
    rng: np.random.Generator,
    *,
    compile_loops: bool | None = True,
    aggregation: AggregationSpec = FEDAVG,
    **shared: Unpack[Shared],
) -> Learner:
    """Return the learner that a task names, or its stand-in (`instead_of`).

    `compile_loops`: whether strSAGA may use numba, and wait seconds if it has to compile; None:
    it may, but does not wait;
    `aggregation` asks terms of the gradient and figures of the training; `shared`: see `Shared`.

    Raises:
        TaskFormatError: This software knows no such learner, it cannot learn the model, or
            torch is missing.
    """
    name = instead_of(model.spec, spec) or spec.name
    try:
        learner = registry.factory(name)
    except UnknownNameError as error:
        raise TaskFormatError("learner.name", missing(name)) from error
    except PluginError as error:
        raise TaskFormatError("learner.name", str(error)) from error
    if spec.is_foreign and not inspect.isclass(learner):
        return UserLearner(learner, create_held(model, spec, **shared), model, spec, rng)
    if spec.is_foreign:
        return learner(model, spec, rng)
    if name != "strsaga":
        return learner(model, spec, rng, client_terms(aggregation), **shared)
    if spec.rate * model.spec.l2 >= 1:
        raise TaskFormatError("learner.rate", "times model.l2 must be < 1 for strsaga")
    return learner(model, spec, rng, compile_loops=compile_loops)
