"""The one connection that writes: lock, pragmas, migrations, transactions, mark.

Opening refuses a database that holds less than the high-water mark promises. Every
write is one ``BEGIN IMMEDIATE`` transaction with ``synchronous=FULL``, followed by
the mark; after a disk error nothing is written any more until the store is opened
again, because a failed sync may be forgotten by the kernel.
"""

import fcntl
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlite_utils import Database as SchemaDatabase

from fedagent_protocol.failpoints import Checkpoint, hit

from .damage import DAMAGE, refused_by_disk
from .errors import (
    HistoryLostError,
    RefusedEntryError,
    SchemaVersionError,
    StoreBusyError,
    StoreFailedError,
)
from .high_water_mark import HighWaterMark, MarkFile, read_mark
from .ledger import LedgerWriter, Transfer
from .migrations import migrations
from .reader import DATABASE, MARK

LOCK = "coordinator.lock"
_BUSY_MS = 5000


def wall_clock_ms() -> int:
    """Return the time for people to read; nothing is ordered by it."""
    return time.time_ns() // 1_000_000


class Database:
    """An open coordinator database with its lock and mark.

    Args:
        folder: The data directory; made if need be.
        accept_lost_history: Go on although the mark promises more; noted in the ledger.
        checkpoint: Called with a name between any two durable steps.
        clock_ms: Wall clock for people.

    Raises:
        StoreBusyError: Another process holds the data directory.
        HistoryLostError: The database is older or other than was promised.
        StoreFailedError: The disk is full, broken or not to be written.
        SchemaVersionError: A newer release wrote it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        accept_lost_history: bool = False,
        checkpoint: Checkpoint = hit,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.checkpoint = checkpoint
        self.clock_ms = clock_ms
        self.lock = threading.RLock()
        self._failed: str | None = None
        self._lock_fd = _locked(folder)
        self._mark: MarkFile | None = None
        try:
            self._open(accept_lost_history)
        except BaseException:
            self.close()
            raise

    def _open(self, accept_lost_history: bool) -> None:
        path = self.folder / DATABASE
        lost = "" if path.exists() else "the database is missing"
        self.connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=_BUSY_MS / 1000
        )
        try:
            _configure(self.connection)
            _migrate(self.connection, path)
            self.ledger = LedgerWriter(self.connection)
            self._commits = self._meta()
            lost = self._lost_history(lost)
        except DAMAGE as error:
            if refused_by_disk(error):
                raise StoreFailedError(str(error)) from error
            raise HistoryLostError(str(path), f"the database is damaged ({error})") from error
        if lost and not accept_lost_history:
            raise HistoryLostError(str(path), lost)
        if lost:
            (self.folder / MARK).unlink(missing_ok=True)
        self._mark = MarkFile(self.folder / MARK, self._present())
        if lost:
            self._note_lost_history(lost)

    def close(self) -> None:
        """Close everything and free the data directory. Idempotent."""
        if self._lock_fd < 0:
            return
        if hasattr(self, "connection"):
            self.connection.close()
        if self._mark is not None:
            self._mark.close()
        os.close(self._lock_fd)
        self._lock_fd = -1

    @contextmanager
    def transaction(self, name: str) -> Iterator[sqlite3.Connection]:
        """Commit what the body does, all or nothing, and raise the mark.

        Crash points: ``{name}.before-commit``, ``{name}.committed``, ``{name}.marked``.

        Raises:
            StoreFailedError: The disk failed, now or earlier.
            RefusedEntryError: A constraint of the database refused a write.
        """
        with self.lock:
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
            self._raise_mark()
            self.checkpoint(f"{name}.marked")

    def fold_wal(self) -> None:
        """Move the WAL into the database, so that little can be lost with it.

        A long reader may hold it up until the next round.

        Raises:
            StoreFailedError: The disk failed.
        """
        with self.lock:
            try:
                self.connection.execute("PRAGMA busy_timeout = 0")
                self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self.connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            except sqlite3.Error as error:
                self._failed = str(error)
                raise StoreFailedError(self._failed) from error

    def _roll_back(self, error: BaseException) -> None:
        """Undo the transaction; translate what the database said."""
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            self.ledger.reload()
            self._commits = self._meta()
        except sqlite3.Error as second:
            self._failed = str(second)
        if isinstance(error, sqlite3.IntegrityError):
            raise RefusedEntryError(str(error)) from error
        if isinstance(error, sqlite3.Error):
            self._failed = str(error)
            raise StoreFailedError(self._failed) from error

    def _raise_mark(self) -> None:
        """Say beside the database how far it has come."""
        assert self._mark is not None
        try:
            self._mark.write(self._present())
        except OSError as error:
            self._failed = f"the high-water mark: {error}"
            raise StoreFailedError(self._failed) from error

    def _present(self) -> HighWaterMark:
        return HighWaterMark(
            commits=self._commits, seq=self.ledger.seq, hash=self.ledger.hash.hex()
        )

    def _meta(self) -> int:
        row = self.connection.execute("SELECT value FROM meta WHERE name = 'commits'").fetchone()
        return int(row[0])

    def _lost_history(self, lost: str) -> str:
        """Return why the database is not what the mark promises; empty if it is."""
        try:
            mark = read_mark(self.folder / MARK)
        except ValueError as error:
            return str(error)
        if mark is None:
            return "its high-water mark is missing" if self._commits else ""
        if lost and mark.commits:
            return lost
        if self._commits < mark.commits:
            return f"it ends at commit {self._commits}, {mark.commits} were made"
        if mark.seq:
            row = self.connection.execute(
                "SELECT hash FROM entries WHERE seq = ?", (mark.seq,)
            ).fetchone()
            if row is None or row[0].hex() != mark.hash:
                return f"ledger entry {mark.seq} is not the one that was written"
        return ""

    def _note_lost_history(self, lost: str) -> None:
        """Write into the ledger that an operator went on without the lost history."""
        with self.transaction("note"):
            note = Transfer(
                kind="note",
                source="operator",
                target=f"accepted lost history: {lost}",
                amount_micro=0,
                key=f"note/{uuid.uuid4().hex}",
            )
            self.ledger.append(None, [note], self.clock_ms())


def _locked(folder: Path) -> int:
    """Return a descriptor that holds the data directory until it is closed."""
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise StoreBusyError(str(folder)) from error
    return fd


def _configure(connection: sqlite3.Connection) -> None:
    for pragma in (
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
        "wal_autocheckpoint = 1000",
        "trusted_schema = OFF",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema up to date."""
    schema = SchemaDatabase(connection)
    empty = SchemaDatabase(memory=True)
    try:
        ours = {migration.name for migration in migrations.pending(empty)}
    finally:
        empty.close()
    applied = {migration.name for migration in migrations.applied(schema)}
    if applied - ours:
        raise SchemaVersionError(str(path), sorted(applied - ours))
    if ours - applied:
        migrations.apply(schema)
