"""The models an agent got: files that survive a restart, the newest few of them.

A cache: nothing is synced, and whatever is used hashes to its name. What a killed process left of a
model that came in is begun anew.
"""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedagent_node.data_dir import passing
from fedagent_protocol.failpoints import Checkpoint
from fedagent_protocol.transfer import Layout

KEPT = 2


@dataclass(slots=True)
class _Part:
    """A model on its way in."""

    layout: Layout
    have: set[int] = field(default_factory=set)


@dataclass(slots=True)
class ModelsCache:
    """The newest models, by digest; files that are not used any more are removed."""

    _folder: Path
    _checkpoint: Checkpoint
    _whole: dict[str, None] = field(default_factory=dict)
    """Models whose files were looked at, oldest first."""
    _part: tuple[str, _Part] | None = None

    def __post_init__(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def open(self, digest: str, size: int, chunk_bytes: int) -> frozenset[int] | None:
        """Begin or go on to receive a model; return its chunks that are here, None for all.

        Raises:
            OSError: The disk refused; see `discard`.
        """
        if self._is_whole(digest, size):
            return None
        layout = Layout(size, chunk_bytes)
        part = self._of(digest)
        if part is None or part.layout != layout:
            part = _Part(layout)
            self._part = digest, part
            with self._file(digest, ".part").open("wb") as file:
                file.truncate(size)
            self._trim()
        return frozenset(part.have)

    def write(self, digest: str, offset: int, data: bytes) -> None:
        """Take a chunk whose length was checked; `OSError` as in `open`."""
        part = self._of(digest)
        if part is None:
            return
        part.have.add(offset // part.layout.chunk_bytes)
        with self._file(digest, ".part").open("r+b", buffering=0) as file:
            file.seek(offset)
            file.write(data)
        self._checkpoint("agent.model.chunk-written")

    def finish(self, digest: str) -> int:
        """Make a complete model usable; return its size, 0 if it is not what it is called."""
        part, self._part = self._of(digest), None
        if part is None:
            return 0
        came = self._file(digest, ".part")
        if not _is(came, digest):
            came.unlink()
            return 0
        os.rename(came, self.path(digest))  # noqa: PTH104 - as in `passing`
        self._checkpoint("agent.model.whole")
        self._whole[digest] = None
        self._trim()
        return part.layout.size

    def discard(self, digest: str) -> None:
        """Forget a model that the disk has no room for; it can be asked for again."""
        self._part = None
        with suppress(OSError):
            self._file(digest, ".part").unlink(missing_ok=True)

    def path(self, digest: str) -> Path:
        """Return a whole model's file."""
        return self._file(digest)

    def _of(self, digest: str) -> _Part | None:
        return self._part[1] if self._part is not None and self._part[0] == digest else None

    def _is_whole(self, digest: str, size: int) -> bool:
        path = self.path(digest)
        try:
            if digest in self._whole:
                return path.stat().st_size == size
            good = _is(path, digest)
        except OSError:
            return False
        if good:
            self._whole[digest] = None
        else:
            path.unlink()
        return good

    def _trim(self) -> None:
        """Remove all files but those of the newest models and of the one that comes in."""
        while len(self._whole) > KEPT:
            del self._whole[next(iter(self._whole))]
        for path in self._folder.iterdir():
            _, digest, part = f"{path.name}..".split(".")[:3]
            if self._of(digest) is None if part else digest not in self._whole:
                path.unlink()

    def _file(self, digest: str, end: str = "") -> Path:
        return passing(f"{self._folder}/model.{digest}{end}")


def _is(path: Path, digest: str) -> bool:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest
