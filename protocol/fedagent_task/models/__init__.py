"""Models as plain functions on arrays, found by the kind that a recipe names."""

from fedagent_protocol.errors import UnknownNameError
from fedagent_protocol.registry import Registry
from fedagent_task.errors import TaskFormatError
from fedagent_task.spec import MODELS, ModelSpec

from .base import Doubles, Floats, Inputs, Labels, Model, Weights
from .cnn import Cnn
from .factors import Factors
from .generalised_linear import Svm
from .mlp import Mlp

__all__ = [
    "Cnn",
    "Doubles",
    "Factors",
    "Floats",
    "Inputs",
    "Labels",
    "Mlp",
    "Model",
    "Svm",
    "Weights",
    "create",
    "registry",
]

# Recipes name one of these only, so that every device of a fleet has it.
registry: Registry[Model] = Registry(
    kind="model",
    package=__name__,
    builtin=MODELS,
)


def create(spec: ModelSpec) -> Model:
    """Return the model that a recipe names, or raise `TaskFormatError`."""
    try:
        return registry.factory(spec.kind)(spec)
    except UnknownNameError as error:
        raise TaskFormatError("model.kind", f"{spec.kind[:32]!r} is not known here") from error
