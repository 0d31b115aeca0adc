"""Errors of the edge.

::

    EdgeError
    └── StateError           the edge's own files cannot be read or written
"""

from pathlib import Path

from fedagent_protocol.errors import FedagentError


class EdgeError(FedagentError):
    """Base of the edge's errors."""


class EdgeStateError(EdgeError):
    """Raised when the edge's own files cannot be read or written."""

    template = "{path}: {reason}"

    path: Path
    reason: str
    hint: str


def disk_refused(path: Path, error: OSError) -> EdgeStateError:
    """Return the error for a disk that does not take what must not be lost."""
    hint = "make room or fix the disk, then start the edge again"
    return EdgeStateError(path, error.strerror or str(error), hint)
