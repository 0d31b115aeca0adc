"""The one connection that writes: schema, transactions, the ledger's chain, the high-water mark.

After a disk error nothing is written until the store is opened again, because a failed sync
may be forgotten by the kernel.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from fedagent_coordinator.errors import (
    FOREIGN,
    HistoryLostError,
    LedgerError,
    StoreFailedError,
)
from fedagent_node.data_dir import Identity, make_private
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import LedgerHead
from fedagent_protocol.signed import ledger_head

from .ledger import (
    COLUMNS,
    GENESIS,
    balance_of,
    bound_by,
    chain_hash,
    checked_micro,
    digest_of,
    hash_at,
    moved,
)
from .mark import MARK, HighWaterMark, MarkFile, read_mark
from .schema import DAMAGE, DATABASE, prepare, store_error

_BUSY_MS = 5000
_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "foreign_keys = ON",
    "trusted_schema = OFF",
)
_INSERT = f"INSERT INTO entries ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608 - constants


def wall_clock_ms() -> int:
    """Return the time for people to read; nothing is ordered by it."""
    return time.time_ns() // 1_000_000


class Database:
    """An open coordinator database with its mark, in a folder that is made if need be.

    With an `identity` the heads of the ledger are signed.

    Raises:
        HistoryLostError: The database is older or other than was promised.
        StoreFailedError: The disk is full, broken or not to be written.
        StoreDamagedError: It cannot be read, or another version wrote it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        accept_lost_history: bool = False,
        checkpoint: Checkpoint = hit,
        clock_ms: Callable[[], int] = wall_clock_ms,
        identity: Identity | None = None,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder, self.path = folder, folder / DATABASE
        self.checkpoint, self.clock_ms = checkpoint, clock_ms
        self.identity, self.accepts = identity, accept_lost_history
        self.seq, self._hash = 0, GENESIS
        self._failed: str | None = None
        self._mark: MarkFile | None = None
        self._signed: tuple[int, bytes] = (0, b"")
        missing = not self.path.exists()
        make_private(self.path)
        # Model jobs run in threads; the database is used by the event loop's alone.
        self.connection = sqlite3.connect(self.path, isolation_level=None, timeout=_BUSY_MS / 1000)
        self.connection.row_factory = sqlite3.Row
        try:
            self._open(missing=missing)
        except DAMAGE as error:
            self.close()
            raise store_error(error, self.path) from error
        except BaseException:
            self.close()
            raise

    def _open(self, *, missing: bool) -> None:
        prepare(self.connection, str(self.path))
        for pragma in _PRAGMAS:
            self.connection.execute(f"PRAGMA {pragma}")
        self.seq, self._hash = self._newest()
        lost, until = self._lost_history(missing=missing)
        if lost and not self.accepts:
            raise HistoryLostError(str(self.path), lost)
        if lost:
            (self.folder / MARK).unlink(missing_ok=True)
        self._mark = MarkFile(self.folder / MARK, self._present())
        if lost:
            self.accept(lost, until)

    def _lost_history(self, *, missing: bool) -> tuple[str, int]:
        """Return why the database is not what the mark promises, and up to which entry."""
        try:
            mark = read_mark(self.folder / MARK)
        except ValueError as error:
            return str(error), 0
        if mark is None:
            return ("its high-water mark is missing" if self.seq else ""), 0
        found = hash_at(self.connection, mark.seq)
        if found is not None and found.hex() == mark.hash:
            return "", 0
        if missing:
            return "the database is missing", mark.seq
        if found is None:
            return f"it ends at entry {self.seq}, {mark.seq} were written", mark.seq
        return f"ledger entry {mark.seq} is not the one that was written", mark.seq

    def close(self) -> None:
        """Close everything. Idempotent."""
        self.connection.close()
        if self._mark is not None:
            self._mark.close()
            self._mark = None

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close everything."""
        self.close()

    @contextmanager
    def transaction(self, name: str, *, synced: bool = True) -> Iterator[sqlite3.Connection]:
        """Commit what the body does, all or nothing, and raise the mark; sync that, or later.

        Crash points: ``{name}.before-commit``, ``{name}.committed``, ``{name}.marked``.

        Raises:
            StoreFailedError: The disk failed, or somebody else wrote, now or earlier.
            LedgerError: A constraint of the database refused a write.
        """
        if self._failed is not None:
            raise StoreFailedError(self._failed)
        before = self.seq, self._hash
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            self._refuse_foreign()
            yield self.connection
            self.checkpoint(f"{name}.before-commit")
            self.connection.execute("COMMIT")
        except BaseException as error:
            self._roll_back(error)
            self.seq, self._hash = before
            if isinstance(error, sqlite3.IntegrityError):
                raise LedgerError(f"the ledger refuses this: {error}") from error
            if isinstance(error, sqlite3.Error):
                raise StoreFailedError(str(error)) from error
            raise
        self.checkpoint(f"{name}.committed")
        assert self._mark is not None
        try:
            self._mark.write(self._present(), synced=synced)
        except OSError as error:
            self._failed = f"the high-water mark: {error}"
            raise StoreFailedError(self._failed) from error
        self.checkpoint(f"{name}.marked")

    def _refuse_foreign(self) -> None:
        if self._newest() != (self.seq, self._hash):
            self._failed = FOREIGN
            raise StoreFailedError(FOREIGN)

    def _roll_back(self, error: BaseException) -> None:
        if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.IntegrityError):
            self._failed = str(error)
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        except sqlite3.Error as second:
            self._failed = str(second)

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
        """Give the room of what was dropped back to the disk; takes the size of what is left.

        Crash points: ``compact.begun``, ``compact.written``.
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

    # ----------------------------------------------------------------- the chain

    def _newest(self) -> tuple[int, bytes]:
        query = "SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1"
        row = self.connection.execute(query).fetchone()
        return (0, GENESIS) if row is None else (row[0], row[1])

    def _present(self) -> HighWaterMark:
        if self.identity is not None and self._signed[0] != self.seq:
            self._signed = self.seq, self.identity.sign(ledger_head(self.seq, self._hash))
        return HighWaterMark(seq=self.seq, hash=self._hash.hex(), signature=self._signed[1])

    @property
    def head(self) -> LedgerHead | None:
        """The newest entry, signed; None without an identity or an entry."""
        mark = self._present()
        if self.identity is None or not mark.seq:
            return None
        return LedgerHead(
            coordinator=self.identity.id,
            seq=mark.seq,
            hash=self._hash,
            signature=mark.signature,
        )

    def append(
        self,
        kind: str,
        run_id: str | None = None,
        round_: int | None = None,
        *,
        amount_micro: int = 0,
        reserved_micro: int = 0,
        note: str = "",
    ) -> None:
        """Append an entry, which binds its rows as they are now, and move its money.

        Of what the round has `reserved_micro` the rest is free.

        Raises:
            sqlite3.IntegrityError: There is not so much, or the round has such an entry.
        """
        amount = checked_micro(kind, amount_micro)
        digest = digest_of(self.connection, bound_by(kind, run_id, round_))
        change = moved(kind, amount, reserved_micro)
        balance = map(sum, zip(balance_of(self.connection, run_id or ""), change, strict=True))
        self.seq += 1
        values = (self.seq, run_id, round_, kind, amount, digest, note, self.clock_ms(), *balance)
        self._hash = chain_hash(self._hash, values)
        self.connection.execute(_INSERT, (*values, self._hash))

    def note(self, text: str) -> None:
        """Say in the ledger what an operator did."""
        with self.transaction("note"):
            self.append("note", note=text)

    def accept(self, problem: str, until: int = 0) -> None:
        """Say in the ledger that an operator accepts a loss, of entries up to `until`."""
        with self.transaction("note"):
            self.append("accept", note=f"accepted: {problem}", amount_micro=until)
