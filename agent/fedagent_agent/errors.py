"""Errors of the agent (the tree below is the whole of it).

::

    AgentError
    └── DiskError            a file in the data directory cannot be read or written
        ├── OutboxError      the outbox
        ├── OpinionBookError the record of opinions with noise
        └── PeerStoreError   what is kept of democratized analytics
"""

from pathlib import Path

from fedagent_protocol.errors import FedagentError


class AgentError(FedagentError):
    """Base of all errors of the agent."""


class DiskError(AgentError):
    """Raised when a file in the data directory cannot be used."""

    template = "{path}: {reason}"
    hint = "free space, or move the file away to start empty"

    path: Path
    reason: str


class OutboxError(DiskError):
    """Raised when the outbox cannot be opened or written."""


class OpinionBookError(DiskError):
    """Raised when the record of opinions cannot be read or written."""


class PeerStoreError(DiskError):
    """Raised when what a device keeps of democratized analytics cannot be used."""
