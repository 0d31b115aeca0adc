"""Models as content-addressed files: the name of a file is its SHA-256.

A blob is there whole or not at all, and reading checks the content against the name. One
that comes in pieces is a *part*, adopted when it is complete and hashes to its name.
"""

import hashlib
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedagent_protocol.errors import DigestError, too_large

from .data_dir import sync_folder

if TYPE_CHECKING:
    # Not at run time: an agent has no need of numpy.
    from fedagent_protocol.tensors import Buffer

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PART = ".part"
_NEW = ".new"


class BlobStore:
    """The blobs in one folder, which is made if need be; one process writes.

    Left-overs of a crash are removed, parts too. What is over `max_bytes` is a `ProtocolError`.
    """

    def __init__(self, folder: Path, *, max_bytes: int = 1 << 30) -> None:
        self.folder = folder
        self._any = folder / "any"
        self._max_bytes = max_bytes
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.suffix in {_PART, _NEW}:
                path.unlink()

    def path(self, digest: str) -> Path:
        """Return where a blob is, or would be; `DigestError` if it is no digest."""
        if not _DIGEST.fullmatch(digest):
            raise DigestError(f"expected {digest:.12}, found no file")
        return self._any.with_name(digest)

    def put(self, data: "Buffer", *, durable: bool = True) -> str:
        """Keep a blob; return its digest. Idempotent; an error leaves nothing behind.

        One that is not yet durable waits for `sync`.
        """
        view = memoryview(data)
        self._check_size(view.nbytes)
        digest = hashlib.sha256(view).hexdigest()
        path = self.path(digest)
        if self._is_whole(path, digest):
            if durable:
                self.sync(digest)
            return digest
        fresh = path.with_suffix(_NEW)
        try:
            with fresh.open("wb") as file:
                file.write(view)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            fresh.replace(path)
            if durable:
                sync_folder(self.folder)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        return digest

    def write_part(self, digest: str, offset: int, data: bytes) -> None:
        """Write a piece of a blob that is coming in; in any order, not yet durable."""
        self._check_size(offset + len(data))
        part = self.path(digest).with_suffix(_PART)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            rest, at = memoryview(data), offset
            while rest:
                written = os.pwrite(fd, rest, at)
                rest, at = rest[written:], at + written
        finally:
            os.close(fd)

    def sync(self, *digests: str) -> None:
        """Make blobs durable, their names with one sync for all."""
        for digest in digests:
            with self.path(digest).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(self.folder)

    def finish_part(self, digest: str, *, durable: bool = True) -> None:
        """Make a complete part a blob, which waits for `sync` if it is not yet durable.

        Raises:
            DigestError: No piece of it was written, or it hashes to something else and is gone.
        """
        part = self.path(digest).with_suffix(_PART)
        try:
            file = part.open("rb")
        except FileNotFoundError as error:
            if self.has(digest):
                return
            raise DigestError(f"expected {digest:.12}, found no file") from error
        with file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
            if durable and actual == digest:
                os.fsync(file.fileno())
        if actual != digest:
            part.unlink()
            raise DigestError(f"expected {digest:.12}, found {actual:.12}")
        part.replace(self.path(digest))
        if durable:
            sync_folder(self.folder)

    def drop_part(self, digest: str) -> None:
        """Forget the pieces of a blob that is not wanted any more."""
        self.path(digest).with_suffix(_PART).unlink(missing_ok=True)

    def drop(self, digest: str) -> None:
        """Remove a blob that is of no more use."""
        self.path(digest).unlink(missing_ok=True)

    def get(self, digest: str) -> bytes:
        """Return a blob, checked.

        Raises:
            DigestError: There is none, or it has changed on disk and is removed, so that it can be
                fetched again.
        """
        path = self.path(digest)
        with _found(digest):
            data = path.read_bytes()
        actual = hashlib.sha256(data).hexdigest()
        if actual != digest:
            path.unlink(missing_ok=True)
            raise DigestError(f"expected {digest:.12}, found {actual:.12}")
        return data

    def read(self, digest: str, offset: int, size: int) -> bytes:
        """Return a piece of a blob, unchecked: who has all pieces checks."""
        with _found(digest), self.path(digest).open("rb") as file:
            return os.pread(file.fileno(), size, offset)

    def has(self, digest: str) -> bool:
        """Return whether there is such a blob."""
        return _DIGEST.fullmatch(digest) is not None and self.path(digest).is_file()

    def is_whole(self, digest: str) -> bool:
        """Return whether there is such a blob and it hashes to its name; reads all of it."""
        return _DIGEST.fullmatch(digest) is not None and self._is_whole(self.path(digest), digest)

    def size(self, digest: str) -> int:
        """Return a blob's size in bytes."""
        with _found(digest):
            return self.path(digest).stat().st_size

    def digests(self) -> Iterator[str]:
        """Yield the digest of every blob."""
        return (path.name for path in self.folder.iterdir() if _DIGEST.fullmatch(path.name))

    def collect(self, keep: Collection[str]) -> None:
        """Remove every blob that is not in `keep`; parts stay."""
        for digest in set(self.digests()) - set(keep):
            self.path(digest).unlink(missing_ok=True)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise too_large("blob", size, self._max_bytes)

    def _is_whole(self, path: Path, digest: str) -> bool:
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == digest
        except FileNotFoundError:
            return False


@contextmanager
def _found(digest: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DigestError(f"expected {digest:.12}, found no file") from error
