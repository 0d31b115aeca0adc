"""The open round on disk: a journal of who ended how, and a file for each large update.

The journal is append-only. One sync serves all updates that were complete together, where
a file for each would cost two; a torn record at the end was never receipted, and is cut off::

    record    12 bytes (CRC-32 of the head, length of head, length of data), head, data
    first     head is the `OpenRound`
    others    head is an `UpdateRecord`, data the update if it is one of few bytes

A file is for one large update, named by (run, round, agent)::

    4 bytes   CRC-32 of the head
    4 bytes   length of the head, little-endian
    head      MessagePack: the `UpdateRecord`, with a status once there is one
    padding   up to HEAD_BYTES
    body      the update's bytes at their offsets
    flags     one byte per chunk, 1 once the chunk is written

The status is written and the file synced before the receipt goes out. What a kill leaves
without one is resumed from the flags; a damaged head makes the file as good as none.
"""

import errno
import mmap
import os
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fedagent_node.data_dir import sync_folder
from fedagent_protocol.messages import UpdateOffer
from fedagent_protocol.tensors import Buffer
from fedagent_protocol.transfer import Layout

from .core.effects import Key, OpenRound, UpdateRecord

HEAD_BYTES = 4096
MAPPED_BYTES = 256 * 1024
"""Larger updates are mapped instead of read."""
_FRAME_BYTES = 12
_SUFFIX = ".update"

_encoder = msgspec.msgpack.Encoder()
_rounds = msgspec.msgpack.Decoder(OpenRound)
_records = msgspec.msgpack.Decoder(UpdateRecord)


class Journal:
    """The round's journal, open for the life of the process; the disk may refuse: `OSError`."""

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
        self.close()

    def begin(self, opened: OpenRound) -> None:
        """Forget the last round, and note the order of this one.

        It survives a kill at once, and a power cut from the first `sync` on, which comes
        before anything is promised to an agent.
        """
        self.clear()
        self.append(opened)

    def append(self, head: OpenRound | UpdateRecord, data: bytes = b"") -> None:
        """Add a record; not yet durable."""
        packed = _encoder.encode(head)
        frame = (zlib.crc32(packed), len(packed), len(data))
        numbers = (number.to_bytes(4, "little") for number in frame)
        record = b"".join((*numbers, packed, data))
        try:
            _write(self._fd, record, self._end)
        except OSError:
            # A torn record would hide what is appended after it.
            os.ftruncate(self._fd, self._end)
            raise
        self._end += len(record)
        self._dirty = True

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

    def updates(self) -> dict[str, memoryview]:
        """Return the data of admitted updates by agent, mapped; the newest of each."""
        if not self._end:
            return {}
        mapped = memoryview(mmap.mmap(self._fd, self._end, prot=mmap.PROT_READ))
        found: dict[str, memoryview] = {}
        position = 0
        while (record := _record(mapped, position)) is not None:
            head, body, following = record
            if position and len(body):
                found[_records.decode(head).agent] = body
            position = following
        return found

    def read(self) -> tuple[OpenRound | None, list[tuple[UpdateRecord, bytes]]]:
        """Return what is whole; cut off what is not."""
        data = memoryview(os.pread(self._fd, self._end, 0))
        opened: OpenRound | None = None
        updates: list[tuple[UpdateRecord, bytes]] = []
        position = 0
        while (record := _record(data, position)) is not None:
            head, body, following = record
            try:
                if opened is None:
                    opened = _rounds.decode(head)
                else:
                    updates.append((_records.decode(head), bytes(body)))
            except (msgspec.DecodeError, ValueError):
                break
            position = following
        if position != self._end:
            os.ftruncate(self._fd, position)
            self._end = position
        return opened, updates


def _record(data: memoryview, position: int) -> tuple[memoryview, memoryview, int] | None:
    """Return head, data and the position after a record, if it is whole."""
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


class Spool:
    """The folder of large updates; files of different agents may be used from different threads."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._any = directory, directory / "any"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._used = True

    def begin(self, key: Key, offer: UpdateOffer) -> None:
        """Make an empty file for an update, in place of an older one."""
        self._used = True
        path = self._path(key)
        # Not truncated: a check of the older one may have it mapped.
        path.unlink(missing_ok=True)
        run, number, agent = key
        head = _pack(UpdateRecord(run=run, round=number, agent=agent, offer=offer))
        with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            layout = Layout(offer.size, offer.chunk_bytes)
            os.ftruncate(fd, HEAD_BYTES + offer.size + layout.count)
            _write(fd, head, 0)

    def write(self, key: Key, layout: Layout, index: int, data: bytes) -> None:
        """Write a chunk at its offset, then its flag; not yet durable."""
        with _opened(self._path(key), os.O_WRONLY) as fd:
            _write(fd, data, HEAD_BYTES + layout.span(index)[0])
            _write(fd, b"\x01", HEAD_BYTES + layout.size + index)

    def content(self, key: Key, size: int) -> Buffer:
        """Return an update's bytes; large ones are mapped until the last view of them is gone."""
        with _opened(self._path(key), os.O_RDONLY) as fd:
            if size <= MAPPED_BYTES:
                return os.pread(fd, size, HEAD_BYTES)
            mapped = mmap.mmap(fd, HEAD_BYTES + size, prot=mmap.PROT_READ)
            return memoryview(mapped)[HEAD_BYTES:]

    def whole(self, key: Key) -> Buffer:
        """Return the bytes of an update that was settled."""
        record = _read_head(self._path(key))
        if record is None or record.offer is None:
            raise OSError(errno.EIO, "the head of an update is damaged")
        return self.content(key, record.offer.size)

    def settle(self, record: UpdateRecord) -> None:
        """Make an update durable together with its status."""
        with _opened(self._path(record.key), os.O_WRONLY) as fd:
            _write(fd, _pack(record), 0)
            os.fsync(fd)
        sync_folder(self._directory)

    def drop(self, key: Key) -> None:
        """Remove what there is of an agent."""
        self._path(key).unlink(missing_ok=True)

    def move(self, old: Key, key: Key, offer: UpdateOffer) -> None:
        """Give what there is of an update to a later round."""
        self._used = True
        run, number, agent = key
        head = _pack(UpdateRecord(run=run, round=number, agent=agent, offer=offer))
        with _opened(self._path(old), os.O_WRONLY) as fd:
            _write(fd, head, 0)
        self._path(old).rename(self._path(key))

    def clear(self, kept: Collection[Key] = ()) -> None:
        """Remove everything but what is kept for later rounds."""
        if not self._used:
            return
        names = {self._path(key) for key in kept}
        for path in self._directory.glob(f"*{_SUFFIX}"):
            if path not in names:
                path.unlink(missing_ok=True)
        self._used = bool(names)

    def recover(self, run: str, number: int) -> list[tuple[UpdateRecord, set[int]]]:
        """Return the updates of a round, with the chunks of unfinished ones; remove the rest."""
        found: list[tuple[UpdateRecord, set[int]]] = []
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            record = _read_head(path)
            if record is None or record.key[:2] != (run, number) or self._path(record.key) != path:
                path.unlink(missing_ok=True)
                continue
            found.append((record, _read_flags(path, record)))
        return found

    def _path(self, key: Key) -> Path:
        run, number, agent = key
        return self._any.with_name(f"{run}-{number}-{agent}{_SUFFIX}")


def _pack(record: UpdateRecord) -> bytes:
    body = _encoder.encode(record)
    assert len(body) <= HEAD_BYTES - 8, "a record has no unbounded field"
    return zlib.crc32(body).to_bytes(4, "little") + len(body).to_bytes(4, "little") + body


def _read_head(path: Path) -> UpdateRecord | None:
    with path.open("rb") as file:
        start = file.read(HEAD_BYTES)
    length = int.from_bytes(start[4:8], "little")
    body = start[8 : 8 + length]
    if zlib.crc32(body) != int.from_bytes(start[:4], "little") or not body:
        return None
    try:
        return _records.decode(body)
    except (msgspec.DecodeError, ValueError):
        return None


def _read_flags(path: Path, record: UpdateRecord) -> set[int]:
    if record.status is not None or record.offer is None:
        return set()
    layout = Layout(record.offer.size, record.offer.chunk_bytes)
    with path.open("rb") as file:
        file.seek(HEAD_BYTES + layout.size)
        flags = file.read(layout.count)
    return {index for index, flag in enumerate(flags) if flag}


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _write(fd: int, data: bytes, offset: int) -> None:
    """Write all of it: a full disk may take a part."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written
