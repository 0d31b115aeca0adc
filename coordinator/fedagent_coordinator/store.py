"""What the coordinator remembers: runs, rounds, money, models.

Each step of a round is one transaction: `reserve` before anything is ordered,
`settle` when all is known. Whatever crashes in between, a round ends exactly once:
`settle` says so when it comes a second time, and `void_open_rounds` ends at restart
what was in flight.
"""

import math
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from fedagent_protocol.failpoints import Checkpoint, hit

from .core.effects import BookOpinions, BookVolunteers, Reserve, Settle
from .database import Database, wall_clock_ms
from .errors import (
    BudgetExceededError,
    DuplicateRoundError,
    RecordError,
    RunConflictError,
    RunEndedError,
    UnknownRoundError,
)
from .indices import RunIndices
from .journal import PolicyJournal
from .ledger import checked_micro
from .opinion_book import insert_opinions, insert_volunteers
from .reader import Reader, Run
from .round_book import (
    RoundBook,
    checked_outcomes,
    checked_rent,
    checked_spending,
    insert_outcomes,
    insert_scores,
    rental_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleSummary:
    """How a round ended in the books.

    Attributes:
        already: It had ended before; nothing was changed, amounts are 0.
        state: ``done`` or ``void``.
        settled, voided: Clients that were paid or not, and their prices.
    """

    round: int
    already: bool
    state: str
    settled: int = 0
    voided: int = 0
    settled_micro: int = 0
    voided_micro: int = 0


class Store:
    """The coordinator's database, opened for writing; a context manager.

    Calls may come from several threads; they take turns.

    Args:
        folder: The data directory; made if need be.
        accept_lost_history: Go on although the high-water mark promises more.
        checkpoint: Called with a name between any two durable steps.
        clock_ms: Wall clock for people; nothing is ordered by it.

    Raises:
        StoreBusyError: Another process holds the data directory.
        HistoryLostError: The database is older or other than was promised.
        SchemaVersionError: A newer release wrote it.

    Attributes:
        read: Every query.
        journal: What the policies learnt.
    """

    def __init__(
        self,
        folder: Path,
        *,
        accept_lost_history: bool = False,
        checkpoint: Checkpoint = hit,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._db = Database(
            folder,
            accept_lost_history=accept_lost_history,
            checkpoint=checkpoint,
            clock_ms=clock_ms,
        )
        self.read = Reader(self._db.connection, folder)
        self.journal = PolicyJournal(self._db)
        self._book = RoundBook(self._db)

    def close(self) -> None:
        """Close the database and free the data directory. Idempotent."""
        self._db.close()

    def __enter__(self) -> Self:
        """Return the open store."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    # --- runs ---------------------------------------------------------------

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
    ) -> Run:
        """Begin a run with its long-term budget; None is no limit.

        Args:
            recipe_digest: What a resumed run is found by.
            recipe: The recipe's text.
            seed: Of everything random in the run.
            total_micro: What the run may spend, all in all.
            run_id: 32 hex digits; a new uuid by default.
            replace: End a run that is still open, instead of refusing.
            origin: Digest of the model it begins from; empty for that of the seed.

        Raises:
            RunConflictError: Another run is open and `replace` is not set.
            InvalidAmountError: `total_micro` is not a whole number in range.
        """
        with self._db.lock:
            former = self.read.open_run()
            if former is not None and not replace:
                raise RunConflictError(former.run_id, former.recipe_digest)
            if former is not None:
                self.end_run(former.run_id, "replaced by a new run")
            run_id = run_id or uuid.uuid4().hex
            now = self._db.clock_ms()
            with self._db.transaction("begin") as sql:
                sql.execute(
                    "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)",
                    (run_id, recipe_digest, recipe, seed, total_micro is None, now),
                )
                if origin:
                    sql.execute("INSERT INTO origins VALUES (?, ?)", (run_id, origin))
                if total_micro:
                    self._book.grant(run_id, total_micro, "recipe")
                elif total_micro is not None:
                    checked_micro("the total budget", total_micro)
            return self.read.run(run_id)

    def grant(self, run_id: str, amount_micro: int, key: str) -> bool:
        """Add to a run's long-term budget; False if `key` was granted before.

        Raises:
            UnknownRunError: There is no such run.
            InvalidAmountError: The amount is not a whole number in range.
        """
        with self._db.lock:
            self.read.run(run_id)
            if self._book.has_entry(f"{run_id}/grant/{key}"):
                return False
            with self._db.transaction("grant"):
                self._book.grant(run_id, amount_micro, key)
            return True

    def standardize(self, run_id: str, recipe: str, *, agents: int, samples: int) -> None:
        """Keep a run's recipe with what features are scaled by, once.

        Args:
            run_id: The run.
            recipe: JSON of the recipe without anything left to be found.
            agents: Whose samples it rests on.
            samples: How many they were.
        """
        with self._db.lock, self._db.transaction("standardize") as sql:
            sql.execute(
                "INSERT INTO standardized VALUES (?, ?, ?, ?)", (run_id, recipe, agents, samples)
            )

    def end_run(self, run_id: str, reason: str) -> tuple[int, ...]:
        """End a run; return the rounds that were voided with it. Idempotent.

        Raises:
            UnknownRunError: There is no such run.
        """
        with self._db.lock:
            if self.read.run(run_id).ended_ms is not None:
                return ()
            with self._db.transaction("end") as sql:
                rounds = self._book.void_open(sql, run_id, reason)
                sql.execute(
                    "UPDATE runs SET ended_ms = ?, end_reason = ? WHERE run_id = ?",
                    (self._db.clock_ms(), reason, run_id),
                )
            self._db.fold_wal()
            return rounds

    def extend_run(self, run_id: str, more: int) -> int:
        """Let a run that has ended go on; return how many rounds it is to have in all.

        Once for each end: on a run that has not ended this changes nothing, so that a start
        that is repeated after a crash adds nothing. The budget stays what it is.

        Args:
            run_id: The run.
            more: Rounds on top of those that are done.

        Raises:
            UnknownRunError: There is no such run.
        """
        with self._db.lock:
            run = self.read.run(run_id)
            if run.ended_ms is None:
                return self.read.rounds_of(run) or 0
            done = self.read.progress(run_id).rounds_done
            with self._db.transaction("extend") as sql:
                sql.execute(
                    "INSERT INTO extensions SELECT ?, COUNT(*) + 1, ?, ?, ?, ?, ? FROM extensions "
                    "WHERE run_id = ?",
                    (
                        run_id,
                        done,
                        done + more,
                        run.ended_ms,
                        run.end_reason,
                        self._db.clock_ms(),
                        run_id,
                    ),
                )
                sql.execute(
                    "UPDATE runs SET ended_ms = NULL, end_reason = NULL WHERE run_id = ?",
                    (run_id,),
                )
            return done + more

    def indices(self, run_id: str) -> RunIndices:
        """Return the run-wide indices of agents and edges."""
        with self._db.lock:
            return RunIndices(self._db, self.read.run(run_id).run_id)

    # --- rounds -------------------------------------------------------------

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
        with self._db.lock:
            run = self.read.run(run_id)
            if run.ended_ms is not None:
                raise RunEndedError(run_id)
            if plan.round <= self.read.last_round(run_id):
                raise DuplicateRoundError(run_id, plan.round)
            spent = checked_spending(plan)
            free = self._db.ledger.free_micro(run_id)
            rented = rental_of(plan)
            total = sum(spent.values()) + (0 if rented is None else rented.rent_micro)
            if total > free and not run.unlimited:
                raise BudgetExceededError(
                    scope="total", edge=None, wanted_micro=total, free_micro=free
                )
            with self._db.transaction("reserve") as sql:
                if total > free:
                    self._book.grant(run_id, total - free, f"round-{plan.round}")
                self._book.insert_plan(sql, run_id, plan, policy, spent)
                self._book.reserve_entries(run_id, plan)
                self._db.checkpoint("reserve.entries")

    def settle(self, run_id: str, result: Settle) -> SettleSummary:
        """Commit how a round ended: outcomes, payments, feedback. Exactly once.

        A second time changes nothing and says `already`. Crash points:
        ``settle.first-entry``, ``settle.before-commit``, ``settle.committed``,
        ``settle.marked``.

        Raises:
            UnknownRoundError: The round was never reserved.
            OutcomeMismatchError: Outcomes and reservations differ.
        """
        with self._db.lock:
            state = self.read.round_state(run_id, result.round)
            if state is None:
                raise UnknownRoundError(run_id, result.round)
            if state != "open":
                return SettleSummary(round=result.round, already=True, state=state)
            reservations = self._book.reservations(run_id, result.round)
            paid = checked_outcomes(result, reservations)
            rent_due = checked_rent(result, self._book.rental(run_id, result.round))
            with self._db.transaction("settle") as sql:
                self._book.end_entries(run_id, result.round, reservations, paid, rent_due=rent_due)
                insert_outcomes(sql, run_id, result, paid)
                base = self.read.last_global(run_id)
                insert_scores(sql, run_id, result, base.digest if base is not None else "")
                self._book.close_round(sql, run_id, result)
            self._db.fold_wal()
        prices = [r.price_micro for r in reservations if r.client in paid]
        total = sum(r.price_micro for r in reservations)
        return SettleSummary(
            round=result.round,
            already=False,
            state="done",
            settled=len(prices),
            voided=len(reservations) - len(prices),
            settled_micro=sum(prices),
            voided_micro=total - sum(prices),
        )

    def void_open_rounds(self, run_id: str, reason: str) -> tuple[int, ...]:
        """End what a crash left in flight; return the rounds. Exactly once.

        Raises:
            UnknownRunError: There is no such run.
        """
        with self._db.lock:
            self.read.run(run_id)
            if not self._book.open_rounds(run_id):
                return ()
            with self._db.transaction("void") as sql:
                rounds = self._book.void_open(sql, run_id, reason)
            self._db.fold_wal()
            return rounds

    def evaluate(self, run_id: str, found: BookOpinions | BookVolunteers) -> bool:
        """Commit what a call for opinions came to; False if its round was evaluated before.

        Crash points: ``evaluate.before-commit``, ``evaluate.committed``, ``evaluate.marked``.

        Raises:
            RefusedEntryError: Invalid score, client or edge.
        """
        with self._db.lock:
            if self.read.is_evaluated(run_id, found.round):
                return False
            with self._db.transaction("evaluate") as sql:
                if isinstance(found, BookOpinions):
                    insert_opinions(sql, run_id, found)
                else:
                    insert_volunteers(sql, run_id, found)
        return True

    # --- models -------------------------------------------------------------

    def forget(self, run_id: str, round_: int, edges: Collection[str]) -> None:
        """Note that what edges learnt up to a round counts in no merge any more. Idempotent."""
        with self._db.transaction("forget") as sql:
            sql.executemany(
                "INSERT OR IGNORE INTO forgotten SELECT run_id, idx, ? FROM edges "
                "WHERE run_id = ? AND edge_id = ?",
                [(round_, run_id, edge) for edge in edges],
            )

    def save_model(
        self,
        run_id: str,
        round_: int,
        digest: str,
        size_bytes: int,
        *,
        kind: Literal["global", "edge"] = "global",
        edge: int = -1,
    ) -> None:
        """Make a model, whose file is durable, part of the run. Idempotent."""
        with self._db.transaction("model") as sql:
            sql.execute(
                "INSERT OR REPLACE INTO models VALUES (?, ?, ?, ?, ?, ?, ?)",
                (run_id, round_, kind, edge, digest, size_bytes, self._db.clock_ms()),
            )

    def save_metrics(
        self, run_id: str, round_: int, digest: str, metrics: Mapping[str, float]
    ) -> None:
        """Keep how the global model of a round was evaluated.

        Raises:
            RecordError: A metric is not finite.
        """
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise RecordError("metrics", f"{name} is {value}")
        with self._db.transaction("metrics") as sql:
            sql.executemany(
                "INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?, ?, ?)",
                [(run_id, round_, digest, name, value) for name, value in metrics.items()],
            )
