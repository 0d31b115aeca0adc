"""Errors of what is learnt."""

from fedagent_protocol.errors import FedagentError, ProtocolError


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


class ProgramError(TaskFormatError):
    """Raised when a model that travels as a graph is not well formed, or asks for too much."""


class TaskFileError(TaskError):
    """Raised when a file is no task file, or one that cannot be used here."""

    template = "{path}: {reason}"

    path: str
    reason: str
    hint: str


class TorchNeededError(TaskError):
    """Raised when a model that travels as a graph is to be computed without torch."""

    template = "{what} of a model of kind graph is computed by torch"

    what: str
    hint: str


class BuildError(TaskError):
    """Raised when a torch module cannot be made a task; `what`: the part of it."""

    template = "{what}: {reason}"

    what: str
    reason: str
    hint: str


class MaskingError(ProtocolError):
    """Raised for keys, shares or answers that do not fit; nothing of them was used."""

    template = "{detail}"

    why: str
    detail: str

    @property
    def reason(self) -> str:  # type: ignore[override]  # of the instance: counters tell them apart
        """Word for counters."""
        return f"masking_{self.why}"
