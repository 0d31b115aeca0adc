"""Errors of the agent (the tree below is the whole of it).

::

    AgentError
    └── KeepingError         a file in the data directory cannot be read or written
        ├── OutboxError      the outbox
        ├── OpinionBookError the record of opinions with noise
        └── PeerStoreError   what is kept of democratized analytics
"""

from pathlib import Path


class AgentError(Exception):
    """Base of all errors of the agent."""


class KeepingError(AgentError):
    """Raised when a file in the data directory cannot be used."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; free space, or move the file away to start empty"


class OutboxError(KeepingError):
    """Raised when the outbox cannot be opened or written."""


class OpinionBookError(KeepingError):
    """Raised when the record of opinions cannot be read or written."""


class PeerStoreError(KeepingError):
    """Raised when what a device keeps of democratized analytics cannot be used."""
