"""Errors of the agent.

::

    AgentError
    ├── OutboxError      the outbox cannot be opened or written
    └── PeerStoreError   what is kept of democratized analytics cannot be read or written
"""

from pathlib import Path


class AgentError(Exception):
    """Base of the agent's errors."""


class OutboxError(AgentError):
    """Raised when the outbox cannot be used."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; free space, or move the file away to start empty"


class PeerStoreError(AgentError):
    """Raised when what a device keeps of democratized analytics cannot be used."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; free space, or move the file away to start empty"
