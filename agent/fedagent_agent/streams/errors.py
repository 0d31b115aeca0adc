"""Errors of streams: one line each, with the hint.

::

    StreamError
    ├── StreamSpecError    text describes no stream
    ├── StreamOpenError    a stream that is well described cannot be read
    └── StreamBrokenError  a stream that was open gives no samples any more
"""


class StreamError(Exception):
    """Base of the errors of streams; one line that names the hint.

    Attributes:
        key: Option or part of the stream that is wrong.
        reason: What is wrong.
        hint: What to write instead.
    """

    def __init__(self, key: str, reason: str, hint: str) -> None:
        super().__init__(key, reason, hint)
        self.key = key
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}; {self.hint}"


class StreamSpecError(StreamError):
    """Raised when text describes no stream."""


class StreamOpenError(StreamError):
    """Raised when a stream that is well described cannot be read."""


class StreamBrokenError(StreamError):
    """Raised when an open stream fails."""
