"""Errors of what is learnt.

::

    TaskError
    ├── RecipeError        a key of a recipe is wrong; says how to fix it
    ├── TaskFormatError    bytes are no task that this device understands
    └── DatasetError       a dataset cannot be read; says how to fix it
"""


class TaskError(Exception):
    """Base of every error of this package."""


class _HintedError(TaskError):
    """An error that names a place, what is wrong there, and the hint."""

    def __init__(self, place: str, reason: str, hint: str) -> None:
        super().__init__(place, reason, hint)
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        place, reason, hint = self.args
        return f"{place}: {reason}; {hint}"


class RecipeError(_HintedError):
    """Raised when a recipe does not say what it must."""

    @property
    def key(self) -> str:
        """Dotted key, ``budget.per_edge``; ``recipe`` for the whole text."""
        return str(self.args[0])


class DatasetError(_HintedError):
    """Raised when a dataset is missing, malformed or over its limit."""

    @property
    def path(self) -> str:
        """File or name of the dataset."""
        return str(self.args[0])


class TaskFormatError(TaskError):
    """Raised when bytes are no task, or one that needs newer software."""

    def __init__(self, key: str, detail: str) -> None:
        super().__init__(key, detail)
        self.key = key
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.key}: {self.detail}"
