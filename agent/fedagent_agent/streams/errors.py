"""Errors of streams: one line each, with the hint.

::

    StreamError
    ├── StreamSpecError    text describes no stream
    ├── StreamOpenError    a stream that is well described cannot be read
    └── StreamBrokenError  a stream that was open gives no samples any more
"""

from fedagent_protocol.errors import FedagentError


class StreamError(FedagentError):
    """Base of the errors of streams.

    Attributes:
        key: Option or part of the stream that is wrong.
        hint: What to write instead.
    """

    template = "{key}: {reason}"

    key: str
    reason: str
    hint: str


class StreamSpecError(StreamError):
    """Raised when text describes no stream."""


class StreamOpenError(StreamError):
    """Raised when a stream that is well described cannot be read."""


class StreamBrokenError(StreamError):
    """Raised when an open stream fails."""
