"""Errors of the agent."""

from pathlib import Path

from fedagent_protocol.errors import FedagentError


class AgentError(FedagentError):
    """Base of all errors of the agent."""


class DiskError(AgentError):
    """Raised when a file in the data directory cannot be used."""

    template = "{path}: {reason}"
    hint = "make room or fix the disk, then start the agent again"

    path: Path
    reason: str


class BooksError(DiskError):
    """Raised when the agent's books cannot be opened, read or written."""

    hint = (
        "free space, or restore the file from a copy: without it the device forgets its updates, "
        "its place in the stream, and what updates and opinions have cost of its privacy"
    )


class PeerStoreError(DiskError):
    """Raised when what a device keeps of democratized analytics cannot be used."""

    hint = "free space, or move the file away to start empty"
