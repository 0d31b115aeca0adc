"""Errors of what is learnt."""

from fedagent_protocol.errors import FedagentError


class TaskError(FedagentError):
    """Base of every error of this package."""


class RecipeError(TaskError):
    """Raised when a recipe does not say what it must; `key` is dotted, or ``recipe``."""

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
    """Raised when bytes are no task, or one that needs newer software."""

    template = "{key}: {detail}"

    key: str
    detail: str
