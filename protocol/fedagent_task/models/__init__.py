"""Models as plain functions on arrays, found by the kind that a recipe names."""

from fedagent_protocol.errors import PluginError, UnknownNameError
from fedagent_protocol.registry import Registry
from fedagent_task.errors import TaskFormatError
from fedagent_task.recipe.spec import MODELS, ModelSpec

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
    "missing",
    "registry",
]

# Every device of a fleet has what is built in; a package must be installed where it is used.
registry: Registry[Model] = Registry(
    kind="model",
    package=__name__,
    builtin=MODELS,
    group="fedagent.models",
    by_package=True,
)


def create(spec: ModelSpec) -> Model:
    """Return the model that a recipe names, or raise `TaskFormatError`."""
    try:
        return registry.factory(spec.kind)(spec)
    except UnknownNameError as error:
        raise TaskFormatError("model.kind", missing(spec.kind)) from error
    except PluginError as error:
        raise TaskFormatError("model.kind", str(error)) from error


def missing(name: str) -> str:
    """Say of a recipe's word that it is not known here, and of ``package:name`` the hint."""
    package, colon, _ = name.partition(":")
    if not colon:
        return f"{name[:32]!r} is not known here"
    return f"{name[:130]!r} is not installed here; install the package {package} for it"
