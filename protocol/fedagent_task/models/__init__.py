"""Models as plain functions on arrays: generalised linear ones, matrix factors, networks."""

from collections.abc import Callable

from fedagent_task.errors import TaskFormatError
from fedagent_task.spec import ModelSpec

from .base import Doubles, Floats, Inputs, Labels, Model, Weights
from .cnn import Cnn
from .factors import Factors
from .linear import Linear
from .logistic import Logistic
from .mlp import Mlp
from .softmax import Softmax
from .svm import Svm

__all__ = [
    "Cnn",
    "Doubles",
    "Factors",
    "Floats",
    "Inputs",
    "Labels",
    "Linear",
    "Logistic",
    "Mlp",
    "Model",
    "Softmax",
    "Svm",
    "Weights",
    "create",
    "model_kinds",
]

_KINDS: dict[str, Callable[[ModelSpec], Model]] = {
    "softmax": Softmax,
    "logistic": Logistic,
    "linear": Linear,
    "svm": Svm,
    "mf": Factors,
    "mlp": Mlp,
    "cnn": Cnn,
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
