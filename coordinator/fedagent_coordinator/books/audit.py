"""Reading the ledger: show it, export it, and prove that it is whole.

`Ledger.verify` trusts nothing that is stored as a sum: it walks every entry and compares
everything else, the high-water mark included, with what it found. The entries are hash-chained;
the tables of rounds, models and evaluations are compared with the facts that they bind. Of closed
books the digests of files are enough: they and what the files add up to are bound too. A
full audit walks what is in the files as well.
"""

import csv
import heapq
import io
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from fedagent_coordinator.books import facts
from fedagent_coordinator.books.archives import (
    Closed,
    Stretch,
    check,
    closed_books,
    copy_left,
    entries_of,
    hash_at,
    lay_down,
    read,
)
from fedagent_coordinator.books.heads import head_bytes, is_genuine
from fedagent_coordinator.books.ledger import COLUMNS, GENESIS, GRANTOR, ROUTES, TREASURY, Entry
from fedagent_coordinator.books.mark import MARK, HighWaterMark, read_mark
from fedagent_coordinator.books.proofs import PaidWork, digest_of, paid_work
from fedagent_coordinator.books.schema import has_changed, prepare
from fedagent_coordinator.books.sums import Sums, sums_of
from fedagent_coordinator.core.effects import Proof
from fedagent_coordinator.errors import ArchiveError, RecordError
from fedagent_node.data_dir import read_public
from fedagent_node.errors import IdentityError
from fedagent_protocol.messages import LedgerHead
from fedagent_protocol.signed import verify

_Place = tuple[str | None, int | None, int | None]
"""Run, round and client: what one reservation is known by; the rent has no client."""
_AtEdge = tuple[str | None, int | None, int | None]
"""Run, round and edge."""
_MAX_PROBLEMS = 100
_NAMES = {
    "client": "SELECT run_id, idx, agent_id FROM clients",
    "edge": "SELECT run_id, idx, edge_id FROM edges",
}
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


class Ledger:
    """The ledger as people and auditors read it, of a data directory."""

    def __init__(self, connection: sqlite3.Connection, folder: Path) -> None:
        self._db = connection
        self._folder = folder

    def show(self, run_id: str | None = None, *, limit: int = 50) -> list[Entry]:
        """Return the newest entries that move money, newest first; -1 is no limit.

        Those of closed rounds are not among them.
        """
        rows = self._db.execute(
            f"{_ENTRIES} WHERE (?1 IS NULL OR run_id = ?1) AND kind <> 'fact' "
            "ORDER BY seq DESC LIMIT ?2",
            (run_id, limit),
        )
        return [Entry(*row) for row in rows]

    def export(self, style: Literal["csv", "json"]) -> Iterator[str]:
        """Yield all entries, oldest first: CSV with a header, or JSON lines; hashes are hex.

        Raises:
            ArchiveError, RecordError: The books of closed rounds are missing or damaged.
        """
        if style == "csv":
            yield ",".join(COLUMNS) + "\r\n"
        for entry in self._every_entry():
            row = entry.record()
            if style == "json":
                yield json.dumps(row) + "\n"
            else:
                line = io.StringIO()
                csv.writer(line).writerow(row.values())
                yield line.getvalue()

    def proof(self, run_id: str, round_: int, agent: str) -> PaidWork | None:
        """Return what an agent was paid for in a round, with its signature; None if unknown."""
        return paid_work(self._db, run_id, round_, agent)

    def verify(self, witness: LedgerHead | None = None, *, full: bool = False) -> LedgerReport:
        """Re-add everything from the entries and say what is wrong, if anything.

        With a `witness` its entry must be there too, and be the same. A `full` audit adds up
        what is in closed books from their entries; else the digests of their files are checked.
        """
        audit = _Audit(self._db)
        mark = audit.read_mark(self._folder / MARK)  # before the snapshot, which may only be newer
        own = not self._db.in_transaction
        if own:
            self._db.execute("BEGIN")
        try:
            audit.read_names()
            books = audit.read_archive(self._folder)
            for item in self._walk(books):
                if isinstance(item, Entry):
                    audit.take(item)
                else:
                    audit.skip(*item, self._folder if full else None)
            audit.find_heads(self._folder, mark, witness)
            return audit.report(mark)
        finally:
            if own:
                self._db.execute("ROLLBACK")

    def _walk(self, books: Iterable[Closed]) -> Iterator[Entry | tuple[Stretch, Closed]]:
        """Yield the entries in the database, and where those of closed books are, in order."""
        rows = (Entry(*row) for row in self._db.execute(f"{_ENTRIES} ORDER BY seq"))
        elsewhere = [(stretch, one) for one in books for stretch in one.summary.stretches]
        elsewhere.sort(key=lambda item: item[0].seq)
        if not elsewhere:
            return iter(rows)
        return heapq.merge(rows, elsewhere, key=_seq_of)

    def _every_entry(self) -> Iterator[Entry]:
        for item in self._walk(closed_books(self._db)):
            if isinstance(item, Entry):
                yield item
            else:
                stretch, books = item
                entries = entries_of(read(self._folder, books), books.summary.stretches)
                yield from (one for one in entries if stretch.seq <= one.seq <= stretch.last)


def _seq_of(item: Entry | tuple[Stretch, Closed]) -> int:
    return item.seq if isinstance(item, Entry) else item[0].seq


@dataclass(slots=True)
class _Audit:
    db: sqlite3.Connection
    problems: list[str] = field(default_factory=list)
    balances: dict[str, Counter[str]] = field(default_factory=dict)
    totals: dict[str, Counter[str]] = field(default_factory=dict)
    reserved: dict[_Place, Entry] = field(default_factory=dict)
    ended: dict[_Place, str] = field(default_factory=dict)
    states: dict[tuple[str | None, int | None], str] = field(default_factory=dict)
    bound: facts.Newest = field(default_factory=dict)
    proofs: dict[_Place, bytes] = field(default_factory=dict)
    payees: dict[tuple[str, str, int], str] = field(default_factory=dict)
    seq: int = 0
    hash: bytes = GENESIS
    mark_seen: bool = False
    testified: bool | None = None
    public: bytes | None = None
    sums: dict[str, Sums] = field(default_factory=dict)

    def read_mark(self, path: Path) -> HighWaterMark | None:
        try:
            mark = read_mark(path)
            self.public = read_public(path.parent)
        except (ValueError, IdentityError) as error:
            if isinstance(error.__cause__, PermissionError):
                raise error.__cause__ from error  # whose key cannot be read is not damaged
            self.problem(f"the high-water mark cannot be read: {error}")
            return None
        if mark is None:
            self.problem("the high-water mark is missing")
        return mark

    def read_archive(self, folder: Path) -> list[Closed]:
        """Return the closed books, their files compared with the digests that are bound."""
        try:
            books = list(closed_books(self.db))
        except RecordError as error:
            self.problem(error.sentence)
            return []
        for one in books:
            try:
                check(folder, one)
            except ArchiveError as error:
                self.problem(f"{error.sentence}: {error.hint}")
        return books

    def skip(self, stretch: Stretch, books: Closed, folder: Path | None) -> None:
        """Go over entries that are in closed books; with a `folder` walk them there."""
        self._join(stretch.seq, stretch.before)
        self.seq, self.hash = stretch.last, stretch.after
        if stretch != books.summary.stretches[0]:
            return
        former = self.sums.get(books.run_id, Sums())
        if folder is not None:
            self._walk_books(books, folder, former)
        self.sums[books.run_id] = sums = books.summary.sums
        self._add(books.run_id, former, -1)
        self._add(books.run_id, sums, 1)

    def _add(self, run_id: str, sums: Sums, sign: int) -> None:
        accounts = self.balances.setdefault(run_id, Counter())
        totals = self.totals.setdefault(run_id, Counter())
        for counter, found in ((accounts, sums.accounts), (totals, sums.totals)):
            for name, micro in found.items():
                counter[name] += sign * micro

    def _walk_books(self, books: Closed, folder: Path, former: Sums) -> None:
        """Audit closed rounds as they would be in the database, in one of their own."""
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as sql:
            prepare(sql, "")
            inner = _Audit(sql, problems=self.problems, payees=self.payees)
            inner.balances[books.run_id] = Counter(self.balances.get(books.run_id))
            try:
                segment = read(folder, books)
                lay_down(sql, segment, books.summary)
                copy_left(self.db, sql, books)
                for stretch in books.summary.stretches:
                    inner.seq, inner.hash = stretch.seq - 1, stretch.before
                    for entry in entries_of(segment, books.summary.stretches):
                        if stretch.seq <= entry.seq <= stretch.last:
                            inner.take(entry)
                    inner._join(stretch.last + 1, stretch.after)
            except (ArchiveError, RecordError) as error:
                self.problem(f"{error.sentence}: {error.hint}")
                return
            inner.check_rounds(facts.OF_CLOSED)
            if former + sums_of(sql, books.run_id, books.first, books.last) != books.summary.sums:
                self.problem(f"archive/{books.name}: its entries do not add up to its stored sums")

    def find_heads(
        self, folder: Path, mark: HighWaterMark | None, witness: LedgerHead | None
    ) -> None:
        """Compare the entries that the mark and a witness name, wherever they are."""
        try:
            if mark is not None:
                found = hash_at(self.db, folder, mark.seq)
                self.mark_seen = found is not None and found.hex() == mark.hash
            if witness is not None:
                found = hash_at(self.db, folder, witness.seq)
                self.testified = None if found is None else found == witness.hash
                self.check_witness(witness)
        except (ArchiveError, RecordError) as error:
            self.problem(error.sentence)

    def report(self, mark: HighWaterMark | None) -> LedgerReport:
        """Return what is wrong, once every entry was taken in."""
        self._check_mark(mark)
        self._check_accounts()
        self.check_rounds()
        self._check_database()
        found = self.db.execute("SELECT run_id FROM runs ORDER BY run_id")
        runs = {run_id: self.balance(run_id) for (run_id,) in found}
        for run_id, b in runs.items():
            if b.granted_micro != b.free_micro + b.reserved_micro + b.settled_micro:
                self.problem(f"run {run_id[:8]}: granted is not free + reserved + settled")
        sums = {
            one.name: sum(getattr(b, one.name) for b in runs.values()) for one in fields(Balance)
        }
        return LedgerReport(
            balanced=not self.problems,
            problems=tuple(self.problems),
            entries=self.seq,
            runs=runs,
            **sums,
        )

    def check_rounds(self, subjects: Iterable[str] = facts.SUBJECTS) -> None:
        """Compare rounds with their entries, once every one was taken in."""
        self._check_budgets()
        self._check_reservations()
        self._read_states()
        self._check_ends()
        self._check_results(self._check_outcomes())
        facts.check(self.db, self.bound, self.problem, subjects=subjects)
        self._check_proofs()

    def problem(self, text: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(text)

    def take(self, entry: Entry) -> None:
        self._join(entry.seq, entry.prev_hash if entry.expected_hash() == entry.hash else b"")
        self.seq, self.hash = entry.seq, entry.hash
        if entry.kind == "note" or entry.run_id is None:
            return
        if entry.kind == facts.FACT:
            self.bound[entry.source, entry.run_id, entry.round or 0] = entry.facts
            return
        route = ROUTES.get(entry.kind)
        if route is None or route(entry.edge, entry.client) != (entry.source, entry.target):
            self.problem(
                f"entry {entry.seq}: a {entry.kind} moves money between the wrong accounts"
            )
        self._move(entry, entry.run_id)
        self._check_payee(entry, entry.run_id)
        place = (entry.run_id, entry.round, entry.client)
        if entry.kind == "reserve":
            if place in self.reserved:
                self.problem(f"entry {entry.seq} reserves a client, or a rent, twice")
            self.reserved[place] = entry
        elif entry.kind in {"settle", "void"}:
            self._end(entry, place)

    def _join(self, seq: int, before: bytes) -> None:
        """Note what does not follow from the last entry."""
        if seq != self.seq + 1:
            self.problem(f"entry {self.seq + 1} is missing; the next one is {seq}")
        if before != self.hash:
            self.problem(f"entry {seq} breaks the hash chain")

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

    def _end(self, entry: Entry, place: _Place) -> None:
        before = self.reserved.get(place)
        if place in self.ended:
            self.problem(f"entry {entry.seq} ends a reservation that had ended")
        elif before is None or (before.amount_micro, before.edge) != (
            entry.amount_micro,
            entry.edge,
        ):
            self.problem(f"entry {entry.seq} does not fit any reservation")
        self.ended[place] = entry.kind
        if entry.facts:
            self.proofs[place] = entry.facts

    def read_names(self) -> None:
        """Read who is meant by an index."""
        for kind, query in _NAMES.items():
            for run_id, index, name in self.db.execute(query):
                self.payees[kind, run_id, index] = name

    def _check_payee(self, entry: Entry, run_id: str) -> None:
        if entry.kind == "grant":
            return
        kind, index = ("edge", entry.edge) if entry.client is None else ("client", entry.client)
        name = self.payees.get((kind, run_id, index or 0), "nobody")
        if entry.payee != name:
            self.problem(f"entry {entry.seq} is of {entry.payee}, the books say {name}")

    def _check_proofs(self) -> None:
        for run_id, round_, client, claim, public, signature in self.db.execute(
            "SELECT run_id, round, client, claim, public, signature FROM proofs"
        ):
            found = digest_of(Proof(claim, public, signature))
            if self.proofs.pop((run_id, round_, client), None) != found:
                self.problem(f"round {round_}, client {client}: its proof has changed")
        for _, round_, client in sorted(self.proofs, key=str):
            self.problem(f"round {round_}, client {client}: its proof is missing")

    def _check_mark(self, mark: HighWaterMark | None) -> None:
        if mark is None:
            return
        row = self.db.execute("SELECT value FROM meta WHERE name = 'commits'").fetchone()
        commits = row[0] if row is not None else 0
        if commits < mark.commits or self.seq < mark.seq:
            self.problem(
                f"history is lost: commit {commits}, entry {self.seq}; the high-water mark has "
                f"commit {mark.commits}, entry {mark.seq}"
            )
        elif mark.seq and not self.mark_seen:
            self.problem(f"entry {mark.seq} is not the one that was promised")
        head = head_bytes(mark.seq, bytes.fromhex(mark.hash))
        if mark.seq and self.public and not verify(self.public, mark.signature, head):
            self.problem("the head of the ledger is not signed by this coordinator")

    def check_witness(self, head: LedgerHead) -> None:
        """Compare with what an edge was told."""
        if self.public is not None and not is_genuine(head, self.public):
            self.problem("the witness was given its head by another coordinator")
        elif self.testified is None:
            self.problem(f"history is lost: a witness knows entry {head.seq}")
        elif not self.testified:
            self.problem(f"entry {head.seq} is not the one that a witness was given")

    def _check_accounts(self) -> None:
        stored: dict[str, Counter[str]] = {}
        for run_id, account, balance in self.db.execute(
            "SELECT run_id, account, balance_micro FROM accounts"
        ):
            stored.setdefault(run_id, Counter())[account] = balance
        for run_id in {*stored, *self.balances}:
            replayed = Counter(self.balances.get(run_id, Counter()))
            replayed.pop(GRANTOR, None)
            if +replayed != +stored.get(run_id, Counter()):
                self.problem(f"run {run_id[:8]}: stored balances are not the sum of the entries")

    def _check_database(self) -> None:
        if has_changed(self.db):
            self.problem("database: its tables or the triggers that protect them have changed")
        for row in self.db.execute("PRAGMA integrity_check"):
            if row[0] != "ok":
                self.problem(f"database: {row[0]}")
        for table, *_ in self.db.execute("PRAGMA foreign_key_check"):
            self.problem(f"database: {table} refers to a row that is missing")

    def _check_budgets(self) -> None:
        spent: Counter[_AtEdge] = Counter()
        for (run_id, round_, client), entry in self.reserved.items():
            if client is not None:
                spent[run_id, round_, entry.edge] += entry.amount_micro
        planned: Counter[_AtEdge] = Counter()
        for run_id, round_, edge, micro in self.db.execute(
            "SELECT run_id, round, edge, reserved_micro FROM edge_budgets"
        ):
            planned[run_id, round_, edge] = micro
        for key in sorted({*spent, *planned}, key=str):
            if spent[key] != planned[key]:
                self.problem(f"round {key[1]}, edge {key[2]}: reserved is not what was planned")

    def _check_reservations(self) -> None:
        missing = set(self.reserved)
        for run_id, round_, client, edge, micro in self.db.execute(
            "SELECT run_id, round, client, edge, price_micro FROM reservations UNION ALL "
            "SELECT run_id, round, NULL, rented_edge, rent_micro FROM rounds "
            "WHERE rented_edge IS NOT NULL"
        ):
            place = (run_id, round_, client)
            missing.discard(place)
            entry = self.reserved.get(place)
            if entry is None or (entry.edge, entry.amount_micro) != (edge, micro):
                what = f"edge {edge}: rent" if client is None else f"client {client}: reservation"
                self.problem(f"round {round_}, {what} without its entry")
        for _, round_, client in sorted(missing, key=str):
            who = "" if client is None else f", client {client}"
            what = "its reservation" if who else "the edge that was rented"
            self.problem(f"round {round_}{who}: {what} is missing")

    def _read_states(self) -> None:
        for run_id, round_, state in self.db.execute("SELECT run_id, round, state FROM rounds"):
            self.states[run_id, round_] = state

    def _check_ends(self) -> None:
        for place in self.reserved:
            run_id, round_, client = place
            who = "the rent" if client is None else f"client {client}"
            state = self.states.get((run_id, round_))
            if state is None:
                self.problem(f"{who} is reserved in round {round_}, which is missing")
            elif (state == "open") == (place in self.ended) or (
                state == "void" and self.ended[place] != "void"
            ):
                self.problem(f"{who} in round {round_}: the round is {state}")

    def _check_outcomes(self) -> set[_AtEdge]:
        missing = {
            (run_id, round_, client)
            for run_id, round_, client in self.ended
            if self.states.get((run_id, round_)) == "done" and client is not None
        }
        edges = {
            (*place[:2], entry.edge)
            for place in missing
            if (entry := self.reserved.get(place)) is not None
        }
        for run_id, round_, client, void, delivered in self.db.execute(
            "SELECT run_id, round, client, void, in_time OR used FROM outcomes"
        ):
            place, where = (run_id, round_, client), f"round {round_}, client {client}"
            if place not in missing:
                self.problem(f"{where}: outcome without its entries")
                continue
            missing.discard(place)
            end = self.ended[place]
            if end != ("void" if void else "settle"):
                self.problem(f"{where}: {'void' if void else 'paid'}, the ledger says {end}")
            if delivered and end != "settle":
                self.problem(f"{where}: used, the ledger says void")
        for _, round_, client in sorted(missing, key=str):
            self.problem(f"round {round_}, client {client}: its outcome is missing")
        return edges

    def _check_results(self, edges: set[_AtEdge]) -> None:
        found = {
            tuple(row) for row in self.db.execute("SELECT run_id, round, edge FROM edge_results")
        }
        for _, round_, edge in sorted(edges - found, key=str):
            self.problem(f"round {round_}, edge {edge}: its result is missing")
        for _, round_, edge in sorted(found - edges, key=str):
            self.problem(f"round {round_}, edge {edge}: a result without outcomes")
