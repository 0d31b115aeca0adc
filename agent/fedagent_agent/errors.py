"""Errors of the agent."""

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


class DataDirFailedError(DiskError):
    """Raised when the disk under the data directory is full or fails."""

    hint = "make room or fix the disk, then start the agent again"


class OutboxError(DiskError):
    """Raised when the outbox cannot be opened or written."""


class OutboxFormatError(OutboxError):
    """Raised when another version wrote the outbox; the position in the stream is in it too."""

    hint = "continue with that version, or start fresh in another --data-dir"


class OpinionBookError(DiskError):
    """Raised when the record of opinions cannot be read or written."""

    hint = (
        "free space, or restore the file from a copy: without it the device forgets "
        "what its opinions have cost"
    )


class PrivacyBookError(DiskError):
    """Raised when the count of updates that have cost privacy cannot be read or written."""

    hint = (
        "free space, or restore the file from a copy: without it the device forgets "
        "what its updates have cost"
    )


class PeerStoreError(DiskError):
    """Raised when what a device keeps of democratized analytics cannot be used."""
