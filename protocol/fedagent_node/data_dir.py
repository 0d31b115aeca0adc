"""The data directory of a process: private, locked, with its identity and small files."""

import fcntl
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import msgspec
from msgspec import Meta, Struct, field

from fedagent_protocol.errors import is_disk_error
from fedagent_protocol.signed import KEY_BYTES, identity_of

from .errors import CredentialsError, DataDirBusyError, SettingError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LOCK_FILE = "lock"
IDENTITY_FILE = "identity.json"
STARTS_FILE = "starts"
STEP = 1024
_RESTORE = "restore it from a copy, or delete it to join as a new device"
GLANCE_S = 0.05
"""How long a second try waits for somebody who only looked whether the lock is held."""


@contextmanager
def hold_data_dir(path: Path) -> Iterator[None]:
    """Hold a data directory, made if need be (0700); the kernel frees it however we end.

    Raises:
        DataDirBusyError: Another process holds it.
        SettingError: It cannot be made or written; of a bad disk, an `OSError`.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        if is_disk_error(exc):
            raise
        reason = "a file is there" if isinstance(exc, FileExistsError) else exc.strerror
        problem = f"{path} cannot be used as a data directory ({reason or exc})"
        hint = "choose another --data-dir, or fix its owner and permissions"
        raise SettingError("data_dir", problem, hint) from exc
    try:
        if not _locks(fd, fcntl.LOCK_EX):
            time.sleep(GLANCE_S)
            if not _locks(fd, fcntl.LOCK_EX):
                raise DataDirBusyError(path, _noted_pid(fd))
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


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


def write_private(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file readable by its owner only; whole or not at all, and on disk."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            for part in (data,) if isinstance(data, bytes) else data:
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


def kept_number(path: Path) -> int:
    """Return the number that a small file holds; 0 of none, or of a damaged one."""
    try:
        return max(0, int(path.read_bytes()[:20]))
    except (FileNotFoundError, ValueError):
        return 0


def keep_number(path: Path, number: int) -> None:
    """Keep a number in a small file."""
    write_private(path, f"{number}\n".encode())


def stored_port(data_dir: Path, name: str) -> int:
    """Return the port that was used last under this name; 0 if none is known."""
    port = kept_number(data_dir / f"{name}.port")
    return port if port < 65536 else 0


def store_port(data_dir: Path, name: str, port: int) -> None:
    """Remember a port for the next start."""
    keep_number(data_dir / f"{name}.port", port)


def count_start(data_dir: Path) -> int:
    """Return the number of this start, kept durably; a damaged file begins again.

    It is the last one and some more, by chance: two copies of a directory do not count alike, and
    are told apart. Peers that have heard larger numbers say so (`envelope.Gate`).
    """
    starts = kept_number(data_dir / STARTS_FILE) % 2**31 + 1 + secrets.randbelow(STEP)
    keep_number(data_dir / STARTS_FILE, starts)
    return starts


Key = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class Identity(Struct, frozen=True):
    """Who a process is: an Ed25519 key made at its first start, and the id that follows from it."""

    id: str
    public_bytes: Key = field(name="public")
    private_bytes: Key = field(name="private")

    @classmethod
    def of(cls, private: bytes) -> Self:
        """Return the identity of a private key of 32 bytes."""
        public = _private_key(private).public_key().public_bytes_raw()
        return cls(identity_of(public), public, private)

    def sign(self, data: bytes) -> bytes:
        """Return the Ed25519 signature of `data`, 64 bytes."""
        return _private_key(self.private_bytes).sign(data)

    def __repr__(self) -> str:
        return f"Identity({self.id})"


def _private_key(private: bytes) -> "Ed25519PrivateKey":
    from fedagent_protocol.ed25519 import private_key  # noqa: PLC0415 - `status` signs nothing

    return private_key(private)


def load_or_create(data_dir: Path) -> Identity:
    """Return the identity kept in a data directory, made there if there is none.

    Raises:
        CredentialsError: The file is there and damaged. It is never replaced by itself,
            because that would make the device a stranger to its edges.
    """
    path = data_dir / IDENTITY_FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Identity)
    except FileNotFoundError:
        made = Identity.of(secrets.token_bytes(KEY_BYTES))
        write_private(path, msgspec.json.format(msgspec.json.encode(made), indent=1))
        return made
    except OSError as exc:
        raise CredentialsError(path, exc.strerror or str(exc), _RESTORE) from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise CredentialsError(path, "not an identity file", _RESTORE) from exc
    if found.id != identity_of(found.public_bytes):
        raise CredentialsError(path, "the id does not belong to the key", _RESTORE)
    return found


def read_public(data_dir: Path) -> bytes | None:
    """Return the public key of the process whose data directory it is; None without an identity.

    Raises:
        CredentialsError: The file is damaged.
    """
    known = (data_dir / IDENTITY_FILE).exists()
    return load_or_create(data_dir).public_bytes if known else None
