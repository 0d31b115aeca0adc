"""Old rounds are closed: their rows are a file of the archive, and the ledger stays whole.

What a closed round saw and decided goes for good, so it can no more be replayed or asked why;
everything else of it is in ``archive/`` (`archives.py`), and what all closed rounds add up to is
in the database. A policy is restored from a snapshot and edges hold what they learnt since the
last merge, so nothing goes that came after the older of the newest two snapshots, or after the
newest model.
"""

import errno
import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from fedagent_coordinator.books import archives, facts
from fedagent_coordinator.books.archives import (
    ARCHIVE,
    Summary,
    closed_sums,
    closed_until,
    file_name,
)
from fedagent_coordinator.books.connection import DATABASE, Database
from fedagent_coordinator.books.segments import Segment, decode, encode
from fedagent_coordinator.books.sums import sums_of
from fedagent_coordinator.errors import OversizedBooksError, RecordError
from fedagent_node.data_dir import write_private

NEVER = 10
"""Newest rounds that always stay: late work (ADR 33) and reports that come twice are of them."""
_LIMIT = """SELECT MIN(s.kept, m.merged, COALESCE(o.first - 1, s.kept)) FROM
    (SELECT COALESCE(MIN(round), 0) AS kept FROM
        (SELECT round FROM snapshots WHERE run_id = ?1 ORDER BY round DESC LIMIT 2)) s,
    (SELECT COALESCE(MAX(round), 1 << 62) AS merged FROM models WHERE run_id = ?1) m,
    (SELECT MIN(round) AS first FROM rounds WHERE run_id = ?1
        AND (round > ?2 OR state = 'open' OR closed_ms > ?3)) o"""
PIECE = 1000
"""Most rounds in one transaction, and in one file, of what `fedagent prune` closes."""
_MANY_ROWS = 400_000
"""Of a file: more rounds are parted before they are read, as a board has no room for them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prunable:
    """Rounds of a run that may be closed, `first` to `last`; none if `last` is before it."""

    run_id: str
    first: int
    last: int

    @property
    def rounds(self) -> int:
        """How many there are."""
        return max(0, self.last - self.first + 1)

    @property
    def key(self) -> tuple[str, int, int]:
        """What its rows are found by."""
        return self.run_id, self.first, self.last


def prunable(
    sql: sqlite3.Connection,
    run_id: str,
    *,
    keep_rounds: int = 0,
    before_ms: int = 2**62,
    most: int = 2**31,
) -> Prunable:
    """Return which rounds may be closed: those beyond the newest ones that ended before a time.

    No more than `most`, the oldest first.
    """
    first = closed_until(sql, run_id) + 1
    beyond = sql.execute(
        "SELECT round FROM rounds WHERE run_id = ? ORDER BY round DESC LIMIT 1 OFFSET ?",
        (run_id, max(keep_rounds, NEVER)),
    ).fetchone()
    wanted = (run_id, beyond[0] if beyond is not None else 0, before_ms)
    last = min(int(sql.execute(_LIMIT, wanted).fetchone()[0]), _last_of(sql, run_id, first, most))
    return Prunable(run_id=run_id, first=first, last=last)


def _last_of(sql: sqlite3.Connection, run_id: str, first: int, most: int) -> int:
    """Return the last of so many rounds from `first` on.

    Rows are counted: numbers of rounds may leave some out, also on the word of an edge.
    """
    row = sql.execute(
        "SELECT round FROM rounds WHERE run_id = ? AND round >= ? ORDER BY round LIMIT 1 OFFSET ?",
        (run_id, first, most - 1),
    ).fetchone()
    return 2**62 if row is None else int(row[0])


def bytes_held(folder: Path) -> int:
    """Return what the database of a data directory and its archive take on the disk."""
    files = [*folder.glob(DATABASE), *folder.glob(f"{DATABASE}-wal"), *folder.glob(f"{ARCHIVE}/*")]
    return sum(path.stat().st_size for path in files)


def foretold(sql: sqlite3.Connection, folder: Path, pieces: Sequence[Prunable]) -> int:
    """Return by how much `bytes_held` falls if rounds are closed and the database written anew.

    It is done in a copy beside temporary files, which takes the room of the database.
    """
    before, files = bytes_held(folder), 0
    with closing(sqlite3.connect("", isolation_level=None)) as copy:
        sql.backup(copy)
        archives.unprotect(copy)
        copy.execute("PRAGMA journal_mode = OFF")
        for piece in pieces:
            with suppress(OversizedBooksError):  # from there on everything stays
                for part, _, data in _files(copy, piece):
                    files += len(data)
                    archives.drop(copy, *part.key)
        copy.execute("VACUUM")
        pages, size = (copy.execute(f"PRAGMA page_{of}").fetchone()[0] for of in ("count", "size"))
    closed = sum(path.stat().st_size for path in folder.glob(f"{ARCHIVE}/*"))
    return before - int(pages * size) - closed - files


def _files(sql: sqlite3.Connection, piece: Prunable) -> Iterator[tuple[Prunable, Segment, bytes]]:
    """Yield the rounds of each file, the oldest first; one's rows go before the next is asked for.

    Raises:
        OversizedBooksError: Rounds that cannot be parted do not fit in a file.
    """
    while piece.rounds:
        last = min(piece.last, _last_of(sql, piece.run_id, piece.first, PIECE))
        part, segment, data = _oldest(sql, replace(piece, last=last))
        yield part, segment, data
        piece = replace(piece, first=part.last + 1)


def _oldest(sql: sqlite3.Connection, piece: Prunable) -> tuple[Prunable, Segment, bytes]:
    """Return the oldest rounds of a piece that fit in a file: all, half of them, a quarter."""
    half = replace(piece, last=max(piece.first, piece.first + piece.rounds // 2 - 1))
    if half == piece or archives.count_rows(sql, *piece.key) <= _MANY_ROWS:
        segment = archives.gather(sql, *piece.key)
        try:
            return piece, segment, encode(segment)
        except OversizedBooksError:
            if half == piece:
                raise
    return _oldest(sql, half)


def prune(db: Database, piece: Prunable, *, by: str) -> None:
    """Close the books of a piece: in as many files as it takes, each of them by itself.

    Crash points: ``prune.written``, ``prune.named``, ``prune.dropped``, and those of
    `Database.transaction`.

    Raises:
        OSError: A file could not be written, or not be read again.
        OversizedBooksError: Rounds that cannot be parted do not fit in a file. Here as there, rows
            without a file are where they were.
    """
    for part, segment, data in _files(db.connection, piece):
        _close(db, part, segment, data, by=by)


def _close(db: Database, piece: Prunable, segment: Segment, data: bytes, *, by: str) -> None:
    """Write the file first, and read it again; then one transaction takes all rows."""
    now = db.clock_ms()
    summary = Summary(
        stretches=archives.stretches(db.connection, *piece.key),
        sums=closed_sums(db.connection, piece.run_id) + sums_of(db.connection, *piece.key),
    )
    path = db.folder / ARCHIVE / file_name(piece.run_id, piece.first)
    write_private(path, data)
    db.checkpoint("prune.written")
    _read_back(path, segment)
    with db.transaction("prune") as sql:
        sql.execute(
            "INSERT INTO closed (run_id, first, round, digest, size_bytes, summary, by, at_ms) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(*piece.key, hashlib.sha256(data).digest(), len(data)),
                *(msgspec.msgpack.encode(summary), by, now),
            ),
        )
        db.checkpoint("prune.named")
        archives.drop(sql, *piece.key)
        db.checkpoint("prune.dropped")
        facts.bind(db.ledger, sql, facts.CLOSED, piece.run_id, piece.last, at_ms=now)


def _read_back(path: Path, segment: Segment) -> None:
    """Make sure of a file before its rows are dropped: nothing else has them after that."""
    try:
        same = decode(path.read_bytes()) == segment
    except RecordError:
        same = False
    if not same:
        raise OSError(errno.EIO, f"{path.name} is not what was written")
