"""The high-water mark: the newest entry of the ledger, beside the database and synced after it.

SQLite drops committed transactions silently when its WAL is damaged, and an old copy of a database
looks like any other. A database that has not the entry of the mark is noticed at start.
"""

import os
import zlib
from pathlib import Path

import msgspec

from fedagent_coordinator.books.ledger import GENESIS
from fedagent_node.data_dir import write_private

MARK = "coordinator.mark"
_SLOT_BYTES = 512


class HighWaterMark(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger's newest entry (0 for none), and the coordinator's signature of it."""

    seq: int = 0
    hash: str = GENESIS.hex()
    signature: bytes = b""


class MarkFile:
    """The mark on disk, opened for writing by the one coordinator; new ones hold `first`.

    Marks are written by turns to two slots, so that a torn one leaves the last that was synced.
    """

    def __init__(self, path: Path, first: HighWaterMark) -> None:
        if not path.exists():
            write_private(path, _slot(first) * 2)
        older, newer = (_parse(slot) for slot in _slots(path.read_bytes()))
        self._at = int(newer is None or (older is not None and older.seq >= newer.seq))
        self._seq = first.seq
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        os.fdatasync(self._fd)  # a killed process may have left a mark that is not synced yet

    def write(self, mark: HighWaterMark, *, synced: bool) -> None:
        """Write `mark`, if it is a newer one; without a sync a power cut may lose it."""
        if mark.seq == self._seq:
            return
        os.pwrite(self._fd, _slot(mark), self._at * _SLOT_BYTES)
        self._seq = mark.seq
        if synced:
            os.fdatasync(self._fd)
            self._at = 1 - self._at

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
    marks = [mark for mark in map(_parse, _slots(data)) if mark is not None]
    if not marks:
        raise ValueError(f"no slot of {path.name} is whole")
    return max(marks, key=lambda mark: mark.seq)


def _slots(data: bytes) -> tuple[bytes, bytes]:
    return data[:_SLOT_BYTES], data[_SLOT_BYTES : 2 * _SLOT_BYTES]


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
