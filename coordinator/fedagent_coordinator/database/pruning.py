"""Old rounds are closed: their rows are a file of the archive, and the ledger stays whole.

What a closed round saw and decided goes for good, so it can no more be replayed or asked why;
everything else of it is in ``archive/`` (`archives.py`), and what all closed rounds add up to is
in the database. A policy is restored from a snapshot and edges hold what they learnt since the
last merge, so nothing goes that came after the older of the newest two snapshots, or after the
newest model.
"""

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fedagent_node.data_dir import write_private

from . import archives, facts
from .archives import ARCHIVE, Summary, closed_sums, closed_until, file_name
from .connection import DATABASE, Database
from .segments import encode
from .sums import sums_of

NEVER = 10
"""Newest rounds that always stay: late work (ADR 33) and reports that come twice are of them."""
_LIMIT = """SELECT MIN(s.kept, m.merged, COALESCE(o.first - 1, s.kept)) FROM
    (SELECT COALESCE(MIN(round), 0) AS kept FROM
        (SELECT round FROM snapshots WHERE run_id = ?1 ORDER BY round DESC LIMIT 2)) s,
    (SELECT COALESCE(MAX(round), 1 << 62) AS merged FROM models WHERE run_id = ?1) m,
    (SELECT MIN(round) AS first FROM rounds WHERE run_id = ?1
        AND (round > ?2 OR state = 'open' OR closed_ms > ?3)) o"""
PIECE = 1000
"""Rounds in one transaction, and in one file, of what `fedagent prune` closes."""


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


def prunable(
    sql: sqlite3.Connection,
    run_id: str,
    *,
    keep_rounds: int = 0,
    before_ms: int = 2**62,
    most: int = 2**31,
) -> Prunable:
    """Return which rounds may be closed: those beyond the newest ones that ended before a time.

    No more than `most`, the oldest first; of what a former release has pruned whole pieces only.
    """
    first = closed_until(sql, run_id) + 1
    newest = sql.execute("SELECT MAX(round) FROM rounds WHERE run_id = ?", (run_id,)).fetchone()[0]
    wanted = (run_id, max(0, (newest or 0) - max(keep_rounds, NEVER)), before_ms)
    last = min(int(sql.execute(_LIMIT, wanted).fetchone()[0]), first + most - 1)
    row = sql.execute(
        "SELECT round FROM pruned WHERE run_id = ?1 AND first <= ?2 AND round > ?2 AND ?2 >= ?3",
        (run_id, last, first),
    ).fetchone()
    last = last if row is None else int(row[0])
    return Prunable(run_id=run_id, first=first, last=last)


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
        for key in _keys(pieces):
            files += len(encode(archives.gather(copy, *key)))
            archives.drop(copy, *key)
        copy.execute("VACUUM")
        pages, size = (copy.execute(f"PRAGMA page_{of}").fetchone()[0] for of in ("count", "size"))
    closed = sum(path.stat().st_size for path in folder.glob(f"{ARCHIVE}/*"))
    return before - int(pages * size) - closed - files


def _keys(pieces: Sequence[Prunable]) -> Iterator[tuple[str, int, int]]:
    for piece in pieces:
        for first in range(piece.first, piece.last + 1, PIECE):
            yield piece.run_id, first, min(piece.last, first + PIECE - 1)


def prune(db: Database, piece: Prunable, *, by: str) -> None:
    """Close the books of a piece: its file first, then one transaction for all rows.

    Crash points: ``prune.written``, ``prune.named``, ``prune.dropped``, and those of
    `Database.transaction`.

    Raises:
        OSError: The file could not be written; nothing has changed.
    """
    key, now = (piece.run_id, piece.first, piece.last), db.clock_ms()
    data = encode(archives.gather(db.connection, *key))
    summary = Summary(
        stretches=archives.stretches(db.connection, *key),
        sums=closed_sums(db.connection, piece.run_id) + sums_of(db.connection, *key),
    )
    write_private(db.folder / ARCHIVE / file_name(*key[:2]), data)
    db.checkpoint("prune.written")
    with db.transaction("prune") as sql:
        sql.execute(
            "INSERT INTO closed (run_id, first, round, digest, size_bytes, summary, by, at_ms) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(*key, hashlib.sha256(data).digest(), len(data)),
                *(msgspec.msgpack.encode(summary), by, now),
            ),
        )
        db.checkpoint("prune.named")
        archives.drop(sql, *key)
        db.checkpoint("prune.dropped")
        facts.bind(db.ledger, sql, facts.CLOSED, piece.run_id, piece.last, at_ms=now)
