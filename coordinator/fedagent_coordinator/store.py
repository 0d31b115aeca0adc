"""What the coordinator remembers: runs, rounds, money, models.

Each step of a round is one transaction. Whatever crashes in between, a round ends exactly
once: a second `settle` changes nothing, and `void_open_rounds` ends at restart what was in
flight. The process that opens a store holds the data directory's lock.
"""

import uuid
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Unpack

from .core.decision_policies import DecisionPolicies
from .core.effects import BookEvaluation, Reserve, Settle
from .database import evaluations, learning, models, rounds
from .database.connection import Database, DatabaseOptions
from .database.indices import RunIndices
from .database.ledger import checked_micro
from .database.rows import RunRow
from .errors import (
    BudgetExceededError,
    DuplicateRoundError,
    RunConflictError,
    RunEndedError,
    UnknownRoundError,
)
from .policies.base import State
from .reader import Reader


class Store(ExitStack):
    """The coordinator's database, opened for writing until `close`, or as a context manager.

    Arguments and errors are those of `Database`. Attribute `read` has every query.
    """

    def __init__(self, folder: Path, **options: Unpack[DatabaseOptions]) -> None:
        super().__init__()
        self._db = Database(folder, **options)
        self.callback(self._db.close)
        self.read = Reader(self._db.connection, folder)

    # ------------------------------------------------------------------- runs

    def begin_run(
        self,
        *,
        recipe_digest: str,
        recipe: str,
        seed: int,
        total_micro: int | None,
        run_id: str | None = None,
        replace: bool = False,
        origin: str = "",
    ) -> RunRow:
        """Begin a run with its long-term budget; None is no limit.

        Args:
            recipe_digest: What a resumed run is found by.
            recipe: The recipe as JSON.
            seed: Of everything random in the run.
            total_micro: What the run may spend.
            run_id: 32 hex digits; random by default.
            replace: End a run that is still open, instead of refusing.
            origin: Digest of the model it begins from; empty for that of the seed.

        Raises:
            RunConflictError: Another run is open and `replace` is not set.
            InvalidAmountError: `total_micro` is not a whole number in range.
        """
        former = self.read.open_run()
        if former is not None and not replace:
            raise RunConflictError(former.run_id, former.recipe_digest)
        if former is not None:
            self.end_run(former.run_id, "replaced by a new run")
        run_id = run_id or uuid.uuid4().hex
        now = self._db.clock_ms()
        with self._db.transaction("begin") as sql:
            sql.execute(
                "INSERT INTO runs (run_id, recipe_digest, recipe, seed, unlimited, origin, "
                "begun_ms) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (run_id, recipe_digest, recipe, seed, total_micro is None, origin, now),
            )
            if total_micro:
                self._db.ledger.grant(run_id, total_micro, "recipe", now)
            elif total_micro is not None:
                checked_micro("the total budget", total_micro)
        return self.read.run(run_id)

    def standardize(self, run_id: str, recipe: str, *, agents: int, samples: int) -> None:
        """Keep a run's recipe with what features are scaled by, once; it rests on these samples."""
        with self._db.transaction("standardize") as sql:
            sql.execute(
                "INSERT INTO standardized (run_id, recipe, agents, samples) VALUES (?, ?, ?, ?)",
                (run_id, recipe, agents, samples),
            )

    def end_run(self, run_id: str, reason: str) -> tuple[int, ...]:
        """End a run; return the rounds that were voided with it. Idempotent.

        Raises:
            UnknownRunError: There is no such run.
        """
        if self.read.run(run_id).ended_ms is not None:
            return ()
        with self._db.transaction("end") as sql:
            voided = rounds.void_open(self._db, run_id, reason)
            sql.execute(
                "UPDATE runs SET ended_ms = ?, end_reason = ? WHERE run_id = ?",
                (self._db.clock_ms(), reason, run_id),
            )
        self._db.fold_wal()
        return voided

    def extend_run(self, run_id: str, more: int) -> int:
        """Let a run that has ended go on; return how many rounds it is to have in all.

        Once for each end: on a run that has not ended this changes nothing, so that a start
        that is repeated after a crash adds nothing. The budget stays what it is.

        Raises:
            UnknownRunError: There is no such run.
        """
        run = self.read.run(run_id)
        if run.ended_ms is None:
            return self.read.rounds_of(run) or 0
        done = self.read.progress(run_id).rounds_done
        with self._db.transaction("extend") as sql:
            sql.execute(
                "INSERT INTO extensions (run_id, seq, after, count, ended_ms, end_reason, at_ms) "
                "SELECT :run_id, COUNT(*) + 1, :after, :count, :ended_ms, :end_reason, :at_ms "
                "FROM extensions WHERE run_id = :run_id",
                {
                    "run_id": run_id,
                    "after": done,
                    "count": done + more,
                    "ended_ms": run.ended_ms,
                    "end_reason": run.end_reason,
                    "at_ms": self._db.clock_ms(),
                },
            )
            sql.execute(
                "UPDATE runs SET ended_ms = NULL, end_reason = NULL WHERE run_id = ?", (run_id,)
            )
        return done + more

    def indices(self, run_id: str) -> RunIndices:
        """Return the run-wide indices of agents and edges."""
        return RunIndices(self._db, self.read.run(run_id).run_id)

    # ------------------------------------------------------------------ rounds

    def reserve(self, run_id: str, plan: Reserve, *, policy: str) -> None:
        """Commit a round's plan and its reservations, all or nothing.

        Crash points: ``reserve.entries``, ``reserve.before-commit``,
        ``reserve.committed``, ``reserve.marked``.

        Raises:
            BudgetExceededError: An edge's budget or the run's does not suffice.
            DuplicateRoundError: The round is there already.
            InvalidSelectionError: The selection breaks another constraint.
            RunEndedError, UnknownRunError: Nothing can be reserved in this run.
        """
        run = self.read.run(run_id)
        if run.ended_ms is not None:
            raise RunEndedError(run_id)
        if plan.round <= self.read.last_round(run_id):
            raise DuplicateRoundError(run_id, plan.round)
        spent = rounds.checked_spending(plan)
        free = self._db.ledger.free_micro(run_id)
        rental = rounds.rental_of(plan)
        total = sum(spent.values()) + (0 if rental is None else rental.rent_micro)
        if total > free and not run.unlimited:
            raise BudgetExceededError(scope="total", edge=None, wanted_micro=total, free_micro=free)
        with self._db.transaction("reserve"):
            if total > free:
                key = f"round-{plan.round}"
                self._db.ledger.grant(run_id, total - free, key, self._db.clock_ms())
            rounds.insert_plan(self._db, run_id, plan, policy=policy, spent=spent)
            self._db.checkpoint("reserve.entries")

    def settle(self, run_id: str, result: Settle) -> bool:
        """Commit how a round ended: outcomes and payments. Exactly once.

        False if the round had ended before: then nothing is changed. Crash points:
        ``settle.first-entry``, ``settle.before-commit``, ``settle.committed``,
        ``settle.marked``.

        Raises:
            UnknownRoundError: The round was never reserved.
            OutcomeMismatchError: Outcomes and reservations differ.
            InvalidAmountError: The rent is not what was reserved.
        """
        state = self.read.round_state(run_id, result.round)
        if state is None:
            raise UnknownRoundError(run_id, result.round)
        if state != "open":
            return False
        connection = self._db.connection
        reserved = rounds.reservations_of(connection, run_id, result.round)
        paid = rounds.checked_outcomes(result, reserved)
        rent_due = rounds.checked_rent(result, rounds.rental_in(connection, run_id, result.round))
        with self._db.transaction("settle") as sql:
            rounds.end_entries(self._db, run_id, result.round, reserved, paid, rent_due=rent_due)
            base = self.read.models.last(run_id)
            rounds.insert_scores(sql, run_id, result, base.digest if base is not None else "")
            rounds.close_round(self._db, run_id, result)
        self._db.fold_wal()
        return True

    def void_open_rounds(self, run_id: str, reason: str) -> tuple[int, ...]:
        """End what a crash left in flight; return the rounds. Exactly once.

        Raises:
            UnknownRunError: There is no such run.
        """
        self.read.run(run_id)
        if not rounds.open_rounds(self._db.connection, run_id):
            return ()
        with self._db.transaction("void"):
            voided = rounds.void_open(self._db, run_id, reason)
        self._db.fold_wal()
        return voided

    def save_evaluation(self, run_id: str, found: BookEvaluation) -> bool:
        """Commit the opinions or volunteers of a model; False if its round has them already.

        Crash points: ``evaluate.before-commit``, ``evaluate.committed``, ``evaluate.marked``.

        Raises:
            RefusedEntryError: Invalid score, client or edge.
        """
        if self.read.evaluations.exists(run_id, found.round):
            return False
        with self._db.transaction("evaluate") as sql:
            evaluations.insert_evaluation(sql, run_id, found)
        return True

    # ---------------------------------------------------------------- learning

    def snapshot(self, run_id: str, round_: int, policy: str, state: State) -> None:
        """Keep the state of `policy` after it learnt from `round_`; older ones but one go."""
        learning.save_snapshot(self._db, run_id, round_, policy, state)

    def restore(self, run_id: str, policy: str, policies: DecisionPolicies) -> int:
        """Give what decides back what it knew; return how many rounds were replayed.

        Raises:
            StateError: The run's snapshot is of another policy.
            RecordError: Stored bytes are damaged.
        """
        return learning.restore(self._db.connection, run_id, policy, policies)

    # ------------------------------------------------------------------ models

    def forget(self, run_id: str, round_: int, edges: Collection[str]) -> None:
        """Note that what edges learnt up to a round counts in no merge any more. Idempotent."""
        with self._db.transaction("forget") as sql:
            sql.executemany(
                "INSERT OR IGNORE INTO forgotten (run_id, edge, round) "
                "SELECT run_id, idx, ? FROM edges WHERE run_id = ? AND edge_id = ?",
                [(round_, run_id, edge) for edge in edges],
            )

    def save_model(self, run_id: str, round_: int, digest: str, size_bytes: int) -> None:
        """Make a model, whose file is durable, part of the run. Idempotent."""
        with self._db.transaction("model") as sql:
            models.insert_model(sql, run_id, round_, digest, size_bytes, self._db.clock_ms())

    def save_metrics(
        self, run_id: str, round_: int, digest: str, metrics: Mapping[str, float]
    ) -> None:
        """Keep how good the global model of a round is.

        Raises:
            RecordError: A metric is not finite.
        """
        with self._db.transaction("metrics") as sql:
            models.insert_metrics(sql, run_id, round_, digest, metrics)
