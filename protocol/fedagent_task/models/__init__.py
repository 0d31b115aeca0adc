"""Convex models as plain functions on arrays."""

from collections.abc import Callable

from fedagent_task.errors import TaskFormatError
from fedagent_task.spec import ModelSpec

from .base import Doubles, Floats, Labels, Model, Weights
from .linear import Linear
from .logistic import Logistic
from .softmax import Softmax

__all__ = [
    "Doubles",
    "Floats",
    "Labels",
    "Linear",
    "Logistic",
    "Model",
    "Softmax",
    "Weights",
    "create",
    "model_kinds",
]

_KINDS: dict[str, Callable[[ModelSpec], Model]] = {
    "softmax": Softmax,
    "logistic": Logistic,
    "linear": Linear,
}


def model_kinds() -> tuple[str, ...]:
    """Return the kinds that a recipe may name."""
    return tuple(_KINDS)


def create(spec: ModelSpec) -> Model:
    """Return the model that a recipe names.

    Raises:
        TaskFormatError: This software knows no such kind.
    """
    kind = _KINDS.get(spec.kind)
    if kind is None:
        raise TaskFormatError("model.kind", f"{spec.kind[:32]!r} is not known here")
    return kind(spec)
