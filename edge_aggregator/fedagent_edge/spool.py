"""The open round on disk: a journal of who ended how, and a file for each large update.

The journal is append-only. One sync serves all updates that were complete together, where
a file for each would cost two; a torn record at the end was never receipted, and is cut off::

    record    12 bytes (CRC-32 of the head, length of head, length of data), head, data
    first     head is the `OpenRound`
    others    head is an `UpdateRecord`, data the update if it is one of few bytes

A file is for one large update, named by agent and digest: one that a round's end interrupts goes on
in a later round. It is synced before the journal has that its update is whole, and this before the
receipt goes out.
"""

import itertools
import mmap
import os
import threading
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fedagent_node.data_dir import sync_folder

from .core.effects import File, Key, OpenRound, UpdateRecord

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
        self._lock = threading.RLock()  # large updates are admitted in a thread
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
        with self._lock:
            self.clear()
            self.append(opened)

    def append(self, head: OpenRound | UpdateRecord, data: bytes = b"") -> None:
        """Add a record; not yet durable."""
        packed = _encoder.encode(head)
        frame = (zlib.crc32(packed), len(packed), len(data))
        numbers = (number.to_bytes(4, "little") for number in frame)
        record = b"".join((*numbers, packed, data))
        with self._lock:
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
        with self._lock:
            if self._end:
                os.ftruncate(self._fd, 0)
                self._end = 0

    def updates(self) -> dict[Key, memoryview]:
        """Return the data of admitted updates, mapped; the newest of each."""
        if not self._end:
            return {}
        mapped = memoryview(mmap.mmap(self._fd, self._end, prot=mmap.PROT_READ))
        records = itertools.islice(_records_in(mapped), 1, None)
        return {_records.decode(head).key: body for head, body, _ in records if len(body)}

    def read(self) -> tuple[OpenRound | None, list[tuple[UpdateRecord, bytes]]]:
        """Return the round and the newest record of each agent; cut off what is not whole.

        They are in the order in which they were written.
        """
        opened: OpenRound | None = None
        found: dict[Key, tuple[UpdateRecord, bytes]] = {}
        whole = 0
        try:
            for head, body, end in _records_in(memoryview(os.pread(self._fd, self._end, 0))):
                if opened is None:
                    opened = _rounds.decode(head)
                else:
                    record = _records.decode(head)
                    found.pop(record.key, None)
                    found[record.key] = record, bytes(body)
                whole = end
        except (msgspec.DecodeError, ValueError):
            pass
        if whole != self._end:
            os.ftruncate(self._fd, whole)
            self._end = whole
        # A check that outlived its round may have written here.
        ours = (opened.run, opened.order.round) if opened is not None else None
        return opened, [one for key, one in found.items() if key[:2] == ours]


def _records_in(data: memoryview) -> Iterator[tuple[memoryview, memoryview, int]]:
    """Yield head, data and end of each record that is whole."""
    position = 0
    while (start := position + _FRAME_BYTES) <= len(data):
        frame = data[position:start]
        crc, length, more = (int.from_bytes(frame[i : i + 4], "little") for i in (0, 4, 8))
        middle, position = start + length, start + length + more
        head = data[start:middle]
        if position > len(data) or zlib.crc32(head) != crc:
            return
        yield head, data[middle:position], position


class Spool:
    """The folder of large updates; files of different agents may be used from different threads."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._any = directory, directory / "any"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, file: File, offset: int, data: bytes) -> None:
        """Write a chunk at its offset; not yet durable."""
        with _opened(self._path(file), os.O_WRONLY | os.O_CREAT) as fd:
            _write(fd, data, offset)

    def content(self, file: File) -> memoryview:
        """Return an update's bytes, mapped until the last view of them is gone."""
        with _opened(self._path(file), os.O_RDONLY) as fd:
            return memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))

    def sync(self, file: File) -> None:
        """Make an update durable."""
        with _opened(self._path(file), os.O_WRONLY) as fd:
            os.fsync(fd)
        sync_folder(self._directory)

    def drop(self, file: File) -> None:
        """Remove an update."""
        self._path(file).unlink(missing_ok=True)

    def clear(self, kept: Collection[File]) -> None:
        """Remove everything but what is kept."""
        names = {self._path(file) for file in kept}
        for path in self._directory.glob(f"*{_SUFFIX}"):
            if path not in names:
                path.unlink(missing_ok=True)

    def _path(self, file: File) -> Path:
        return self._any.with_name(f"{'-'.join(file)}{_SUFFIX}")


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
