"""The models an agent got: files that survive a restart, the newest few of them.

A cache: nothing is synced, and whatever is used hashes to its name. What a killed process left of a
model that came in is begun anew. A model of one chunk stays in memory: a restart costs less than
writing each of them.
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
class ModelsCache:
    """The newest models, by digest; what is not used any more is removed."""

    _folder: Path
    _checkpoint: Checkpoint
    _to_disk: bool = False
    """Also what would have room in memory."""
    _whole: dict[str, bool] = field(default_factory=dict)
    """Oldest first; whether a model was seen to hash to its name since the start."""
    _coming: tuple[str, Layout] | None = None
    _have: set[int] = field(default_factory=set)
    _small: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self._folder.iterdir(), key=lambda one: one.lstat().st_mtime_ns):
            if path.suffix == ".part":
                path.unlink()
            else:
                self._keep(path.name.partition(".")[2], seen=False)

    def open(self, digest: str, size: int, chunk_bytes: int) -> frozenset[int] | None:
        """Begin or go on to receive a model; return its chunks that are here, None for all.

        Raises:
            OSError: The disk refused; see `discard`.
        """
        if self._is_whole(digest, size):
            return None
        coming = digest, Layout(size, chunk_bytes)
        if self._coming != coming:
            if self._coming is not None:
                self._part(self._coming[0]).unlink(missing_ok=True)
            self._coming, self._have = coming, set()
        return frozenset(self._have)

    def write(self, digest: str, offset: int, data: bytes) -> None:
        """Take chunks whose length was checked; `OSError` as in `open`."""
        if self._coming is None or self._coming[0] != digest:
            return
        layout = self._coming[1]
        if len(data) == layout.size and not self._to_disk:
            self._small[digest] = data
            return
        self._have.update(layout.check(offset // layout.chunk_bytes, len(data)))
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        with os.fdopen(os.open(self._part(digest), flags, 0o600), "wb") as file:
            file.seek(offset)
            file.write(data)
        self._checkpoint("agent.model.chunk-written")

    def finish(self, digest: str) -> int:
        """Make a complete model usable; return its size, 0 if it is not what it is called."""
        coming, self._coming = self._coming, None
        if coming is None or coming[0] != digest:
            return 0
        if (small := self._small.get(digest)) is not None:
            if hashlib.sha256(small).hexdigest() != digest:
                del self._small[digest]
                return 0
        else:
            part = self._part(digest)
            if not is_named(part, digest):
                part.unlink()
                return 0
            os.rename(part, self.path(digest))  # noqa: PTH104 - as in `passing`
            self._checkpoint("agent.model.whole")
        self._keep(digest, seen=True)
        return coming[1].size

    def discard(self, digest: str) -> None:
        """Forget a model that the disk has no room for; it can be asked for again."""
        self._coming = None
        with suppress(OSError):
            self._part(digest).unlink(missing_ok=True)

    def small(self, digest: str) -> bytes:
        """Return a model that is held in memory; nothing of one that is a file."""
        return self._small.get(digest, b"")

    def path(self, digest: str) -> Path:
        """Return the file of a whole model that is not in memory."""
        return passing(f"{self._folder}/model.{digest}")

    def _part(self, digest: str) -> Path:
        return passing(f"{self._folder}/model.{digest}.part")

    def _is_whole(self, digest: str, size: int) -> bool:
        if digest not in self._whole:
            return False
        if digest in self._small:
            return len(self._small[digest]) == size
        path = self.path(digest)
        try:
            if self._whole[digest]:
                return path.stat().st_size == size
            good = self._whole[digest] = is_named(path, digest)
        except OSError:
            return False
        if not good:
            del self._whole[digest]
            path.unlink()
        return good

    def _keep(self, digest: str, *, seen: bool) -> None:
        self._whole[digest] = seen
        while len(self._whole) > KEPT:
            oldest = next(iter(self._whole))
            del self._whole[oldest]
            if self._small.pop(oldest, None) is None:
                self.path(oldest).unlink(missing_ok=True)


def is_named(path: Path, digest: str) -> bool:
    """Whether a file hashes to a digest; `OSError`: it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest
