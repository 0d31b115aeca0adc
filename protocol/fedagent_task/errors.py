"""Errors of what is learnt.

::

    TaskError
    ├── RecipeError        a key of a recipe is wrong; says how to mend it
    ├── TaskFormatError    bytes are no task that this device understands
    └── DatasetError       a dataset cannot be read; says how to mend it
"""


class TaskError(Exception):
    """Base of every error of this package."""


class _MendableError(TaskError):
    """An error that names a place, what is wrong there, and the mend."""

    def __init__(self, place: str, reason: str, mend: str) -> None:
        super().__init__(place, reason, mend)
        self.reason = reason
        self.mend = mend

    def __str__(self) -> str:
        place, reason, mend = self.args
        return f"{place}: {reason}; {mend}"


class RecipeError(_MendableError):
    """Raised when a recipe does not say what it must."""

    @property
    def key(self) -> str:
        """Dotted key, ``budget.per_edge``; ``recipe`` for the whole text."""
        return str(self.args[0])


class DatasetError(_MendableError):
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
