"""Errors of the edge.

::

    EdgeError
    └── StateError           the edge's own files cannot be read or written
"""

from pathlib import Path


class EdgeError(Exception):
    """Base of the edge's errors."""


class StateError(EdgeError):
    """Raised when the edge's own files cannot be read or written."""

    def __init__(self, path: Path, reason: str, hint: str) -> None:
        super().__init__(path, reason, hint)
        self.path = path
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; {self.hint}"


def disk_refused(path: Path, error: OSError) -> StateError:
    """Return the error for a disk that does not take what must not be lost."""
    hint = "make room or fix the disk, then start the edge again"
    return StateError(path, error.strerror or str(error), hint)
