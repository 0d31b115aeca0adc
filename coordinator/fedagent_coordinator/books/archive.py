"""Old rounds are closed: their orders go to a second database, and the ledger stays whole.

What a closed round saw and decided goes for good, so it can no more be replayed or asked why.
Its orders, its edges' results and its opinions are a row of ``archive.db`` each few hundred rounds;
a row of `closed`, which the chain binds, has the digest. The archive is written, synced and read
back first, then one transaction takes the rows out: a crash between the two leaves them in both.

A policy is restored from a snapshot and edges hold what they learnt since the last merge, so
nothing goes that came after the older of the newest two snapshots, or after the newest model.
"""

# ruff: noqa: S608 - every query is made of constants

import hashlib
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fedagent_coordinator.errors import StoreDamagedError
from fedagent_node.data_dir import make_private

from .schema import DATABASE

if TYPE_CHECKING:
    from .database import Database

ARCHIVE = "archive.db"
NEVER = 10
"""Newest rounds that always stay: late work (ADR 33) and reports that come twice are of them."""
PIECE = 1000
"""Most rounds in one transaction of what `fedagent prune` closes."""
_MANY_ORDERS = 100_000
"""Of a row of the archive: a board has no room for more at a time."""
_TABLES = ("orders", "edge_results", "answers")
_OF = "run_id = ?1 AND round BETWEEN ?2 AND ?3"
_WHERE = {
    # A restart goes on from the newest answer of each client.
    "answers": f"""{_OF} AND EXISTS (SELECT 1 FROM answers n WHERE n.run_id = answers.run_id
        AND n.round > answers.round AND n.client = answers.client
        AND (n.score IS NULL) = (answers.score IS NULL))""",
}
_LAST = """SELECT MIN(
    (SELECT COALESCE(MIN(round), 0) FROM
        (SELECT round FROM snapshots WHERE run_id = ?1 ORDER BY round DESC LIMIT 2)),
    (SELECT COALESCE(MAX(round), 1 << 62) FROM models WHERE run_id = ?1),
    (SELECT COALESCE(MIN(round) - 1, 1 << 62) FROM rounds
        WHERE run_id = ?1 AND round > ?2 AND state = 'open'),
    COALESCE((SELECT round FROM rounds WHERE run_id = ?1 AND round > ?2
        ORDER BY round LIMIT 1 OFFSET ?4 - 1), 1 << 62),
    COALESCE((SELECT round FROM rounds WHERE run_id = ?1
        ORDER BY round DESC LIMIT 1 OFFSET ?3), 0))"""
"""Rounds are counted: their numbers may leave some out, also on the word of an edge."""

Rows = dict[str, list[tuple[Any, ...]]]
"""By table, rows in the order of its columns."""


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


def closed_until(sql: sqlite3.Connection, run_id: str) -> int:
    """Return the last round that is closed: what it saw and decided is gone; 0 for none."""
    query = "SELECT COALESCE(MAX(last), 0) FROM main.closed WHERE run_id = ?"
    return int(sql.execute(query, (run_id,)).fetchone()[0])


def prunable(
    sql: sqlite3.Connection,
    run_id: str,
    *,
    keep_rounds: int = 0,
    most: int = 2**31,
) -> Prunable:
    """Return which rounds may be closed: those beyond the newest ones.

    No more than `most`, the oldest first.
    """
    closed = closed_until(sql, run_id)
    wanted = (run_id, closed, max(keep_rounds, NEVER), most)
    return Prunable(run_id=run_id, first=closed + 1, last=sql.execute(_LAST, wanted).fetchone()[0])


def prune(db: "Database", piece: Prunable, *, by: str) -> None:
    """Close the rounds of a piece, in as many rows of the archive as it takes.

    Crash points: ``prune.written``, ``prune.named``, ``prune.dropped``, and those of
    `Database.transaction`.

    Raises:
        sqlite3.Error, StoreDamagedError: The archive could not be written, or not be read again.
            Rows that are not there are where they were.
    """
    for part in _parts(db.connection, piece):
        _close(db, part, by=by)


def _parts(sql: sqlite3.Connection, piece: Prunable) -> Iterator[Prunable]:
    """Yield rounds that fit together in a row of the archive."""
    query = """SELECT round, COUNT(*) FROM orders WHERE run_id = ? AND round BETWEEN ? AND ?
        GROUP BY round ORDER BY round"""
    orders = 0
    for round_, count in sql.execute(query, piece.key).fetchall():
        orders += count
        if orders > _MANY_ORDERS and round_ > piece.first:
            yield replace(piece, last=round_ - 1)
            piece, orders = replace(piece, first=round_), count
    yield piece


def _close(db: "Database", piece: Prunable, *, by: str) -> None:
    now, rows = db.clock_ms(), _rows(db.connection, piece)
    # Columns deflate better.
    columns = {table: list(zip(*found, strict=True)) for table, found in rows.items()}
    body = zlib.compress(msgspec.msgpack.encode(columns), 6)
    digest = hashlib.sha256(body).digest()
    _keep(db.folder / ARCHIVE, piece, body)
    db.checkpoint("prune.written")
    read(db.folder, piece, digest)
    with db.transaction("prune") as sql:
        sql.execute(
            "INSERT INTO closed (run_id, first, last, digest, by, at_ms) VALUES (?, ?, ?, ?, ?, ?)",
            (*piece.key, digest, by, now),
        )
        db.checkpoint("prune.named")
        for table in _TABLES:
            sql.execute(f"DELETE FROM {table} WHERE {_WHERE.get(table, _OF)}", piece.key)
        sql.execute(
            f"UPDATE rounds SET view = x'', selection = x'', controls = x'' WHERE {_OF}",
            piece.key,
        )
        # No round is any more decided again from these.
        sql.execute(
            "DELETE FROM snapshots WHERE run_id = ? AND round < ?", (piece.run_id, piece.last)
        )
        db.checkpoint("prune.dropped")
        db.append("close", piece.run_id)


def _keep(path: Path, piece: Prunable, body: bytes) -> None:
    make_private(path)
    with closing(sqlite3.connect(path)) as archive, archive:
        archive.execute("PRAGMA synchronous = FULL")
        archive.execute(
            "CREATE TABLE IF NOT EXISTS closed (run_id TEXT NOT NULL, first INTEGER NOT NULL, "
            "body BLOB NOT NULL, PRIMARY KEY (run_id, first)) STRICT"
        )
        archive.execute("INSERT OR REPLACE INTO closed VALUES (?, ?, ?)", (*piece.key[:2], body))


def _rows(sql: sqlite3.Connection, piece: Prunable) -> Rows:
    found: Rows = {}
    for table in _TABLES:
        cursor = sql.cursor()
        cursor.row_factory = None
        where = _WHERE.get(table, _OF)
        cursor.execute(f"SELECT * FROM {table} WHERE {where} ORDER BY round", piece.key)
        found[table] = cursor.fetchall()
    return found


def read(folder: Path, piece: Prunable, digest: bytes) -> Rows:
    """Return what the archive has of closed rounds.

    Raises:
        StoreDamagedError: It is missing, or other than it was.
    """
    path = folder / ARCHIVE

    def damaged(problem: str) -> StoreDamagedError:
        hint = f"restore {ARCHIVE} from a copy of the data directory"
        what = f"the orders of rounds {piece.first} to {piece.last} {problem}"
        return StoreDamagedError(f"{ARCHIVE}:", what, hint)

    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as archive:
            row = archive.execute(
                "SELECT body FROM closed WHERE run_id = ? AND first = ?", piece.key[:2]
            ).fetchone()
    except sqlite3.Error as error:
        raise damaged(f"cannot be read ({error})") from error
    if row is None:
        raise damaged("are missing")
    if hashlib.sha256(row[0]).digest() != digest:
        raise damaged("have changed")
    # Bound by its digest, it is what was written, and no bomb.
    columns = msgspec.msgpack.decode(zlib.decompress(row[0]), type=Rows)
    return {table: list(zip(*found, strict=True)) for table, found in columns.items()}


def closed_pieces(sql: sqlite3.Connection, run_id: str = "") -> list[tuple[Prunable, bytes]]:
    """Return which rounds are in the archive, and their digests; of one run if it is named."""
    rows = sql.execute(
        "SELECT run_id, first, last, digest FROM main.closed WHERE ?1 IN ('', run_id) "
        "ORDER BY run_id, first",
        (run_id,),
    )
    return [(Prunable(run_id=row[0], first=row[1], last=row[2]), row[3]) for row in rows.fetchall()]


@contextmanager
def reopened(
    sql: sqlite3.Connection, folder: Path, pieces: list[tuple[Prunable, bytes]], *, alone: bool
) -> Iterator[None]:
    """Let queries find the orders of closed rounds: tables of this connection alone have them too.

    Where they are `alone`, the tables have these rounds and no others. Nothing may be written
    meanwhile.

    Raises:
        StoreDamagedError: They are missing, or other than they were.
    """
    try:
        for table in _TABLES:
            here = f"SELECT * FROM main.{table}"
            sql.execute(f"CREATE TEMP TABLE {table} AS {here}{' WHERE 0' if alone else ''}")
            if alone:
                for piece, _ in pieces:
                    sql.execute(f"INSERT INTO temp.{table} {here} WHERE {_OF}", piece.key)
        for piece, digest in pieces:
            for table, rows in read(folder, piece, digest).items():
                if rows:
                    places = ", ".join("?" * len(rows[0]))
                    sql.executemany(f"INSERT INTO temp.{table} VALUES ({places})", rows)
        for table in _TABLES:
            last = "edge" if table == "edge_results" else "client"
            sql.execute(f"CREATE INDEX temp.{table}_at ON {table} (run_id, round, {last})")
        yield
    finally:
        for table in _TABLES:
            sql.execute(f"DROP TABLE IF EXISTS temp.{table}")


def bytes_held(folder: Path) -> int:
    """Return what the database of a data directory and its archive take on the disk."""
    files = (DATABASE, f"{DATABASE}-wal", ARCHIVE)
    return sum(path.stat().st_size for name in files if (path := folder / name).exists())
