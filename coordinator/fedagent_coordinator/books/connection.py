"""The one connection that writes: pragmas, schema, transactions, and the high-water mark.

SQLite drops committed transactions silently when its WAL is damaged. The mark, a small file
beside the database, is written and synced after every commit, so a database that holds less
than was ever promised is noticed at start. After a disk error nothing is written any more
until the store is opened again, because a failed sync may be forgotten by the kernel. Neither
is anything once another process has written: what this one knows of the books is out of date.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict, Unpack

from fedagent_coordinator.errors import (
    HistoryLostError,
    LedgerError,
    OvertakenError,
    StoreFailedError,
    UnreadableDatabaseError,
)
from fedagent_node.data_dir import Identity, make_private
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import LedgerHead

from .ledger import LedgerWriter, hash_at, head_bytes
from .mark import MARK, HighWaterMark, MarkFile, read_mark
from .schema import DAMAGE, DATABASE, prepare, refused_by_disk

_BUSY_MS = 5000
_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "foreign_keys = ON",
    "trusted_schema = OFF",
)


def wall_clock_ms() -> int:
    """Return the time for people to read; nothing is ordered by it."""
    return time.time_ns() // 1_000_000


class DatabaseOptions(TypedDict, total=False):
    """How to open a database; a lost history that is accepted is noted in the ledger.

    With an `identity` the heads of the ledger are signed.
    """

    accept_lost_history: bool
    checkpoint: Checkpoint
    clock_ms: Callable[[], int]
    identity: Identity | None


class Database:
    """An open coordinator database with its mark, in a folder that is made if need be.

    Raises:
        HistoryLostError: The database is older or other than was promised.
        StoreFailedError: The disk is full, broken or not to be written.
        SchemaVersionError: Another version wrote it.
    """

    def __init__(self, folder: Path, **options: Unpack[DatabaseOptions]) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.checkpoint = options.get("checkpoint", hit)
        self.clock_ms = options.get("clock_ms", wall_clock_ms)
        self.identity = options.get("identity")
        self._failed: str | None = None
        self._mark: MarkFile | None = None
        self._signed: tuple[int, bytes] = (0, b"")
        path = folder / DATABASE
        missing = not path.exists()
        make_private(path)
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
                str(path), f"the database is damaged ({' '.join(str(error).split())})"
            ) from error
        if lost and not accept:
            raise HistoryLostError(str(path), lost)
        if lost:
            (self.folder / MARK).unlink(missing_ok=True)
        self._mark = MarkFile(self.folder / MARK, self._present())
        if lost:
            self.note(f"accepted lost history: {lost}")

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
            LedgerError: A constraint of the database refused a write.
            OvertakenError: Another process has written the database.
        """
        if self._failed is not None:
            raise StoreFailedError(self._failed)
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            self._count()
            yield self.connection
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

    def _count(self) -> None:
        """Number this transaction; nobody else may have made one."""
        counted = self.connection.execute(
            "UPDATE meta SET value = value + 1 WHERE name = 'commits' AND value = ?",
            (self._commits,),
        )
        if counted.rowcount != 1:
            self._failed = "another coordinator has written the books"
            raise OvertakenError(str(self.folder / DATABASE))
        self._commits += 1

    def fold_wal(self) -> None:
        """Move the WAL into the database, so that little can be lost with it.

        A long reader may hold it up until the next round.
        """
        self._maintain(
            "PRAGMA busy_timeout = 0",
            "PRAGMA wal_checkpoint(TRUNCATE)",
            f"PRAGMA busy_timeout = {_BUSY_MS}",
        )

    def compact(self) -> None:
        """Write the database again without its free pages.

        Raises:
            StoreFailedError: The disk failed, or has no room for it.
        """
        if self._failed is not None:
            raise StoreFailedError(self._failed)
        self.checkpoint("compact.begun")
        self._maintain("VACUUM")
        self.checkpoint("compact.written")
        self.fold_wal()

    def _maintain(self, *statements: str) -> None:
        try:
            for statement in statements:
                self.connection.execute(statement)
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
            raise LedgerError(f"the ledger refuses this: {error}") from error
        if isinstance(error, sqlite3.Error):
            self._failed = str(error)
            raise StoreFailedError(self._failed) from error

    def _present(self) -> HighWaterMark:
        seq, hash_ = self.ledger.seq, self.ledger.hash
        if self.identity is not None and self._signed[0] != seq:
            self._signed = seq, self.identity.sign(head_bytes(seq, hash_))
        return HighWaterMark(
            commits=self._commits,
            seq=seq,
            hash=hash_.hex(),
            signature=self._signed[1],
        )

    @property
    def head(self) -> LedgerHead | None:
        """The newest entry, signed; None without an identity or an entry."""
        mark = self._present()
        if self.identity is None or not mark.seq:
            return None
        return LedgerHead(
            coordinator=self.identity.id,
            seq=mark.seq,
            hash=self.ledger.hash,
            signature=mark.signature,
        )

    def _read_commits(self) -> int:
        row = self.connection.execute("SELECT value FROM meta WHERE name = 'commits'").fetchone()
        if row is None:
            raise sqlite3.DatabaseError("its number of commits is missing")
        return int(row["value"])

    def _lost_history(self, *, missing: bool) -> str:
        """Return why the database is not what the mark promises; empty if it is."""
        try:
            mark = read_mark(self.folder / MARK)
        except ValueError as error:
            return str(error)
        if mark is None:
            begun = self._commits or self.connection.execute("SELECT 1 FROM entries").fetchone()
            return "its high-water mark is missing" if begun else ""
        if missing and mark.commits:
            return "the database is missing"
        if self._commits < mark.commits:
            return f"it ends at commit {self._commits}, {mark.commits} were made"
        found = hash_at(self.connection, mark.seq)
        if found is None or found.hex() != mark.hash:
            return f"ledger entry {mark.seq} is not the one that was written"
        return ""

    def note(self, text: str) -> None:
        """Say in the ledger what an operator did."""
        with self.transaction("note"):
            self.ledger.append("note", note=text, at_ms=self.clock_ms())
