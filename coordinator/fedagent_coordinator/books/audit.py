"""Reading the ledger: show it, export it, and find out whether it is whole.

`Ledger.verify` trusts nothing that is stored as a sum: it walks the hash chain, compares the rows
that entries bind with what they are now, and adds the money up again. Of closed rounds the digests
of the archive are enough; a full audit looks at every row in it as well. A start, which a person
waits for, looks at the newest entries alone.
"""

import csv
import io
import sqlite3
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import astuple, dataclass, field, fields
from itertools import product
from pathlib import Path

from fedagent_coordinator.books.settling import digest_of_saw
from fedagent_coordinator.errors import StoreDamagedError
from fedagent_node.data_dir import read_public
from fedagent_node.errors import CredentialsError
from fedagent_protocol.signed import ledger_head, verify

from .archive import closed_pieces, closed_until, read, reopened
from .ledger import (
    BOUND,
    WRITTEN,
    Bound,
    Entry,
    Transfer,
    bound_by,
    chain_hash,
    digest_of,
    entries_of,
    hash_at,
    moved,
    transfers_of,
)
from .mark import MARK, HighWaterMark, read_mark
from .rows import Balance, unmoved

_MAX_PROBLEMS = 100
_AMOUNTS = """SELECT r.reserved_micro, r.rent_micro + COALESCE(SUM(o.price_micro), 0),
    r.rent_paid_micro + COALESCE(SUM((NOT o.unpaid) * o.price_micro), 0)
    FROM rounds r LEFT JOIN orders o USING (run_id, round) WHERE run_id = ? AND round = ?"""
"""What a round reserved, by its row and by its orders, and paid."""
_SAW = "SELECT view, selection, controls, saw FROM rounds WHERE run_id = ? AND round = ?"
_TALLIES = """SELECT run_id, client, COUNT(*), TOTAL(in_time), TOTAL(used), TOTAL(NOT unpaid),
    TOTAL((NOT unpaid) * price_micro) FROM orders GROUP BY run_id, client"""
_DONE_BY = "SELECT run_id, idx, ordered, in_time, used, paid, paid_micro FROM clients"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReport(Balance):
    """What `verify` found: at most 100 problems, one line each; amounts are sums over all runs."""

    balanced: bool
    problems: tuple[str, ...]
    entries: int
    runs: dict[str, Balance]


class Ledger:
    """The ledger as people and auditors read it, of a data directory."""

    def __init__(self, connection: sqlite3.Connection, folder: Path) -> None:
        self._db = connection
        self._folder = folder

    def show(self, run_id: str | None = None, *, limit: int = 50) -> list[Transfer]:
        """Return what the newest entries moved, newest first; -1 is no limit.

        Closed rounds are not among them.
        """
        return transfers_of(self._db, run_id, newest=limit)

    def export(self) -> Iterator[str]:
        """Yield what all entries moved: CSV with a header; hashes are hex.

        Raises:
            StoreDamagedError: The orders of closed rounds are missing or damaged.
        """
        yield ",".join(one.name for one in fields(Transfer)) + "\r\n"
        with reopened(self._db, self._folder, closed_pieces(self._db), alone=False):
            found = transfers_of(self._db)
        for one in found:
            line = io.StringIO()
            csv.writer(line).writerow(one.record().values())
            yield line.getvalue()

    def verify(self, *, full: bool = False, since: int = 0) -> LedgerReport:
        """Say what is wrong, if anything.

        A `full` audit looks at every row of closed rounds; one `since` an entry at those after it,
        and at what they bind.
        """
        audit = _Audit(self._db, self._folder, whole=not since)
        mark = audit.read_mark()  # before the snapshot, which may only be newer
        with nullcontext() if self._db.in_transaction else unmoved(self._db):
            audit.walk(since)
            if mark is not None:
                audit.check_mark(mark)
            audit.check_rows()
            if not since:
                audit.check_archive(full=full)
                audit.check_sums(full=full)
                audit.check_database()
        problems = tuple(audit.problems)
        sums = map(sum, zip(*map(astuple, audit.balances.values()), strict=True))
        total = dict(zip((one.name for one in fields(Balance)), sums, strict=False))
        return LedgerReport(
            balanced=not problems,
            problems=problems,
            entries=audit.seq,
            runs=audit.balances,
            **total,
        )


@dataclass(slots=True)
class _Audit:
    db: sqlite3.Connection
    folder: Path
    whole: bool
    problems: list[str] = field(default_factory=list)
    seq: int = 0
    public: bytes | None = None
    bound: dict[Bound, bytes] = field(default_factory=dict)
    """The digest in the newest entry of each."""
    sums: dict[str, list[int]] = field(default_factory=dict)
    reserved: dict[tuple[str, int], int] = field(default_factory=dict)
    closed: dict[str, int] = field(default_factory=dict)
    """By run, the last round whose orders are in the archive."""
    balances: dict[str, Balance] = field(default_factory=dict)
    tallies: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    def problem(self, text: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(text)

    def read_mark(self) -> HighWaterMark | None:
        try:
            mark = read_mark(self.folder / MARK)
            self.public = read_public(self.folder)
        except (ValueError, CredentialsError) as error:
            if isinstance(error.__cause__, PermissionError):
                raise error.__cause__ from error  # whose key cannot be read is not damaged
            self.problem(f"the high-water mark cannot be read: {error}")
            return None
        if mark is None:
            self.problem("the high-water mark is missing")
        return mark

    def walk(self, since: int) -> None:
        """Follow the chain, and the money."""
        before = hash_at(self.db, since) or b""
        self.seq = since
        for entry in entries_of(self.db, since):
            if entry.seq != self.seq + 1:
                self.problem(f"entry {self.seq + 1} is missing; the next one is {entry.seq}")
            if chain_hash(before, entry[:-1]) != entry.hash:
                self.problem(f"entry {entry.seq} breaks the hash chain")
            self.seq, before = entry.seq, entry.hash
            if entry.run_id is not None:
                self.bound[bound_by(entry.kind, entry.run_id, entry.round)] = entry.digest
                self._move(entry, entry.run_id)

    def _move(self, entry: Entry, run_id: str) -> None:
        place, reserved = (run_id, entry.round or 0), 0
        if entry.kind == "reserve":
            self.reserved[place] = entry.amount_micro
        elif entry.kind in ("settle", "void"):
            if self.whole:
                reserved = self.reserved.pop(place, -1)
                if reserved < entry.amount_micro:
                    self.problem(f"entry {entry.seq} does not fit any reservation")
            if place[1] > self._closed(run_id):
                self._check_amounts(entry)
        change = moved(entry.kind, entry.amount_micro, reserved)
        sums = self.sums.setdefault(run_id, [0] * len(change))
        sums[:] = [a + b for a, b in zip(sums, change, strict=True)]
        if self.whole and entry.balance != tuple(sums):
            self.problem(f"entry {entry.seq} does not say where the money is after it")

    def _check_amounts(self, entry: Entry) -> None:
        row = self.db.execute(_AMOUNTS, (entry.run_id, entry.round)).fetchone()
        if (row[0], row[2]) != (row[1], entry.amount_micro):
            self.problem(f"entry {entry.seq} is not what round {entry.round} has")

    def _closed(self, run_id: str) -> int:
        if run_id not in self.closed:
            self.closed[run_id] = closed_until(self.db, run_id)
        return self.closed[run_id]

    def check_rows(self) -> None:
        """Compare rows with the newest entry that binds them, and find rows without one."""
        for bound in self.bound:
            what, run_id, round_ = bound
            if 1 <= round_ <= self._closed(run_id):
                continue
            self._compare(bound)
            row = self.db.execute(_SAW, (run_id, round_)).fetchone() if what == "round" else None
            if row is not None and digest_of_saw(*row[:3]) != row[3]:
                self.problem(f"round {round_}: what was decided has changed")
        for row in self.db.execute(WRITTEN).fetchall() if self.whole else ():
            if tuple(row) not in self.bound:
                self._changed(tuple(row))

    def _compare(self, bound: Bound) -> None:
        if digest_of(self.db, bound) != self.bound[bound]:
            self._changed(bound)

    def _changed(self, bound: Bound) -> None:
        _, run_id, round_ = bound
        where = f"round {round_}" if round_ else f"run {run_id[:8]}"
        self.problem(f"{where}: its rows have changed since the ledger bound them")

    def check_archive(self, *, full: bool) -> None:
        """Find what is not in the archive as it was written, or, with `full`, as it was bound."""
        for piece, digest in closed_pieces(self.db):
            try:
                if not full:
                    read(self.folder, piece, digest)
                    continue
                with reopened(self.db, self.folder, [(piece, digest)], alone=True):
                    for round_, what in product(range(piece.first, piece.last + 1), BOUND):
                        if (bound := (what, piece.run_id, round_)) in self.bound:
                            self._compare(bound)
                    self._add_up()
            except StoreDamagedError as error:
                self.problem(str(error))

    def _add_up(self) -> None:
        for run_id, client, *values in self.db.execute(_TALLIES).fetchall():
            tally = self.tallies.setdefault((run_id, client), [0] * len(values))
            tally[:] = [int(a + b) for a, b in zip(tally, values, strict=True)]

    def check_sums(self, *, full: bool) -> None:
        """Compare stored sums of what each client did; note where the money is."""
        for (run_id,) in self.db.execute("SELECT run_id FROM runs ORDER BY run_id").fetchall():
            self.balances[run_id] = Balance(*self.sums.get(run_id, ()))
        self._add_up()
        for run_id, client, *values in self.db.execute(_DONE_BY).fetchall():
            known = full or not closed_until(self.db, run_id)
            if known and self.tallies.get((run_id, client), [0] * len(values)) != values:
                self.problem(f"client {client} of run {run_id[:8]}: its orders do not add up")

    def check_database(self) -> None:
        """Find damage."""
        for row in self.db.execute("PRAGMA integrity_check"):
            if row[0] != "ok":
                self.problem(f"database: {row[0]}")
        for table, *_ in self.db.execute("PRAGMA foreign_key_check"):
            self.problem(f"database: {table} refers to a row that is missing")

    def check_mark(self, mark: HighWaterMark) -> None:
        """Compare the entry that the mark names."""
        found = hash_at(self.db, mark.seq)
        if found is None:
            self.problem(f"history is lost: the last entry is {self.seq}, of {mark.seq}")
        elif found.hex() != mark.hash:
            self.problem(f"entry {mark.seq} is not the one that was promised")
        head = ledger_head(mark.seq, bytes.fromhex(mark.hash))
        if mark.seq and self.public and not verify(self.public, mark.signature, head):
            self.problem("the head of the ledger is not signed by this coordinator")
