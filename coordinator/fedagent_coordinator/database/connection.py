"""The one connection that writes: pragmas, schema, transactions, and the high-water mark.

SQLite drops committed transactions silently when its WAL is damaged. The mark, a small file
beside the database, is written and synced after every commit, so a database that holds less
than was ever promised is noticed at start. After a disk error nothing is written any more
until the store is opened again, because a failed sync may be forgotten by the kernel.
"""

import os
import sqlite3
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict, Unpack

import msgspec

from fedagent_coordinator.errors import (
    HistoryLostError,
    RefusedEntryError,
    StoreFailedError,
    UnreadableDatabaseError,
)
from fedagent_node.data_dir import sync_folder
from fedagent_protocol.failpoints import Checkpoint, hit

from .ledger import GENESIS, LedgerWriter, Transfer
from .schema import prepare

DATABASE = "coordinator.db"
MARK = "coordinator.mark"
DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Raised by queries on damaged pages; the second where sqlite quotes them in its words."""
_MISREAD = (ValueError, TypeError, LookupError, OverflowError)
"""Raised by code that makes something of a row that is not what was written."""
_DISK = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}
_BUSY_MS = 5000
_SLOT_BYTES = 512
_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "foreign_keys = ON",
    "wal_autocheckpoint = 1000",
    "trusted_schema = OFF",
)


class HighWaterMark(msgspec.Struct, frozen=True, kw_only=True):
    """How far the database had come: transactions, and the ledger's last entry (0 for none)."""

    commits: int = 0
    seq: int = 0
    hash: str = GENESIS.hex()


class MarkFile:
    """The mark on disk, opened for writing by the one coordinator; new ones hold `first`."""

    def __init__(self, path: Path, first: HighWaterMark) -> None:
        if not path.exists():
            fresh = path.with_suffix(".new")
            with fresh.open("wb") as file:
                file.write(_slot(first) * 2)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
            sync_folder(path.parent)
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def write(self, mark: HighWaterMark) -> None:
        """Make `mark` durable."""
        os.pwrite(self._fd, _slot(mark), (mark.commits % 2) * _SLOT_BYTES)
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_mark(path: Path) -> HighWaterMark | None:
    """Return the newest readable mark; None when there is no file.

    Raises:
        ValueError: The file is there, but no slot of it is whole.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    slots = (data[:_SLOT_BYTES], data[_SLOT_BYTES : 2 * _SLOT_BYTES])
    marks = [mark for mark in map(_parse, slots) if mark is not None]
    if not marks:
        raise ValueError(f"no slot of {path.name} is whole")
    return max(marks, key=lambda mark: mark.commits)


def _slot(mark: HighWaterMark) -> bytes:
    body = msgspec.json.encode(mark)
    return (b"%08x " % zlib.crc32(body) + body).ljust(_SLOT_BYTES - 1) + b"\n"


def _parse(slot: bytes) -> HighWaterMark | None:
    checksum, _, body = slot.partition(b" ")
    body = body.strip()
    try:
        if len(slot) != _SLOT_BYTES or int(checksum, 16) != zlib.crc32(body):
            return None
        return msgspec.json.decode(body, type=HighWaterMark)
    except ValueError:  # msgspec's errors are ValueErrors too
        return None


def wall_clock_ms() -> int:
    """Return the time for people to read; nothing is ordered by it."""
    return time.time_ns() // 1_000_000


class DatabaseOptions(TypedDict, total=False):
    """How to open a database; a lost history that is accepted is noted in the ledger."""

    accept_lost_history: bool
    checkpoint: Checkpoint
    clock_ms: Callable[[], int]


class Database:
    """An open coordinator database with its mark, in a folder that is made if need be.

    Raises:
        HistoryLostError: The database is older or other than was promised.
        StoreFailedError: The disk is full, broken or not to be written.
        SchemaVersionError: Another release wrote it.
    """

    def __init__(self, folder: Path, **options: Unpack[DatabaseOptions]) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.checkpoint = options.get("checkpoint", hit)
        self.clock_ms = options.get("clock_ms", wall_clock_ms)
        self._failed: str | None = None
        self._mark: MarkFile | None = None
        path = folder / DATABASE
        missing = not path.exists()
        # Model jobs run in threads; the database is used by the event loop's alone.
        self.connection = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_MS / 1000)
        self.connection.row_factory = sqlite3.Row
        try:
            self._open(path, missing=missing, accept=options.get("accept_lost_history", False))
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path, *, missing: bool, accept: bool) -> None:
        try:
            prepare(self.connection, str(path))
            for pragma in _PRAGMAS:
                self.connection.execute(f"PRAGMA {pragma}")
            self.ledger = LedgerWriter(self.connection)
            self._commits = self._read_commits()
            lost = self._lost_history(missing=missing)
        except DAMAGE as error:
            if refused_by_disk(error):
                raise StoreFailedError(str(error)) from error
            raise UnreadableDatabaseError(
                str(path), f"the database is damaged ({error})"
            ) from error
        if lost and not accept:
            raise HistoryLostError(str(path), lost)
        if lost:
            (self.folder / MARK).unlink(missing_ok=True)
        self._mark = MarkFile(self.folder / MARK, self._present())
        if lost:
            self._note_lost_history(lost)

    def close(self) -> None:
        """Close everything. Idempotent."""
        self.connection.close()
        if self._mark is not None:
            self._mark.close()
            self._mark = None

    @contextmanager
    def transaction(self, name: str) -> Iterator[sqlite3.Connection]:
        """Commit what the body does, all or nothing, and raise the mark.

        Crash points: ``{name}.before-commit``, ``{name}.committed``, ``{name}.marked``.

        Raises:
            StoreFailedError: The disk failed, now or earlier.
            RefusedEntryError: A constraint of the database refused a write.
        """
        if self._failed is not None:
            raise StoreFailedError(self._failed)
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            yield self.connection
            self._commits += 1
            self.connection.execute(
                "UPDATE meta SET value = ? WHERE name = 'commits'", (self._commits,)
            )
            self.checkpoint(f"{name}.before-commit")
            self.connection.execute("COMMIT")
        except BaseException as error:
            self._roll_back(error)
            raise
        self.checkpoint(f"{name}.committed")
        assert self._mark is not None
        try:
            self._mark.write(self._present())
        except OSError as error:
            self._failed = f"the high-water mark: {error}"
            raise StoreFailedError(self._failed) from error
        self.checkpoint(f"{name}.marked")

    def fold_wal(self) -> None:
        """Move the WAL into the database, so that little can be lost with it.

        A long reader may hold it up until the next round.
        """
        try:
            self.connection.execute("PRAGMA busy_timeout = 0")
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self.connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        except sqlite3.Error as error:
            self._failed = str(error)
            raise StoreFailedError(self._failed) from error

    def _roll_back(self, error: BaseException) -> None:
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            self.ledger.reload()
            self._commits = self._read_commits()
        except sqlite3.Error as second:
            self._failed = str(second)
        if isinstance(error, sqlite3.IntegrityError):
            raise RefusedEntryError(str(error)) from error
        if isinstance(error, sqlite3.Error):
            self._failed = str(error)
            raise StoreFailedError(self._failed) from error

    def _present(self) -> HighWaterMark:
        return HighWaterMark(
            commits=self._commits, seq=self.ledger.seq, hash=self.ledger.hash.hex()
        )

    def _read_commits(self) -> int:
        row = self.connection.execute("SELECT value FROM meta WHERE name = 'commits'").fetchone()
        return int(row["value"])

    def _lost_history(self, *, missing: bool) -> str:
        """Return why the database is not what the mark promises; empty if it is."""
        try:
            mark = read_mark(self.folder / MARK)
        except ValueError as error:
            return str(error)
        if mark is None:
            return "its high-water mark is missing" if self._commits else ""
        if missing and mark.commits:
            return "the database is missing"
        if self._commits < mark.commits:
            return f"it ends at commit {self._commits}, {mark.commits} were made"
        if mark.seq:
            row = self.connection.execute(
                "SELECT hash FROM entries WHERE seq = ?", (mark.seq,)
            ).fetchone()
            if row is None or row["hash"].hex() != mark.hash:
                return f"ledger entry {mark.seq} is not the one that was written"
        return ""

    def _note_lost_history(self, lost: str) -> None:
        with self.transaction("note"):
            note = Transfer(
                kind="note",
                source="operator",
                target=f"accepted lost history: {lost}",
                amount_micro=0,
                key=f"note/{uuid.uuid4().hex}",
            )
            self.ledger.append(None, [note], self.clock_ms())


def refused_by_disk(error: BaseException) -> bool:
    """Return whether the disk did not do its part; the database may be whole."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DISK


def damage_behind(error: Exception, connection: sqlite3.Connection) -> str:
    """Return what is damaged if that is why a reader failed; empty if it is not.

    An error that a mistake of ours may have made as well is put down to damage only
    where the database itself says so.
    """
    if isinstance(error, DAMAGE):
        return "" if refused_by_disk(error) else " ".join(str(error).split())
    return _complaint(connection) if isinstance(error, _MISREAD) else ""


def _complaint(connection: sqlite3.Connection) -> str:
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except DAMAGE as error:
        found = str(error)
    return "" if found == "ok" else " ".join(str(found).split())
