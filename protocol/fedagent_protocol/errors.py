"""Errors of the wire.

::

    ProtocolError
    ├── OversizeError        a payload, tensor set or count is over its limit
    ├── MalformedError       the bytes are not the message they should be
    ├── TopicError           a topic is not one of ours
    ├── ManifestError        tensors differ from what was declared
    ├── DigestError          the content does not hash to its name
    └── ChunkError           a chunk does not fit the layout of its transfer
"""

from typing import ClassVar


class ProtocolError(Exception):
    """Base of every error that foreign bytes can cause."""

    reason: ClassVar[str] = "protocol"
    """The word that counters, receipts and logs use."""


class OversizeError(ProtocolError):
    """Raised before allocation when something is larger than its limit."""

    reason = "oversize"

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(what, size, limit)
        self.what = what
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.what} is {self.size}, the limit is {self.limit}"


class _DetailError(ProtocolError):
    """A protocol error that carries one line of detail."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class MalformedError(_DetailError):
    """Raised when bytes are not a message of the expected direction."""

    reason = "malformed"


class TopicError(_DetailError):
    """Raised when a topic, or an id in one, is not of our form."""

    reason = "topic"


class ManifestError(_DetailError):
    """Raised when tensors have other names, dtypes or shapes than declared."""

    reason = "manifest_mismatch"


class DigestError(ProtocolError):
    """Raised when content does not hash to the digest it was announced by."""

    reason = "digest_mismatch"

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(expected, actual)
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return f"expected {self.expected[:12]}, the content hashes to {self.actual[:12]}"


class ChunkError(_DetailError):
    """Raised when a chunk's index or length does not fit its transfer."""

    reason = "bad_chunk"


def safe_text(text: object, *, limit: int = 200) -> str:
    """Return foreign text on one line, printable and at most `limit` characters."""
    line = "".join(c if c.isprintable() else " " for c in str(text)[: 4 * limit])
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
