"""The open round in one append-only file: its order, small updates, and who ended how.

::

    record    12 bytes (CRC-32 of the head, length of head, length of data), head, data
    first     head is the order
    others    head is an agent's fate, data the update if it is one of few bytes

Appending costs one sync for all updates that were complete together, where a file for
each would cost two. A torn record at the end was never receipted, and is cut off.
"""

import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fedagent_node.data_dir import sync_folder
from fedagent_protocol.messages import RoundOrder

from .spool import Head

_FRAME_BYTES = 12


class OpenRound(msgspec.Struct, frozen=True, kw_only=True):
    """A round that was ordered; `began_at` is on the monotonic clock of `boot`."""

    run: str
    boot: str
    order: RoundOrder
    base: str
    began_at: float


@dataclass(frozen=True, slots=True)
class Contents:
    """What a journal holds after a restart."""

    opened: OpenRound | None = None
    entries: list[tuple[Head, bytes]] = field(default_factory=list)


_encoder = msgspec.msgpack.Encoder()
_rounds = msgspec.msgpack.Decoder(OpenRound)
_heads = msgspec.msgpack.Decoder(Head)


class Journal:
    """One file, open for the life of the process.

    Raises:
        OSError: The disk refused; any method may raise it.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = not path.exists()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._end = os.fstat(self._fd).st_size
        self._dirty = False
        if fresh:
            sync_folder(path.parent)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        """Close with the runtime that was dropped."""
        self.close()

    def begin(self, opened: OpenRound) -> None:
        """Forget the last round, and note the order of this one.

        It survives a kill at once, and a power cut from the first `sync` on, which comes
        before anything is promised to an agent.
        """
        self.clear()
        self._append(_encoder.encode(opened), b"")

    def append(self, head: Head, data: bytes = b"") -> None:
        """Note an agent's fate, with its update or without; not yet durable."""
        self._append(_encoder.encode(head), data)

    def sync(self) -> None:
        """Make everything durable."""
        if not self._dirty:
            return
        # First, so that what another thread appends meanwhile is not taken for synced.
        self._dirty = False
        try:
            os.fdatasync(self._fd)
        except OSError:
            self._dirty = True
            raise

    def clear(self) -> None:
        """Forget the round."""
        if self._end:
            os.ftruncate(self._fd, 0)
            self._end = 0

    def read(self) -> Contents:
        """Return what is whole; cut off what is not."""
        data = os.pread(self._fd, self._end, 0)
        contents, position = Contents(), 0
        while (record := _record(data, position)) is not None:
            head, body, following = record
            try:
                if position == 0:
                    contents = Contents(_rounds.decode(head))
                else:
                    contents.entries.append((_heads.decode(head), body))
            except (msgspec.DecodeError, ValueError):
                break
            position = following
        if position != self._end:
            os.ftruncate(self._fd, position)
            self._end = position
        return contents

    def _append(self, head: bytes, data: bytes) -> None:
        frame = (zlib.crc32(head), len(head), len(data))
        record = b"".join((*(number.to_bytes(4, "little") for number in frame), head, data))
        rest, offset = memoryview(record), self._end
        try:
            while rest:
                written = os.pwrite(self._fd, rest, offset)
                rest, offset = rest[written:], offset + written
        except OSError:
            # A torn record would hide what is appended after it.
            os.ftruncate(self._fd, self._end)
            raise
        self._end = offset
        self._dirty = True


def _record(data: bytes, position: int) -> tuple[bytes, bytes, int] | None:
    """Return head, data and the position after a whole record, or None."""
    start = position + _FRAME_BYTES
    if start > len(data):
        return None
    frame = data[position:start]
    crc, head_bytes, data_bytes = (int.from_bytes(frame[i : i + 4], "little") for i in (0, 4, 8))
    middle, end = start + head_bytes, start + head_bytes + data_bytes
    head = data[start:middle]
    if end > len(data) or zlib.crc32(head) != crc:
        return None
    return head, data[middle:end], end
