"""The high-water mark: a small file beside the database that says how far it had come.

SQLite drops committed transactions silently when its WAL is damaged. The mark is
written and synced after every commit, so a database that holds less than was ever
promised is noticed at start. Two slots in turn, each with a checksum: a write that
is torn leaves the other one.
"""

import os
import zlib
from pathlib import Path

import msgspec

from fedagent_node.data_dir import sync_folder

_SLOT_BYTES = 512
GENESIS = bytes(32)
"""What the first entry of the ledger names as its predecessor."""


class HighWaterMark(msgspec.Struct, frozen=True, kw_only=True):
    """How far the database had come: transactions, and the ledger's last entry (0 for none)."""

    commits: int = 0
    seq: int = 0
    hash: str = GENESIS.hex()


class MarkFile:
    """The mark on disk, opened for writing by the one coordinator; new ones hold `first`."""

    def __init__(self, path: Path, first: HighWaterMark) -> None:
        if not path.exists():
            fresh = path.with_suffix(".new")
            with fresh.open("wb") as file:
                file.write(_slot(first) * 2)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
            sync_folder(path.parent)
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def write(self, mark: HighWaterMark) -> None:
        """Make `mark` durable."""
        os.pwrite(self._fd, _slot(mark), (mark.commits % 2) * _SLOT_BYTES)
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_mark(path: Path) -> HighWaterMark | None:
    """Return the newest readable mark; None when there is no file.

    Raises:
        ValueError: The file is there, but no slot of it is whole.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    slots = (data[:_SLOT_BYTES], data[_SLOT_BYTES : 2 * _SLOT_BYTES])
    marks = [mark for mark in map(_parse, slots) if mark is not None]
    if not marks:
        raise ValueError(f"no slot of {path.name} is whole")
    return max(marks, key=lambda mark: mark.commits)


def _slot(mark: HighWaterMark) -> bytes:
    body = msgspec.json.encode(mark)
    return (b"%08x " % zlib.crc32(body) + body).ljust(_SLOT_BYTES - 1) + b"\n"


def _parse(slot: bytes) -> HighWaterMark | None:
    checksum, _, body = slot.partition(b" ")
    body = body.strip()
    try:
        if len(slot) != _SLOT_BYTES or int(checksum, 16) != zlib.crc32(body):
            return None
        return msgspec.json.decode(body, type=HighWaterMark)
    except ValueError:  # msgspec's errors are ValueErrors too
        return None
