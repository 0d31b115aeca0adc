"""Errors of the edge."""

from pathlib import Path


class EdgeError(Exception):
    """Base of the edge's errors."""


class EdgeConfigError(EdgeError):
    """Raised when the configuration cannot be used."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}"


class StateError(EdgeError):
    """Raised when the edge's own files cannot be read."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; delete the file to start with an empty edge"
