"""The models an agent got: small ones in memory, big ones as files that survive a restart.

A cache: nothing is synced, and whatever is used hashes to its name. A big model on its
way in is a file of its chunks and a list of those that are there, so that a transfer
goes on where a killed process left it.
"""

import hashlib
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedagent_node.data_dir import passing
from fedagent_protocol.transfer import Layout

MEMORY_BYTES = 1 << 20
KEPT = 2
_HEAD = struct.Struct("<QI")
_INDEX = struct.Struct("<I")


@dataclass(slots=True)
class _Part:
    """A model on its way in. Chunks are hashed in order, as soon as they can be."""

    layout: Layout
    memory: bytearray | None
    have: set[int] = field(default_factory=set)
    hashed: int = 0
    hasher: "hashlib._Hash" = field(default_factory=hashlib.sha256)


class ModelsCache:
    """The newest models, by digest; files that are not used any more are removed."""

    def __init__(
        self, folder: Path, *, checkpoint: Callable[[str], None], memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._checkpoint = checkpoint
        self._memory: dict[str, bytes] = {}
        self._files: dict[str, None] = {}
        self._parts: dict[str, _Part] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def open(self, digest: str, size: int, chunk_bytes: int) -> frozenset[int] | None:
        """Begin or go on to receive a model; return its chunks that are here, None for all.

        Raises:
            OSError: The disk refused; see `discard`.
        """
        if self._whole(digest, size):
            return None
        layout = Layout(size, chunk_bytes)
        part = self._parts.get(digest)
        if part is None or part.layout != layout:
            self._parts.clear()
            memory = bytearray(size) if size <= self._memory_bytes else None
            part = self._parts[digest] = _Part(layout, memory)
            if memory is None:
                self._resume(digest, part)
        return frozenset(part.have)

    def write(self, digest: str, offset: int, data: bytes) -> None:
        """Take a chunk whose length was checked; `OSError` as in `open`."""
        part = self._parts.get(digest)
        if part is None:
            return
        index = offset // part.layout.chunk_bytes
        part.have.add(index)
        if part.memory is not None:
            part.memory[offset : offset + len(data)] = data
            return
        with self._part_path(digest).open("r+b", buffering=0) as file:
            file.seek(offset)
            file.write(data)
        self._checkpoint("agent.model.chunk-written")
        with self._list_path(digest).open("ab", buffering=0) as file:
            file.write(_INDEX.pack(index))
        self._hash_on(digest, part, index, data)

    def finish(self, digest: str) -> int:
        """Make a complete model usable; return its size, 0 if it is not what it is called."""
        part = self._parts.pop(digest, None)
        if part is None:
            return 0
        if part.memory is not None:
            if hashlib.sha256(part.memory).hexdigest() != digest:
                return 0
            self._memory[digest] = bytes(part.memory)
            while len(self._memory) > KEPT:
                del self._memory[next(iter(self._memory))]
            return part.layout.size
        self._list_path(digest).unlink()
        if part.hasher.hexdigest() != digest:
            self._part_path(digest).unlink()
            return 0
        os.rename(self._part_path(digest), self._path(digest))  # noqa: PTH104 - as in `passing`
        self._checkpoint("agent.model.whole")
        self._files[digest] = None
        self._trim_files()
        return part.layout.size

    def discard(self, digest: str) -> None:
        """Forget a model that the disk has no room for; it can be asked for again."""
        self._parts.pop(digest, None)
        for path in (self._part_path(digest), self._list_path(digest)):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def read(self, digest: str) -> bytes | None:
        """Return a whole model's bytes; None if it is gone."""
        if (data := self._memory.get(digest)) is not None:
            return data
        try:
            return self._path(digest).read_bytes()
        except OSError:
            return None

    def path(self, digest: str) -> Path:
        """Return a whole model's file; after an `OSError` nothing is left behind."""
        path = self._path(digest)
        if digest in self._memory and digest not in self._files:
            fresh = passing(f"{path}.new")
            try:
                fresh.write_bytes(self._memory[digest])
                os.rename(fresh, path)  # noqa: PTH104 - as in `passing`
            except OSError:
                fresh.unlink(missing_ok=True)
                raise
            self._files[digest] = None
            self._trim_files()
        return path

    def _whole(self, digest: str, size: int) -> bool:
        if digest in self._memory:
            return len(self._memory[digest]) == size
        path = self._path(digest)
        try:
            if digest in self._files:
                return path.stat().st_size == size
            with path.open("rb") as file:
                good = hashlib.file_digest(file, "sha256").hexdigest() == digest
        except OSError:
            return False
        if good:
            self._files[digest] = None
        else:
            path.unlink()
        return good

    def _resume(self, digest: str, part: _Part) -> None:
        head = _HEAD.pack(part.layout.size, part.layout.chunk_bytes)
        noted = b""
        if self._part_path(digest).exists() and self._list_path(digest).exists():
            noted = self._list_path(digest).read_bytes()
        if noted[: _HEAD.size] != head:
            self._list_path(digest).write_bytes(head)
            with self._part_path(digest).open("wb") as file:
                file.truncate(part.layout.size)
            self._trim_files()
            return
        body = noted[_HEAD.size :]
        whole = len(body) - len(body) % _INDEX.size
        indices = {index for (index,) in _INDEX.iter_unpack(body[:whole])}
        part.have = {index for index in indices if index < part.layout.count}
        self._hash_rest(digest, part)

    def _hash_on(self, digest: str, part: _Part, index: int, data: bytes) -> None:
        if index == part.hashed:
            part.hasher.update(data)
            part.hashed += 1
            self._hash_rest(digest, part)

    def _hash_rest(self, digest: str, part: _Part) -> None:
        if part.hashed not in part.have:
            return
        with self._part_path(digest).open("rb") as file:
            while part.hashed in part.have:
                start, stop = part.layout.span(part.hashed)
                file.seek(start)
                part.hasher.update(file.read(stop - start))
                part.hashed += 1

    def _trim_files(self) -> None:
        while len(self._files) > KEPT:
            del self._files[next(iter(self._files))]
        for path in self._folder.iterdir():
            _, digest, part = f"{path.name}..".split(".")[:3]
            if digest not in (self._parts if part else self._files):
                path.unlink()

    def _path(self, digest: str) -> Path:
        return passing(f"{self._folder}/model.{digest}")

    def _part_path(self, digest: str) -> Path:
        return passing(f"{self._folder}/model.{digest}.part")

    def _list_path(self, digest: str) -> Path:
        return passing(f"{self._folder}/model.{digest}.have")
