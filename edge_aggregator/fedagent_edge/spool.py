"""Large updates on disk until their aggregate is committed: a file per (run, round, agent).

::

    4 bytes   CRC-32 of the head
    4 bytes   length of the head, little-endian
    head      MessagePack: the offer, and the fate once there is one
    padding   up to HEAD_BYTES
    body      the update's bytes at their offsets
    flags     one byte per chunk, 1 once the chunk is written

The fate is written and the file synced before the receipt goes out. What a kill leaves
without a fate is resumed from the flags; a damaged head makes the file as good as none.
"""

import mmap
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fedagent_node.data_dir import sync_folder
from fedagent_protocol.messages import OutcomeStatus, UpdateOffer
from fedagent_protocol.tensors import Buffer
from fedagent_protocol.transfer import Layout

from .core.effects import Key

HEAD_BYTES = 4096
_SUFFIX = ".update"
MAPPED_BYTES = 256 * 1024
"""Larger updates are mapped instead of read."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a spooled update; `status` once the agent has ended.

    Attributes:
        position: Index of this update in the running sum.
    """

    run: str
    round: int
    agent: str
    offer: UpdateOffer | None = None
    status: OutcomeStatus | None = None
    reason: str = ""
    tau_ms: int = 0
    weight: float = 0.0
    norm: float = 0.0
    position: int = 0

    @property
    def key(self) -> Key:
        """What names it."""
        return (self.run, self.round, self.agent)


@dataclass(frozen=True, slots=True)
class Recovered:
    """An update found after a restart.

    Attributes:
        have: Chunks on disk of an unfinished one.
        whole: Its bytes, when they were in the journal.
    """

    head: Head
    have: set[int] = field(default_factory=set)
    whole: bytes | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Head)


class Spool:
    """The spool directory of one edge; every call opens and closes its file.

    Files of different agents may be used from different threads.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._used = True

    def begin(self, key: Key, offer: UpdateOffer) -> None:
        """Make an empty spool for an update, in place of an older one."""
        self._used = True
        path = self._path(key)
        # Not truncated: a check of the older one may have it mapped.
        path.unlink(missing_ok=True)
        run, number, agent = key
        head = _pack(Head(run=run, round=number, agent=agent, offer=offer))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            layout = Layout(offer.size, offer.chunk_bytes)
            os.ftruncate(fd, HEAD_BYTES + offer.size + layout.count)
            _write(fd, head, 0)
        finally:
            os.close(fd)

    def write(self, key: Key, layout: Layout, index: int, data: bytes) -> None:
        """Write a chunk at its offset, then its flag; not yet durable."""
        fd = os.open(self._path(key), os.O_WRONLY | os.O_CLOEXEC)
        try:
            _write(fd, data, HEAD_BYTES + layout.span(index)[0])
            _write(fd, b"\x01", HEAD_BYTES + layout.size + index)
        finally:
            os.close(fd)

    def content(self, key: Key, size: int) -> Buffer:
        """Return an update's bytes; large ones without reading them into memory.

        A mapping ends when the last view of it is gone.
        """
        fd = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if size <= MAPPED_BYTES:
                return os.pread(fd, size, HEAD_BYTES)
            mapped = mmap.mmap(fd, HEAD_BYTES + size, prot=mmap.PROT_READ)
            return memoryview(mapped)[HEAD_BYTES:]
        finally:
            os.close(fd)

    def settle(self, head: Head) -> None:
        """Make an update durable together with its fate."""
        fd = os.open(self._path(head.key), os.O_WRONLY | os.O_CLOEXEC)
        try:
            _write(fd, _pack(head), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_folder(self._directory)

    def drop(self, key: Key) -> None:
        """Remove what there is of an agent."""
        self._path(key).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove everything."""
        if not self._used:
            return
        for path in self._directory.glob(f"*{_SUFFIX}"):
            path.unlink(missing_ok=True)
        self._used = False

    def recover(self, run: str, number: int) -> list[Recovered]:
        """Return what there is of a round; remove the rest."""
        found: list[Recovered] = []
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            head = _read_head(path)
            if head is None or head.key[:2] != (run, number) or self._path(head.key) != path:
                path.unlink(missing_ok=True)
                continue
            have = _read_flags(path, head.offer) if head.status is None else set()
            found.append(Recovered(head, have))
        return found

    def _path(self, key: Key) -> Path:
        run, number, agent = key
        return self._directory / f"{run}-{number}-{agent}{_SUFFIX}"


def _pack(head: Head) -> bytes:
    body = _encoder.encode(head)
    assert len(body) <= HEAD_BYTES - 8, "a head has no unbounded field"
    return zlib.crc32(body).to_bytes(4, "little") + len(body).to_bytes(4, "little") + body


def _read_head(path: Path) -> Head | None:
    with path.open("rb") as file:
        start = file.read(HEAD_BYTES)
    length = int.from_bytes(start[4:8], "little")
    body = start[8 : 8 + length]
    if zlib.crc32(body) != int.from_bytes(start[:4], "little") or not body:
        return None
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, ValueError):
        return None


def _read_flags(path: Path, offer: UpdateOffer | None) -> set[int]:
    if offer is None:
        return set()
    layout = Layout(offer.size, offer.chunk_bytes)
    with path.open("rb") as file:
        file.seek(HEAD_BYTES + layout.size)
        flags = file.read(layout.count)
    return {index for index, flag in enumerate(flags) if flag}


def _write(fd: int, data: bytes, offset: int) -> None:
    """Write all of it: a full disk may take a part."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written
