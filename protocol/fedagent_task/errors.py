"""Errors of what is learnt."""

from fedagent_protocol.errors import FedagentError


class TaskError(FedagentError):
    """Base of every error of this package."""


class RecipeError(TaskError):
    """Raised when what a person wrote cannot be used: a recipe, a task file or a torch module.

    `key` is the dotted key, the file, or the part of the module.
    """

    template = "{key}: {reason}"

    key: str
    reason: str
    hint: str


class DatasetError(TaskError):
    """Raised when a dataset is missing, malformed or over its limit; `path`: file or name."""

    template = "{path}: {reason}"

    path: str
    reason: str
    hint: str


class TaskFormatError(TaskError):
    """Raised when bytes are no task, ask for too much, or need newer software."""

    template = "{key}: {detail}"

    key: str
    detail: str


class NotInstalledError(TaskError):
    """Raised when something is to be computed by a package that is not installed."""

    template = "{what}"

    what: str
    hint: str
