"""What the coordinator remembers: runs, rounds, money, models.

Each step of a round is one transaction. Whatever crashes in between, a round ends exactly
once: a second `settle` changes nothing, and `void_open_rounds` ends at restart what was in
flight. The process that opens a store holds the data directory's lock.
"""

# ruff: noqa: S608 - every query is made of constants

import sqlite3
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.books import archive
from fedagent_coordinator.books import settling as rounds
from fedagent_coordinator.books.database import Database
from fedagent_coordinator.books.evaluations import insert_evaluation
from fedagent_coordinator.books.ledger import checked_micro, hash_at
from fedagent_coordinator.books.read import Reader
from fedagent_coordinator.books.records import pack
from fedagent_coordinator.books.rows import RunRow
from fedagent_coordinator.books.schema import finding_damage
from fedagent_coordinator.core.effects import (
    BookEvaluation,
    HeldOutEvaluated,
    Reserve,
    Settle,
)
from fedagent_coordinator.errors import (
    HistoryLostError,
    LedgerError,
    StoreDamagedError,
    StoreFailedError,
    UnknownRoundError,
)
from fedagent_coordinator.policies.base import State
from fedagent_protocol.messages import LedgerHead
from fedagent_protocol.signed import ledger_head, verify

VERIFIED_AT_START = 2000
"""Newest entries that a start verifies; `fedagent ledger verify` verifies all."""
_ACCEPTED = "WHERE kind IN ('note', 'accept') AND kind = 'accept'"
"""By the index `notes`, whose condition it repeats."""
MAX_WAITING = 20_000
SNAPSHOT_EVERY = 50
"""Rounds between snapshots: replay stays short and full states are written rarely."""
FOLD_EVERY = 10
"""Rounds that a damaged WAL can cost, which is noticed; folding it costs three syncs."""
_MOST_SNAPSHOTS = 16
_SNAPSHOT_BYTES = 1 << 26
"""What is kept of a run beside the newest two, for `fedagent why` of an old round."""


class _Index:
    """Places and labels of the ids in one table, ``clients`` or ``edges``.

    A label of an id without a place waits, `MAX_WAITING` of them: it is anybody's word.
    """

    def __init__(self, database: Database, run_id: str, table: str, column: str) -> None:
        self._db, self._run_id = database, run_id
        self._insert = f"INSERT INTO {table} (label, run_id, {column}, idx) VALUES (?, ?, ?, ?)"
        self._rename = f"UPDATE {table} SET label = ? WHERE run_id = ? AND {column} = ?"
        query = f"SELECT {column}, idx, label FROM {table} WHERE run_id = ?"
        rows = database.connection.execute(query, (run_id,)).fetchall()
        self.places: dict[str, int] = {row[0]: row[1] for row in rows}
        self._labels: dict[str, str] = {row[0]: row[2] for row in rows}
        self._waiting: dict[str, str] = {}

    def find(self, ids: Sequence[str]) -> list[int]:
        fresh = [id_ for id_ in dict.fromkeys(ids) if id_ not in self.places]
        if fresh:
            places = {id_: place for place, id_ in enumerate(fresh, len(self.places))}
            labels = {id_: self._waiting.pop(id_, "") for id_ in fresh}
            rows = [(labels[id_], self._run_id, id_, place) for id_, place in places.items()]
            self._write(self._insert, rows)
            self.places |= places
            self._labels |= labels
        return [self.places[id_] for id_ in ids]

    def label(self, labels: Mapping[str, str]) -> None:
        self._waiting |= {id_: label for id_, label in labels.items() if id_ not in self.places}
        while len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
        known = self._labels
        changed = {id_: new for id_, new in labels.items() if known.get(id_, new) != new}
        if changed:
            rows = [(label, self._run_id, id_) for id_, label in changed.items()]
            self._write(self._rename, rows)
            self._labels |= changed

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        with self._db.transaction("index") as sql:
            sql.executemany(statement, rows)
            self._db.append("names", self._run_id)


class RunIndices:
    """The indices of one run; new ids are written before their index is used."""

    def __init__(self, database: Database, run_id: str) -> None:
        self._clients = _Index(database, run_id, "clients", "agent_id")
        self._edges = _Index(database, run_id, "edges", "edge_id")

    def clients(self, ids: Sequence[str]) -> npt.NDArray[np.int32]:
        """Return int32[len(ids)], the index of each agent; give one to who has none."""
        return np.array(self._clients.find(ids), dtype=np.int32)

    def edge(self, edge: str) -> int:
        """Return the index of an edge."""
        return self._edges.find([edge])[0]

    def sizes(self) -> tuple[int, int]:
        """Return how many clients and how many edges have an index."""
        return len(self._clients.places), len(self._edges.places)

    def label_edge(self, edge: str, label: str) -> None:
        """Remember what people call an edge."""
        self._edges.label({edge: label})

    def label_clients(self, labels: Mapping[str, str]) -> None:
        """Remember what people call clients; of one without an index, until it has one."""
        self._clients.label(labels)


class Books(Database):
    """The coordinator's books, opened for writing until `close`, or as a context manager.

    Arguments and errors are those of `Database`. Attribute `read` has every query.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self._ordered: tuple[str, int, rounds.Orders] = ("", 0, [])
        self.read = Reader(self.connection, folder)
        try:
            self._verify()
        except BaseException:
            self.close()
            raise

    def _verify(self) -> None:
        """Refuse books that are not whole, unless an operator accepts them, now or formerly."""
        with finding_damage(self.connection, self.path):
            (accepted,) = self.connection.execute(
                f"SELECT COALESCE(MAX(seq), 0) FROM entries {_ACCEPTED}"
            ).fetchone()
            report = self.read.ledger.verify(since=max(accepted, self.seq - VERIFIED_AT_START))
        if not report.problems:
            return
        if not self.accepts:
            found = f"the ledger has {len(report.problems)} problems, the first: "
            raise HistoryLostError(str(self.path), found + report.problems[0])
        self.accept(report.problems[0])

    def check_witness(self, edge: str, head: LedgerHead) -> None:
        """Compare the ledger with a head that this coordinator has given to an edge.

        Raises:
            HistoryLostError: It has another entry there, or ends before, and nobody accepts it.
        """
        if self.identity is None or head.coordinator != self.identity.id:
            return
        found = hash_at(self.connection, head.seq)
        signed = ledger_head(head.seq, head.hash)
        if found == head.hash or not verify(self.identity.public_bytes, head.signature, signed):
            return
        accepted = f"SELECT 1 FROM entries {_ACCEPTED} AND ? BETWEEN seq AND amount_micro"
        if self.connection.execute(accepted, (head.seq,)).fetchone() is not None:
            return
        problem = f"edge {edge} is a witness of entry {head.seq} ({head.hash.hex()[:16]}), "
        problem += "here it is another one" if found else f"here is {self.seq} the last"
        if not self.accepts:
            raise HistoryLostError(str(self.path), problem)
        self.accept(problem, head.seq)

    # ------------------------------------------------------------------- runs

    def begin_run(
        self,
        *,
        recipe_digest: str,
        recipe: str,
        seed: int,
        total_micro: int | None,
        origin: str = "",
    ) -> RunRow:
        """Begin a run with its long-term budget, and end one that is still open.

        Args:
            recipe_digest: What a resumed run is found by.
            recipe: The recipe as JSON.
            seed: Of everything random in the run.
            total_micro: What the run may spend; None is no limit.
            origin: Digest of the model it begins from; empty for that of the seed.

        Raises:
            LedgerError: `total_micro` is not a whole number in range.
        """
        if (former := self.read.open_run()) is not None:
            self.end_run(former.run_id, "replaced by a new run")
        run_id = uuid.uuid4().hex
        with self.transaction("begin") as sql:
            sql.execute(
                "INSERT INTO runs (run_id, recipe_digest, recipe, seed, unlimited, origin, "
                "begun_ms) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    *(run_id, recipe_digest, recipe, seed, total_micro is None, origin),
                    self.clock_ms(),
                ),
            )
            self.append("run", run_id)
            if total_micro is not None and checked_micro("the total budget", total_micro):
                self.append("grant", run_id, amount_micro=total_micro)
        return self.read.run(run_id)

    def standardize(self, run_id: str, recipe: str) -> None:
        """Keep a run's recipe with what features are scaled by, once."""
        with self.transaction("standardize") as sql:
            changed = sql.execute(
                "UPDATE runs SET scaled = ? WHERE run_id = ? AND scaled IS NULL", (recipe, run_id)
            )
            if not changed.rowcount:
                raise LedgerError(f"the features of run {run_id:.8} are scaled already")
            self.append("run", run_id)

    def end_run(self, run_id: str, reason: str) -> tuple[int, ...]:
        """End a run; return the rounds that were voided with it. Idempotent."""
        if self.read.run(run_id).ended_ms is not None:
            return ()
        with self.transaction("end") as sql:
            voided = rounds.void_open(self, run_id, reason)
            sql.execute(
                "UPDATE runs SET ended_ms = ?, end_reason = ? WHERE run_id = ?",
                (self.clock_ms(), reason, run_id),
            )
            self.append("run", run_id, note=reason)
        self.fold_wal()
        return voided

    def extend_run(self, run_id: str, more: int) -> int:
        """Let a run that has ended go on; return how many rounds it is to have in all.

        Once for each end: on a run that has not ended this changes nothing, so that a start
        that is repeated after a crash adds nothing. The budget stays what it is.
        """
        run = self.read.run(run_id)
        if run.ended_ms is None:
            return self.read.rounds_of(run) or 0
        count = self.read.progress(run_id).rounds_done + more
        with self.transaction("extend") as sql:
            sql.execute(
                "UPDATE runs SET ended_ms = NULL, end_reason = NULL, extended = ? WHERE run_id = ?",
                (count, run_id),
            )
            self.append("run", run_id, note=f"goes on up to round {count}")
        return count

    def indices(self, run_id: str) -> RunIndices:
        """Return the run-wide indices of agents and edges."""
        return RunIndices(self, self.read.run(run_id).run_id)

    # ------------------------------------------------------------------ rounds

    def reserve(self, run_id: str, plan: Reserve, *, policy: str) -> None:
        """Commit a round's plan and its reservations, all or nothing.

        Crash points: those of `Database.transaction`.

        Raises:
            LedgerError: An edge's budget or the run's does not suffice, the round is there
                already, or the run has ended.
            PolicyError: The selection breaks another constraint.
            UnknownRunError: There is no such run.
        """
        run = self.read.run(run_id)
        if run.ended_ms is not None:
            raise LedgerError(f"run {run_id:.8} has ended")
        if plan.round <= self.read.last_round(run_id):
            raise LedgerError(
                f"round {plan.round} of run {run_id:.8} does not come after the last one"
            )
        total = rounds.check_plan(plan)
        free = self.read.balance(run_id).free_micro
        if total > free and not run.unlimited:
            raise rounds.overspent("the run", wanted_micro=total, free_micro=free)
        with self.transaction("reserve", synced=False):
            if total > free:
                self.append("grant", run_id, plan.round, amount_micro=total - free)
            rounds.insert_plan(self, run_id, plan, policy=policy, total=total)
        self._ordered = run_id, plan.round, rounds.orders_of(plan.view, plan.selection.pairs)

    def settle(
        self, run_id: str, result: Settle, measured: Sequence[HeldOutEvaluated] = ()
    ) -> bool:
        """Commit how a round ended: outcomes and payments; False if it had ended before.

        With it goes how good the models of former rounds were `measured`. Crash points:
        ``settle.half``, and those of `Database.transaction`.

        Raises:
            UnknownRoundError: The round was never reserved.
            LedgerError: Outcomes and orders differ, or the rent is not what was reserved.
        """
        state = self.read.round_state(run_id, result.round)
        if state is None:
            raise UnknownRoundError(run_id, result.round)
        if state != "open":
            return False
        with self.transaction("settle"):
            self._insert_metrics(run_id, measured)
            *place, ordered = self._ordered
            ours = place == [run_id, result.round]
            rounds.settle(self, run_id, result, ordered if ours else None)
        if result.round % FOLD_EVERY == 0:
            self.fold_wal()
        return True

    def void_open_rounds(self, run_id: str, reason: str) -> tuple[int, ...]:
        """End what a crash left in flight; return the rounds. Exactly once."""
        query = "SELECT 1 FROM rounds WHERE run_id = ? AND state = 'open'"
        if self.connection.execute(query, (run_id,)).fetchone() is None:
            return ()
        with self.transaction("void"):
            voided = rounds.void_open(self, run_id, reason)
        self.fold_wal()
        return voided

    def save_evaluation(self, run_id: str, found: BookEvaluation) -> bool:
        """Commit the opinions or volunteers of a model; False if its round has them already.

        Raises:
            LedgerError: Invalid score, client or edge.
        """
        with self.transaction("evaluate") as sql:
            if made := insert_evaluation(sql, run_id, found):
                self.append("evaluation", run_id, found.round)
        return made

    # ---------------------------------------------------------------- learning

    def snapshot(self, run_id: str, round_: int, state: State) -> None:
        """Keep what decides, as it is after it learnt from `round_`.

        Of older ones that before it stays, and a few at about equal distances: the last of each
        stretch of rounds.
        """
        data = pack(state)
        most = min(_MOST_SNAPSHOTS, _SNAPSHOT_BYTES // max(1, len(data)))
        here, step = round_ - self.read.closed_until(run_id), SNAPSHOT_EVERY
        while most and here > step * most:
            step *= 2
        with self.transaction("snapshot") as sql:
            sql.execute(
                "INSERT OR REPLACE INTO snapshots (run_id, round, state) VALUES (?, ?, ?)",
                (run_id, round_, data),
            )
            sql.execute(
                "DELETE FROM snapshots WHERE run_id = ?1 AND (?2 = 0 OR round NOT IN "
                "(SELECT MAX(round) FROM snapshots WHERE run_id = ?1 GROUP BY (round - 1) / ?3)) "
                "AND round NOT IN (SELECT round FROM snapshots WHERE run_id = ?1 "
                "ORDER BY round DESC LIMIT 2)",
                (run_id, most, step),
            )

    def prune(
        self,
        run_id: str,
        *,
        keep_rounds: int = 0,
        least: int = 1,
        most: int,
        by: str,
    ) -> archive.Prunable:
        """Close the oldest rounds, at most `most` of them, or none if too few.

        Of the newest rounds `keep_rounds` stay, and all that followed the oldest snapshot.
        Returns what there was. Crash points: those of `archive.prune`.

        Raises:
            StoreFailedError: The disk failed, or has no room. Rounds that could not be closed are
                where they were.
        """
        piece = archive.prunable(self.connection, run_id, keep_rounds=keep_rounds, most=most)
        if piece.rounds >= least:
            try:
                archive.prune(self, piece, by=by)
            except (OSError, sqlite3.Error, StoreDamagedError) as error:
                raise StoreFailedError(str(error)) from error
        return piece

    # ------------------------------------------------------------------ models

    def forget(self, run_id: str, round_: int, edges: Collection[str]) -> None:
        """Note that what edges learnt up to a round counts in no merge any more. Idempotent."""
        with self.transaction("forget") as sql:
            sql.executemany(
                "UPDATE edges SET forgotten = MAX(forgotten, ?) WHERE run_id = ? AND edge_id = ?",
                [(round_, run_id, edge) for edge in edges],
            )
            self.append("forget", run_id, round_)

    def save_model(
        self, run_id: str, round_: int, digest: str, size_bytes: int, state: str = ""
    ) -> None:
        """Make a model, whose file is durable, part of the run. Idempotent.

        `state` is the digest of what the server optimiser knows after it, durable too.
        """
        with self.transaction("model", synced=False) as sql:
            sql.execute(
                "INSERT OR REPLACE INTO models (run_id, round, digest, size_bytes, at_ms, state) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (run_id, round_, digest, size_bytes, self.clock_ms(), state),
            )
            self.append("model", run_id, round_)

    def save_metrics(self, run_id: str, *measured: HeldOutEvaluated) -> None:
        """Keep how good the global models of rounds are."""
        with self.transaction("metrics"):
            self._insert_metrics(run_id, measured)

    def _insert_metrics(self, run_id: str, measured: Sequence[HeldOutEvaluated]) -> None:
        for one in measured:
            rounds.insert_metrics(self.connection, run_id, one.round, one.digest, one.metrics)
            self.append("metrics", run_id, one.round)
