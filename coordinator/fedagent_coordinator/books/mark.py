"""The high-water mark: how far the database had come, beside it and synced after every commit."""

import os
import zlib
from pathlib import Path

import msgspec

from fedagent_coordinator.books.ledger import GENESIS
from fedagent_node.data_dir import write_private

MARK = "coordinator.mark"
_SLOT_BYTES = 512


class HighWaterMark(msgspec.Struct, frozen=True, kw_only=True):
    """How far the database had come: transactions, and the ledger's last entry (0 for none).

    `signature` is the coordinator's, of the head.
    """

    commits: int = 0
    seq: int = 0
    hash: str = GENESIS.hex()
    signature: bytes = b""


class MarkFile:
    """The mark on disk, opened for writing by the one coordinator; new ones hold `first`."""

    def __init__(self, path: Path, first: HighWaterMark) -> None:
        if not path.exists():
            write_private(path, _slot(first) * 2)
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
