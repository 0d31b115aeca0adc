"""Closed books: old rounds are one file each few hundred, and a row of `closed` that binds it.

A row says which rounds of a run are in ``archive/``, the digest of the file, which entries of the
ledger are there, and what all closed rounds of the run add up to. It is bound into the chain by
an entry that stays, so one flipped bit of a file is noticed. Files are written before the
transaction that takes their rows out of the database: one without a row is the rest of a crash.
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from fedagent_coordinator.books.ledger import COLUMNS, Entry, chain_hash
from fedagent_coordinator.books.segments import MOST_BYTES_BOUND, Segment, decode, table_of
from fedagent_coordinator.books.sums import Sums
from fedagent_coordinator.errors import ArchiveError, RecordError

ARCHIVE = "archive"
_LATER = ("opinions", "volunteers")
"""Tables that files of before schema 12 do not have: their rows stayed in the database."""
TABLES = (
    *("pruned", "rounds", "edge_budgets", "reservations", "outcomes", "edge_results", "proofs"),
    *_LATER,
    "entries",
)
"""What goes, parents first. Models, what was measured of them and the means of opinions stay."""
LEFT = ("models", "metrics", "evaluations", "opinions", "volunteers")
_DROPPED = ("view", "selection", "controls")
"""Columns of a round that no file has: what it saw and decided."""
_STAYS = "('forgotten', 'closed')"
_OF = "run_id = ?1 AND round BETWEEN ?2 AND ?3"
_WHERE = {
    "entries": f"{_OF} AND source NOT IN {_STAYS}",
    # A restart goes on from the newest opinion of each client, and from the newest volunteers.
    "opinions": f"""{_OF} AND EXISTS (SELECT 1 FROM opinions n WHERE n.run_id = opinions.run_id
        AND n.round > opinions.round AND n.client = opinions.client)""",  # noqa: S608 - constants
    "volunteers": f"""{_OF} AND round <
        (SELECT MAX(round) FROM evaluations e WHERE e.run_id = volunteers.run_id)""",  # noqa: S608 - constants
}
_HASHED = COLUMNS[:-2]


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Entries without a gap, `seq` to `last`; the hashes before the first and of the last."""

    seq: int
    last: int
    before: bytes
    after: bytes


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a row of `closed` knows of its rounds; the sums are of all that are closed so far."""

    stretches: tuple[Stretch, ...]
    sums: Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """One row of `closed`."""

    run_id: str
    first: int
    last: int
    digest: bytes
    size_bytes: int
    summary: Summary

    @property
    def name(self) -> str:
        """Its file in the archive."""
        return file_name(self.run_id, self.first)


def file_name(run_id: str, first: int) -> str:
    """Return the name of the file of rounds that begin with one."""
    return f"{run_id}-{first:09d}.books"


def closed_books(sql: sqlite3.Connection, run_id: str = "") -> Iterator[Closed]:
    """Yield every row, by run and round; of one run only if it is named.

    Raises:
        RecordError: A row is damaged.
    """
    rows = sql.execute(
        "SELECT run_id, first, round, digest, size_bytes, summary FROM closed "
        "WHERE ?1 = '' OR run_id = ?1 ORDER BY run_id, round",
        (run_id,),
    )
    for of_run, first, last, digest, size_bytes, summary in rows:
        yield Closed(
            run_id=of_run,
            first=first,
            last=last,
            digest=digest,
            size_bytes=size_bytes,
            summary=_summary(summary),
        )


def closed_until(sql: sqlite3.Connection, run_id: str) -> int:
    """Return the last round whose books are closed; 0 for none."""
    query = "SELECT COALESCE(MAX(round), 0) FROM closed WHERE run_id = ?"
    return int(sql.execute(query, (run_id,)).fetchone()[0])


def closed_sums(sql: sqlite3.Connection, run_id: str) -> Sums:
    """Return what all closed rounds of a run add up to."""
    row = sql.execute(
        "SELECT summary FROM closed WHERE run_id = ? ORDER BY round DESC LIMIT 1", (run_id,)
    ).fetchone()
    return Sums() if row is None else _summary(row[0]).sums


def _summary(data: bytes) -> Summary:
    try:
        return msgspec.msgpack.decode(data, type=Summary)
    except msgspec.MsgspecError as error:
        raise RecordError("sums of closed rounds", str(error)) from error


# --------------------------------------------------------------------- closing


def gather(sql: sqlite3.Connection, run_id: str, first: int, last: int) -> Segment:
    """Return what a file has of these rounds; whatever columns a table has go with it."""
    tables = {}
    for table in TABLES:
        cursor = sql.cursor()
        cursor.row_factory = None
        cursor.execute(
            f"SELECT * FROM {table} WHERE {_WHERE.get(table, _OF)} "  # noqa: S608 - constants
            f"ORDER BY {'seq' if table == 'entries' else 'round'}",
            (run_id, first, last),
        )
        found = table_of([column[0] for column in cursor.description], cursor.fetchall())
        gone = {"hash", "prev_hash"} if table == "entries" else {*_DROPPED}
        kept = [at for at, name in enumerate(found.names) if name not in gone]
        tables[table] = structs.replace(
            found,
            names=tuple(found.names[at] for at in kept),
            columns=tuple(found.columns[at] for at in kept),
        )
    return Segment(run_id=run_id, first=first, last=last, tables=tables)


def count_rows(sql: sqlite3.Connection, run_id: str, first: int, last: int) -> int:
    """Return how many rows these rounds have in all tables, a few that stay included."""
    counts = " + ".join(f"(SELECT COUNT(*) FROM {table} WHERE {_OF})" for table in TABLES)  # noqa: S608 - constants
    return int(sql.execute(f"SELECT {counts}", (run_id, first, last)).fetchone()[0])


def stretches(sql: sqlite3.Connection, run_id: str, first: int, last: int) -> tuple[Stretch, ...]:
    """Return where the entries of these rounds are in the ledger."""
    rows = sql.execute(
        f"SELECT seq, prev_hash, hash FROM entries WHERE {_WHERE['entries']} ORDER BY seq",  # noqa: S608 - constants
        (run_id, first, last),
    ).fetchall()
    found = []
    for _, group in groupby(enumerate(rows), key=lambda item: item[1][0] - item[0]):
        block = [row for _, row in group]
        found.append(Stretch(block[0][0], block[-1][0], block[0][1], block[-1][2]))
    return tuple(found)


def drop(sql: sqlite3.Connection, run_id: str, first: int, last: int) -> None:
    """Take rows out of the database that their row of `closed` speaks for.

    With them go snapshots that no round is any more decided again from.
    """
    for table in reversed(TABLES):
        sql.execute(
            f"DELETE FROM {table} WHERE {_WHERE.get(table, _OF)}",  # noqa: S608 - constants
            (run_id, first, last),
        )
    sql.execute("DELETE FROM snapshots WHERE run_id = ? AND round < ?", (run_id, last))


# --------------------------------------------------------------------- reading


def read(folder: Path, books: Closed) -> Segment:
    """Return the rows of closed rounds, of a data directory.

    Raises:
        ArchiveError: The file is missing, other than it was, or cannot be read.
    """
    data = check(folder, books)
    try:
        # Bound by its digest, it is what was written, and no bomb.
        return decode(data, most_bytes=MOST_BYTES_BOUND)
    except RecordError as error:
        problem = f"cannot be read: {error.problem}"
        raise ArchiveError(books.name, books.first, books.last, problem) from error


def check(folder: Path, books: Closed) -> bytes:
    """Return the bytes of a file if they are those that were written.

    Raises:
        ArchiveError: The file is missing, or other than it was.
    """
    path = folder / ARCHIVE / books.name
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ArchiveError(books.name, books.first, books.last, "is missing") from error
    if len(data) != books.size_bytes or hashlib.sha256(data).digest() != books.digest:
        raise ArchiveError(books.name, books.first, books.last, "has changed")
    return data


def entries_of(segment: Segment, wanted: Iterable[Stretch]) -> Iterator[Entry]:
    """Yield the entries of a file, oldest first, with the hashes that follow.

    Raises:
        RecordError: They are not in these stretches, or lack a column.
    """
    try:
        table = segment.tables["entries"]
        places = [table.names.index(name) for name in _HASHED]
    except (LookupError, ValueError) as error:
        raise RecordError("closed books", f"entries: {error}") from error
    left = iter(wanted)
    at, before = Stretch(0, 0, b"", b""), b""
    for row in table.rows():
        values: tuple[Any, ...] = tuple(row[place] for place in places)
        if values[0] not in range(at.seq, at.last + 1):
            at = next(left, at)
            before = at.before
        hash_ = chain_hash(before, values)
        yield Entry(*(*values, before, hash_))
        before = hash_


def lay_down(sql: sqlite3.Connection, segment: Segment, summary: Summary) -> None:
    """Insert the rows of a file into a database of this release that lacks them.

    Raises:
        RecordError: They do not fit.
    """
    try:
        for name in TABLES:
            if name in _LATER and name not in segment.tables:
                continue
            table = segment.tables[name]
            names, rows = table.names, table.rows()
            if name == "entries":
                names = COLUMNS
                rows = (_plain(entry) for entry in entries_of(segment, summary.stretches))
            elif name == "rounds":
                names = (*names, *_DROPPED)
                rows = ((*row, *[b""] * len(_DROPPED)) for row in rows)
            columns = ", ".join(f'"{column}"' for column in names)
            places = ", ".join("?" * len(names))
            sql.executemany(f"INSERT INTO {name} ({columns}) VALUES ({places})", rows)  # noqa: S608 - names of tables are ours, columns are quoted
    except (sqlite3.Error, LookupError) as error:
        raise RecordError("closed books", str(error)) from error


def _plain(entry: Entry) -> tuple[Any, ...]:
    return tuple(getattr(entry, name) for name in COLUMNS)


def copy_left(source: sqlite3.Connection, target: sqlite3.Connection, books: Closed) -> None:
    """Insert what stayed in a database of closed rounds, and the names, into another one."""
    key = (books.run_id, books.first, books.last)
    for table in (*LEFT, "clients", "edges"):
        where = _OF if table in LEFT else "run_id = ?1 AND ?2 <= ?3"
        cursor = source.execute(f"SELECT * FROM {table} WHERE {where}", key)  # noqa: S608 - constants
        places = ", ".join("?" * len(cursor.description))
        target.executemany(f"INSERT INTO {table} VALUES ({places})", map(tuple, cursor))  # noqa: S608 - constants


def unprotect(sql: sqlite3.Connection) -> None:
    """Take the triggers out of a copy of a database."""
    triggers = sql.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (trigger,) in triggers:
        sql.execute(f"DROP TRIGGER {trigger}")


def reopen(sql: sqlite3.Connection, folder: Path, wanted: Iterable[Closed]) -> None:
    """Make rounds of a copy of a database what they were before they were closed.

    Its triggers go. If they are not all rounds that are closed, its sums have some of them twice.

    Raises:
        ArchiveError, RecordError: A file is missing or damaged.
    """
    unprotect(sql)
    sql.execute("BEGIN")
    for books in wanted:
        key = (books.run_id, books.first, books.last)
        sql.execute("DELETE FROM closed WHERE (run_id, first, round) = (?, ?, ?)", key)
        lay_down(sql, read(folder, books), books.summary)
        sql.execute(
            "INSERT OR REPLACE INTO pruned (run_id, first, round, by, at_ms) "
            "VALUES (?, ?, ?, '', 0)",
            key,
        )
    sql.execute("COMMIT")


def hash_at(sql: sqlite3.Connection, folder: Path, seq: int) -> bytes | None:
    """Return the hash of an entry, wherever it is; None if there is none.

    Raises:
        ArchiveError, RecordError: Its file is missing or damaged.
    """
    row = sql.execute("SELECT hash FROM entries WHERE seq = ?", (seq,)).fetchone()
    if row is not None:
        return bytes(row[0])
    for books in closed_books(sql):
        for stretch in books.summary.stretches:
            if seq == stretch.last:
                return stretch.after
            if stretch.seq <= seq < stretch.last:
                entries = entries_of(read(folder, books), books.summary.stretches)
                return next((entry.hash for entry in entries if entry.seq == seq), None)
    return None


def missing(sql: sqlite3.Connection, folder: Path) -> bool:
    """Return whether a file is not there, or of another size; its bytes are not read."""
    kept = sql.execute("SELECT run_id, first, size_bytes FROM closed").fetchall()
    sizes = _sizes(folder)
    return any(sizes.get(file_name(run_id, first)) != size for run_id, first, size in kept)


def remove_orphans(sql: sqlite3.Connection, folder: Path) -> None:
    """Remove files that no row speaks for: their rows are still in the database."""
    kept = {file_name(*row) for row in sql.execute("SELECT run_id, first FROM closed")}
    for name in _sizes(folder).keys() - kept:
        (folder / ARCHIVE / name).unlink()


def _sizes(folder: Path) -> dict[str, int]:
    with suppress(FileNotFoundError):
        return {path.name: path.stat().st_size for path in (folder / ARCHIVE).iterdir()}
    return {}
