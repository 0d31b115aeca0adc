"""What an edge keeps on disk beside models: a journal, and a file for each large update.

The journal is append-only, and one sync makes all durable that came before it. A torn record at the
end was never promised to anybody, and is cut off::

    record    12 bytes (CRC-32 of the head, length of head, length of data), head, data
    head      a `Memory`, an `OpenRound` or an `Ended`
    data      the model of a memory, the update of an end: if they are small, and new here

The newest memory holds. A round is open until a memory says otherwise. Between rounds a journal
that has become long is begun again with its memory alone.

A file is for one large update, named by agent and digest: one that a round's end interrupts goes on
in a later round. It is synced before the journal has that its update is whole, and this before the
receipt goes out.
"""

import logging
import mmap
import os
import threading
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fedagent_node.data_dir import sync_folder, write_private

from .core.effects import Ended, File, Key, Memory, OpenRound, Record

_log = logging.getLogger(__name__)

FOLD_BYTES = 4 << 20
"""A longer journal is begun again: some dozens of rounds, read at once at the next start."""
_FRAME_BYTES = 12
_SUFFIX = ".update"

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)

Place = tuple[int, int]
"""Offset and size of data in the journal."""


@dataclass(slots=True)
class Found:
    """The newest memory and its model; of the round that is open, who ended and where updates are.

    They are in the order in which they were written, the newest of each agent.
    """

    memory: Memory = field(default_factory=Memory)
    model: bytes = b""
    opened: OpenRound | None = None
    ended: dict[Key, tuple[Ended, Place]] = field(default_factory=dict)

    def take(self, record: Record, data: memoryview, place: Place) -> None:
        """Take in the next record."""
        match record:
            case Memory():
                before = self.memory
                self.memory = replace(record, body=record.body or before.body)
                if record.model != before.model:
                    self.model = bytes(data)
                if self.opened is None or self.opened.order.round != record.open_round:
                    self.opened, self.ended = None, {}
            case OpenRound():
                self.opened, self.ended = record, {}
            case Ended() if self.opened is not None:
                # A check that outlived its round may have written here.
                if record.key[:2] == (self.opened.run, self.opened.order.round):
                    self.ended.pop(record.key, None)
                    self.ended[record.key] = record, place


class Journal:
    """The edge's journal, open for the life of the process; the disk may refuse: `OSError`."""

    def __init__(self, path: Path) -> None:
        self._path, self._fd, self._doubted = path, -1, False
        self._lock = threading.RLock()  # large updates are admitted in a thread
        if path.exists():
            self._open()
        else:
            self.begin_with(framed(Memory()))

    def _open(self) -> None:
        self.close()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._end = os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the file. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    @property
    def is_long(self) -> bool:
        """Whether it is time to begin again."""
        return self._end > FOLD_BYTES

    def append(self, record: Record, data: bytes = b"") -> Place:
        """Add a record, not yet durable; return where its data is."""
        whole = framed(record, data)
        with self._lock:
            try:
                _write(self._fd, whole, self._end)
            except OSError:
                # A torn record would hide what is appended after it.
                os.ftruncate(self._fd, self._end)
                raise
            self._end += len(whole)
            return self._end - len(data), len(data)

    def sync(self) -> None:
        """Make everything durable."""
        with self._lock:
            if self._doubted:
                # The kernel may have let go of what a failed sync was of.
                self.begin_with(self._content())
                return
            fd = os.dup(self._fd)
        try:
            # Not under the lock: others append meanwhile.
            os.fdatasync(fd)
        except OSError:
            self._doubted = True
            raise
        finally:
            os.close(fd)

    def data(self, place: Place) -> bytes:
        """Return the data of a record."""
        offset, size = place
        with self._lock:
            return os.pread(self._fd, size, offset)

    def begin_with(self, content: bytes | memoryview) -> None:
        """Begin again with a memory alone, or with all of it; durably, or not at all."""
        with self._lock:
            try:
                write_private(self._path, (content,))
                self._doubted = False
            finally:
                self._open()

    def _content(self) -> memoryview:
        # A read gives 2 GiB at most.
        return memoryview(mmap.mmap(self._fd, self._end, prot=mmap.PROT_READ))

    def read(self) -> Found:
        """Return what holds, durable from now on; cut off what is not whole.

        Raises:
            ValueError: It does not begin with a record.
        """
        found, whole = Found(), 0
        for record, place, data in _records_in(self._content()):
            found.take(record, data, place)
            whole = sum(place)
        if not whole:
            raise ValueError("it does not begin with a record")
        if whole != self._end:
            lost, self._end = self._end - whole, whole
            _log.warning(
                "%s: its last %d bytes are not whole and are cut off: after a power cut nobody was "
                "promised what they hold, without one the disk is damaged",
                *(self._path, lost),
            )
            os.ftruncate(self._fd, whole)
        self.sync()  # a kill may have come before it
        return found


def framed(record: Record, data: bytes = b"") -> bytes:
    """Return a record as it is in the journal."""
    packed = _encoder.encode(record)
    frame = (zlib.crc32(packed), len(packed), len(data))
    return b"".join((*(number.to_bytes(4, "little") for number in frame), packed, data))


def _records_in(data: memoryview) -> Iterator[tuple[Record, Place, memoryview]]:
    """Yield each record that is whole, where its data is, and this."""
    position = 0
    while (start := position + _FRAME_BYTES) <= len(data):
        frame = data[position:start]
        crc, length, size = (int.from_bytes(frame[i : i + 4], "little") for i in (0, 4, 8))
        middle, position = start + length, start + length + size
        head = data[start:middle]
        if position > len(data) or zlib.crc32(head) != crc:
            return
        try:
            record = _decoder.decode(head)
        except (msgspec.DecodeError, ValueError):
            return
        yield record, (middle, size), data[middle:position]


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

    def sync(self, *files: File) -> None:
        """Make updates durable, their names with one sync for all."""
        for file in files:
            with _opened(self._path(file), os.O_WRONLY) as fd:
                os.fsync(fd)
        if files:
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


def try_room(directory: Path, size: int) -> str:
    """Return why a folder's disk has no room for so many bytes; empty if it has."""
    trial = directory / "room.trial"
    try:
        with _opened(trial, os.O_WRONLY | os.O_CREAT) as fd:
            os.posix_fallocate(fd, 0, size)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        trial.unlink(missing_ok=True)
    return ""
