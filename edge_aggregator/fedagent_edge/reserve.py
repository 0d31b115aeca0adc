"""Room on the disk that is kept for what must not be lost, and a look for more."""

import os
from contextlib import suppress
from pathlib import Path

RESERVE_BYTES = 256 * 1024
"""Several times what an edge must remember."""


class Reserve:
    """A file that takes room until the disk is full; missing where there was none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keep()

    def give_up(self) -> None:
        """Free the room."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def try_room(self, size: int) -> str:
        """Return why the disk has no room for so many bytes, empty if it has; keep some again."""
        trial = self._path.with_suffix(".trial")
        try:
            _allocate(trial, size)
        except OSError as error:
            return error.strerror or str(error)
        finally:
            with suppress(OSError):
                trial.unlink(missing_ok=True)
        self._keep()
        return ""

    def _keep(self) -> None:
        try:
            if not self._path.exists():
                _allocate(self._path, RESERVE_BYTES)
        except OSError:
            self.give_up()


def _allocate(path: Path, size: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)
