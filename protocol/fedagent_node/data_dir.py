"""The data directory of a process: private, locked, with its identity and small files."""

import fcntl
import functools
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from fedagent_protocol.errors import is_disk_error
from fedagent_protocol.signed import KEY_BYTES, identity_of

from .errors import DataDirBusyError, IdentityError, SettingError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PORTS_FILE = "ports.json"
LOCK_FILE = "lock"
IDENTITY_FILE = "identity.json"
STARTS_FILE = "starts"
GLANCE_S = 0.05
"""How long a second try waits for somebody who only looked whether the lock is held."""


class DataDirLock:
    """A data directory held for this process; the kernel frees it however the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def acquire(self) -> None:
        """Create the directory if need be (0700), and lock it.

        Raises:
            DataDirBusyError: Another process holds it.
            SettingError: It cannot be made or written; of a bad disk, an `OSError`.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            if is_disk_error(exc):
                raise
            reason = "a file is there" if isinstance(exc, FileExistsError) else exc.strerror
            problem = f"{self.path} cannot be used as a data directory ({reason or exc})"
            hint = "choose another --data-dir, or fix its owner and permissions"
            raise SettingError("data_dir", problem, hint) from exc
        try:
            self._hold(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def _hold(self, fd: int) -> None:
        if not _locks(fd, fcntl.LOCK_EX):
            time.sleep(GLANCE_S)
            if not _locks(fd, fcntl.LOCK_EX):
                raise DataDirBusyError(self.path, _noted_pid(fd))
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let others use the directory. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        """Acquire."""
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release."""
        self.release()


def holder_of(path: Path) -> int | None:
    """Return the process that holds a data directory, None if nobody does.

    The lock decides, not what is written in its file: that outlives a killed process,
    and its number may be another's by now.
    """
    try:
        fd = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return None if _locks(fd, fcntl.LOCK_SH) else _noted_pid(fd)
    finally:
        os.close(fd)


def _locks(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _noted_pid(fd: int) -> int | None:
    text = os.pread(fd, 20, 0).strip()
    return int(text) if text.isdigit() else None


def passing(path: str) -> Path:
    """Return the path of a file that has a name of its own, such as ``model.DIGEST``.

    `pathlib` up to Python 3.13 interns every part of a path that it parses: before 3.12.7, 3.12
    never lets go of one, and in 3.11 names that come and go double the interpreter's table. It
    does not parse what follows the first dot of a name here.
    """
    folder, _, name = path.rpartition("/")
    stem, dot, rest = name.partition(".")
    return Path(folder, stem).with_suffix(dot + rest)


def write_private(path: Path, data: bytes) -> None:
    """Write a file readable by its owner only; whole or not at all, and on disk."""
    write_private_parts(path, (data,))


def write_private_parts(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write the parts after one another; else as `write_private`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)  # noqa: PTH104 - a Path would parse its new name
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_private(path: Path) -> None:
    """Make a file that a library opens by itself readable by its owner only; create it if need be.

    SQLite gives its WAL the mode of the database.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(fd).st_mode & 0o077:
            os.fchmod(fd, 0o600)
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def stored_port(data_dir: Path, name: str) -> int:
    """Return the port that was used last under this name; 0 if none is known.

    A damaged file is as good as none: ports are a convenience.
    """
    try:
        port = json.loads((data_dir / PORTS_FILE).read_bytes()).get(name, 0)
    except (OSError, ValueError, AttributeError):
        return 0
    return port if isinstance(port, int) and 0 < port < 65536 else 0


def store_port(data_dir: Path, name: str, port: int) -> None:
    """Remember a port for the next start."""
    if stored_port(data_dir, name) == port:
        return
    try:
        ports = json.loads((data_dir / PORTS_FILE).read_bytes())
    except (OSError, ValueError):
        ports = {}
    kept = ports if isinstance(ports, dict) else {}
    write_private(data_dir / PORTS_FILE, json.dumps({**kept, name: port}).encode())


class _Stored(msgspec.Struct, frozen=True):
    id: str
    public: bytes
    private: bytes


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a process is: an Ed25519 key made at its first start, and the id that follows from it."""

    id: str
    public_bytes: bytes
    _private_bytes: bytes = field(repr=False)

    def sign(self, data: bytes) -> bytes:
        """Return the Ed25519 signature of `data`, 64 bytes."""
        return _private_key(self._private_bytes).sign(data)

    def private_pem(self) -> bytes:
        """Return the private key as a TLS library reads it; for a private file alone."""
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

        return _private_key(self._private_bytes).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


@functools.lru_cache(maxsize=8)
def _private_key(private: bytes) -> "Ed25519PrivateKey":
    # Imported late: cryptography costs several megabytes.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PrivateKey,
    )

    return Ed25519PrivateKey.from_private_bytes(private)


def count_start(data_dir: Path) -> int:
    """Return the number of this start, kept durably; a damaged file begins again.

    Peers that have heard larger numbers say so (`envelope.Gate`).
    """
    try:
        before = int((data_dir / STARTS_FILE).read_bytes()[:20])
    except (FileNotFoundError, ValueError):
        before = 0
    store_starts(data_dir, starts := max(0, before) % 2**31 + 1)
    return starts


def store_starts(data_dir: Path, starts: int) -> None:
    """Keep how often this identity was started."""
    write_private(data_dir / STARTS_FILE, f"{starts}\n".encode())


def load_or_create(data_dir: Path) -> Identity:
    """Return the identity kept in a data directory, made there if there is none.

    Raises:
        IdentityError: The file is there and damaged. It is never replaced by itself,
            because that would make the device a stranger to its edges.
    """
    path = data_dir / IDENTITY_FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return _create(path)
    except OSError as exc:
        raise IdentityError(path, exc.strerror or str(exc)) from exc
    return _load(path, text)


def read_public(data_dir: Path) -> bytes | None:
    """Return the public key of the process whose data directory it is; None without an identity.

    Raises:
        IdentityError: The file is damaged.
    """
    path = data_dir / IDENTITY_FILE
    return load_or_create(data_dir).public_bytes if path.exists() else None


def _load(path: Path, text: bytes) -> Identity:
    try:
        found = msgspec.json.decode(text, type=_Stored)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise IdentityError(path, "not an identity file") from exc
    if len(found.public) != KEY_BYTES or len(found.private) != KEY_BYTES:
        raise IdentityError(path, "a key has the wrong length")
    if found.id != identity_of(found.public):
        raise IdentityError(path, "the id does not belong to the key")
    return Identity(found.id, found.public, found.private)


def _create(path: Path) -> Identity:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PrivateKey,
    )

    key = Ed25519PrivateKey.generate()
    public, private = key.public_key().public_bytes_raw(), key.private_bytes_raw()
    identity = Identity(identity_of(public), public, private)
    stored = msgspec.json.encode(_Stored(identity.id, public, private))
    write_private(path, msgspec.json.format(stored, indent=1))
    return identity
