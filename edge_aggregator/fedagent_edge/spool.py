"""Updates on disk until their aggregate is committed: one file per (run, round, agent).

::

    8 bytes   length of the head, little-endian
    head      MessagePack: the offer, and the verdict once there is one
    padding   up to HEAD_BYTES
    body      the update's bytes at their offsets

The verdict is written and the file synced before the receipt goes out.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fedagent_protocol.messages import UpdateOffer
from fedagent_protocol.transfer import Layout

from .core.effects import Admit, Key

HEAD_BYTES = 8192


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a spooled update; `admitted` once its receipt may go out."""

    run: str
    round: int
    agent: str
    offer: UpdateOffer
    admitted: bool = False
    tau_ms: int = 0
    weight: float = 0.0
    norm: float = 0.0
    in_time: bool = False
    order: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Head)


class Spool:
    """The spool directory of one edge."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._files: dict[Key, int] = {}
        self._admitted = 0

    def open(self, key: Key, offer: UpdateOffer) -> None:
        """Begin an update."""
        run, number, agent = key
        head = Head(run=run, round=number, agent=agent, offer=offer)
        descriptor = os.open(self._path(key), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._files[key] = descriptor
        self._write_head(descriptor, head)

    def write(self, key: Key, index: int, data: bytes, layout: Layout) -> None:
        """Write a chunk at its offset."""
        os.pwrite(self._files[key], data, HEAD_BYTES + layout.span(index)[0])

    @contextmanager
    def content(self, key: Key, size: int) -> Iterator[memoryview]:
        """Lend the update's bytes without reading them into memory."""
        descriptor = self._files[key]
        if size <= 1 << 18:
            yield memoryview(os.pread(descriptor, size, HEAD_BYTES))
            return
        # Unmapped when the last array on it is gone: tracebacks and caches may hold one.
        yield memoryview(mmap.mmap(descriptor, HEAD_BYTES + size, prot=mmap.PROT_READ))[HEAD_BYTES:]

    def admit(self, admit: Admit) -> None:
        """Make an update and its verdict durable."""
        self._admitted += 1
        run, number, agent = admit.key
        head = Head(
            run=run,
            round=number,
            agent=agent,
            offer=admit.offer,
            admitted=True,
            tau_ms=admit.tau_ms,
            weight=admit.weight,
            norm=admit.norm,
            in_time=admit.in_time,
            order=self._admitted,
        )
        descriptor = self._files[admit.key]
        self._write_head(descriptor, head)
        os.fsync(descriptor)

    def drop(self, key: Key) -> None:
        """Remove an update."""
        descriptor = self._files.pop(key, None)
        if descriptor is not None:
            os.close(descriptor)
        self._path(key).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove everything."""
        for key in list(self._files):
            self.drop(key)
        for path in self._directory.glob("*.update"):
            path.unlink(missing_ok=True)

    def recover(self, run: str, number: int) -> list[Head]:
        """Open the admitted updates of a round, in the order they were admitted.

        What was not admitted has no receipt; its agent offers it again.
        """
        heads = []
        for path in sorted(self._directory.glob("*.update")):
            head = self._read_head(path)
            if head is None or not head.admitted or (head.run, head.round) != (run, number):
                path.unlink(missing_ok=True)
                continue
            key = (head.run, head.round, head.agent)
            self._files[key] = os.open(path, os.O_RDWR)
            heads.append(head)
        heads.sort(key=lambda head: head.order)
        self._admitted = max((head.order for head in heads), default=0)
        return heads

    def close(self) -> None:
        """Close all files, leaving them on disk."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _path(self, key: Key) -> Path:
        run, number, agent = key
        return self._directory / f"{run}-{number}-{agent}.update"

    @staticmethod
    def _write_head(descriptor: int, head: Head) -> None:
        body = _encoder.encode(head)
        assert len(body) <= HEAD_BYTES - 8, "a head would run into the update"
        os.pwrite(descriptor, len(body).to_bytes(8, "little") + body, 0)

    @staticmethod
    def _read_head(path: Path) -> Head | None:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= HEAD_BYTES - 8:
                return None
            try:
                return _decoder.decode(file.read(length))
            except (msgspec.DecodeError, ValueError):
                return None
