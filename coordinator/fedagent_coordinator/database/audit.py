"""Reading the ledger: show it, export it, and prove that it is whole.

`Ledger.verify` trusts nothing that is stored as a sum: it walks every entry and compares
everything else, the high-water mark included, with what it found.
"""

import csv
import io
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Literal

from .audit_rounds import Place, check_rounds
from .evaluations import check_evaluations
from .high_water_mark import GENESIS, HighWaterMark, read_mark
from .ledger import COLUMNS, GRANTOR, TREASURY, Entry, paid_to, rent_of, reserved_at

_MAX_PROBLEMS = 100
_ENTRIES = f"SELECT {', '.join(COLUMNS)} FROM entries"  # noqa: S608 - constants


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Where the money of a run is; granted = free + reserved + settled."""

    granted_micro: int = 0
    free_micro: int = 0
    reserved_micro: int = 0
    settled_micro: int = 0
    voided_micro: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReport(Balance):
    """What `verify` found: at most 100 problems, one line each; amounts are sums over all runs."""

    balanced: bool
    problems: tuple[str, ...]
    entries: int
    runs: dict[str, Balance]


@dataclass(slots=True)
class _Audit:
    problems: list[str] = field(default_factory=list)
    balances: dict[str, Counter[str]] = field(default_factory=dict)
    totals: dict[str, Counter[str]] = field(default_factory=dict)
    reserved: dict[Place, Entry] = field(default_factory=dict)
    ended: dict[Place, str] = field(default_factory=dict)
    seq: int = 0
    hash: bytes = GENESIS
    mark_seen: bool = False

    def problem(self, text: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(text)

    def take(self, entry: Entry) -> None:
        if entry.seq != self.seq + 1:
            self.problem(f"entry {self.seq + 1} is missing; the next one is {entry.seq}")
        if entry.prev_hash != self.hash or entry.expected_hash() != entry.hash:
            self.problem(f"entry {entry.seq} breaks the hash chain")
        self.seq, self.hash = entry.seq, entry.hash
        if entry.kind == "note" or entry.run_id is None:
            return
        if _route(entry) != (entry.source, entry.target):
            self.problem(f"entry {entry.seq}: a {entry.kind} moves money by the wrong way")
        self._move(entry, entry.run_id)
        place = (entry.run_id, entry.round, entry.client)
        if entry.kind == "reserve":
            if place in self.reserved:
                self.problem(f"entry {entry.seq} reserves a client, or a rent, twice")
            self.reserved[place] = entry
        elif entry.kind in {"settle", "void"}:
            self._end(entry, place)

    def balance(self, run_id: str) -> Balance:
        totals = self.totals.get(run_id, Counter())
        accounts = self.balances.get(run_id, Counter())
        return Balance(
            granted_micro=totals["grant"],
            free_micro=accounts[TREASURY],
            reserved_micro=totals["reserve"] - totals["settle"] - totals["void"],
            settled_micro=totals["settle"],
            voided_micro=totals["void"],
        )

    def _move(self, entry: Entry, run_id: str) -> None:
        self.totals.setdefault(run_id, Counter())[entry.kind] += entry.amount_micro
        accounts = self.balances.setdefault(run_id, Counter())
        accounts[entry.source] -= entry.amount_micro
        accounts[entry.target] += entry.amount_micro
        if entry.source != GRANTOR and accounts[entry.source] < 0:
            self.problem(f"entry {entry.seq} spends more than {entry.source} has")

    def _end(self, entry: Entry, place: Place) -> None:
        before = self.reserved.get(place)
        if place in self.ended:
            self.problem(f"entry {entry.seq} ends a reservation that had ended")
        elif before is None or (before.amount_micro, before.edge) != (
            entry.amount_micro,
            entry.edge,
        ):
            self.problem(f"entry {entry.seq} does not fit any reservation")
        self.ended[place] = entry.kind


class Ledger:
    """The ledger as people and auditors read it."""

    def __init__(self, connection: sqlite3.Connection, mark_path: Path) -> None:
        self._db = connection
        self._mark_path = mark_path

    def show(self, run_id: str | None = None, *, limit: int = 50) -> list[Entry]:
        """Return the newest entries, newest first; -1 is no limit."""
        rows = self._db.execute(
            f"{_ENTRIES} WHERE ?1 IS NULL OR run_id = ?1 ORDER BY seq DESC LIMIT ?2",
            (run_id, limit),
        )
        return [Entry(*row) for row in rows]

    def export(self, style: Literal["csv", "json"]) -> Iterator[str]:
        """Yield all entries, oldest first: CSV with a header, or JSON lines; hashes are hex."""
        if style == "csv":
            yield ",".join(COLUMNS) + "\r\n"
        for entry in self._entries():
            row = {**asdict(entry), "prev_hash": entry.prev_hash.hex(), "hash": entry.hash.hex()}
            if style == "json":
                yield json.dumps(row) + "\n"
            else:
                line = io.StringIO()
                csv.writer(line).writerow(row.values())
                yield line.getvalue()

    def verify(self) -> LedgerReport:
        """Re-add everything from the entries and say what is wrong, if anything."""
        audit = _Audit()
        mark = self._read_mark(audit)  # before the snapshot, which may only be newer
        own = not self._db.in_transaction
        if own:
            self._db.execute("BEGIN")
        try:
            for entry in self._entries():
                audit.take(entry)
                if mark is not None and entry.seq == mark.seq:
                    audit.mark_seen = entry.hash.hex() == mark.hash
            self._check_mark(audit, mark)
            self._check_accounts(audit)
            check_rounds(self._db, audit.reserved, audit.ended, audit.problem)
            check_evaluations(self._db, audit.problem)
            self._check_database(audit)
            runs = [row[0] for row in self._db.execute("SELECT run_id FROM runs ORDER BY run_id")]
        finally:
            if own:
                self._db.execute("ROLLBACK")
        return _report(audit, {run_id: audit.balance(run_id) for run_id in runs})

    def _entries(self) -> Iterator[Entry]:
        return (Entry(*row) for row in self._db.execute(f"{_ENTRIES} ORDER BY seq"))

    def _read_mark(self, audit: _Audit) -> HighWaterMark | None:
        try:
            mark = read_mark(self._mark_path)
        except ValueError as error:
            audit.problem(f"the high-water mark cannot be read: {error}")
            return None
        if mark is None:
            audit.problem("the high-water mark is missing")
        return mark

    def _check_mark(self, audit: _Audit, mark: HighWaterMark | None) -> None:
        if mark is None:
            return
        commits = self._db.execute("SELECT value FROM meta WHERE name = 'commits'").fetchone()[0]
        if commits < mark.commits or audit.seq < mark.seq:
            audit.problem(
                f"history is lost: commit {commits}, entry {audit.seq}; "
                f"promised were commit {mark.commits}, entry {mark.seq}"
            )
        elif mark.seq and not audit.mark_seen:
            audit.problem(f"entry {mark.seq} is not the one that was promised")

    def _check_accounts(self, audit: _Audit) -> None:
        stored: dict[str, Counter[str]] = {}
        for run_id, account, balance in self._db.execute(
            "SELECT run_id, account, balance_micro FROM accounts"
        ):
            stored.setdefault(run_id, Counter())[account] = balance
        for run_id in {*stored, *audit.balances}:
            replayed = Counter(audit.balances.get(run_id, Counter()))
            replayed.pop(GRANTOR, None)
            if +replayed != +stored.get(run_id, Counter()):
                audit.problem(f"run {run_id[:8]}: stored balances are not the sum of the entries")

    def _check_database(self, audit: _Audit) -> None:
        for row in self._db.execute("PRAGMA integrity_check"):
            if row[0] != "ok":
                audit.problem(f"database: {row[0]}")
        for table, *_ in self._db.execute("PRAGMA foreign_key_check"):
            audit.problem(f"database: {table} refers to a row that is missing")


def _route(entry: Entry) -> tuple[str, str] | None:
    edge = -1 if entry.edge is None else entry.edge
    reserved = reserved_at(edge)
    paid = rent_of(edge) if entry.client is None else paid_to(entry.client)
    return {
        "grant": (GRANTOR, TREASURY),
        "reserve": (TREASURY, reserved),
        "settle": (reserved, paid),
        "void": (reserved, TREASURY),
    }.get(entry.kind)


def _report(audit: _Audit, runs: dict[str, Balance]) -> LedgerReport:
    for run_id, b in runs.items():
        if b.granted_micro != b.free_micro + b.reserved_micro + b.settled_micro:
            audit.problem(f"run {run_id[:8]}: granted is not free + reserved + settled")
    return LedgerReport(
        balanced=not audit.problems,
        problems=tuple(audit.problems),
        entries=audit.seq,
        runs=runs,
        **{one.name: sum(getattr(b, one.name) for b in runs.values()) for one in fields(Balance)},
    )
