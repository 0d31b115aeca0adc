"""What the books know of rounds, policies and the ledger; what is quickly read is in `queries`.

A feedback is not stored: it is rebuilt from the round's view, its selection and its orders,
so a policy that is restored has learnt exactly what was settled, bit for bit. Opinions are
written later, with the evaluation of a round's model, and join it here.
"""

# ruff: noqa: S608 - every query is made of constants

import math
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedagent_coordinator.books.audit import Ledger
from fedagent_coordinator.books.evaluations import EvaluationQueries
from fedagent_coordinator.books.queries import Queries, open_books
from fedagent_coordinator.books.records import COLUMNS, controls_of, saw, unpack_arrays
from fedagent_coordinator.core.decision import TRUST, Learning
from fedagent_coordinator.core.effects import PLAIN, Controls
from fedagent_coordinator.core.outcomes import endings_of
from fedagent_coordinator.core.settings import Progress, by_client
from fedagent_coordinator.core.trust import Trust, evidence
from fedagent_coordinator.errors import PolicyError, StoreDamagedError, UnknownRoundError
from fedagent_coordinator.policies.base import (
    MAX_COUNT,
    Feedback,
    IntArray,
    RoundView,
    Selection,
    State,
)
from fedagent_coordinator.policies.state import taken
from fedagent_protocol.signed import WorkClaim

_READ = ("client", "in_time", *COLUMNS, "status", "reason", "norm")
_OPTIONAL = {"steps": "steps", "iterations": "iterations", "train_s": "steps"}
"""Columns that a feedback may do without, and the one whose NULLs say so: seconds may be NaN."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Logged:
    """A round as it is on disk: what its policy saw and decided, and what it learnt.

    `feedback` is None of a round that was voided: nobody learnt from it. `free_micro` is what the
    run could still pay to clients; None for no limit.
    """

    view: RoundView
    selection: Selection
    feedback: Feedback | None
    controls: Controls = PLAIN
    free_micro: int | None = None


class Reader(Queries):
    """Queries that give back what policies saw, decided and learnt, and check the ledger."""

    def __init__(
        self, connection: sqlite3.Connection, folder: Path, *, since: int | None = None
    ) -> None:
        super().__init__(connection, folder, since=since)
        self.evaluations = EvaluationQueries(connection)
        self.ledger = Ledger(connection, folder)

    def progress(self, run_id: str) -> Progress:
        """Return where a run stands, as the round engine starts from it."""
        model, before = (*self.models.rows(run_id, last=2), None, None)[:2]
        return Progress(
            next_round=self.last_round(run_id) + 1,
            rounds_done=self.rounds_done(run_id),
            spent_micro=self.balance(run_id).settled_micro,
            model=model.digest if model else "",
            model_round=model.round if model else 0,
            model_size=model.size_bytes if model else 0,
            state=self.models.state(run_id),
            good=before.digest if before else "",
        )

    def client_starts(self, run_id: str) -> IntArray | None:
        """Return how often clients had started as the last round saw them; None if unknown."""
        last = self.last_round(run_id)
        return self.plan(run_id, last)[0].client_starts if last else None

    def recent_work(self, run_id: str, since: int) -> frozenset[tuple[str, int]]:
        """Return agent and round of all work that was paid in the rounds from `since` on."""
        claims = self._db.execute(
            "SELECT claim FROM orders WHERE run_id = ? AND round >= ? AND claim IS NOT NULL",
            (run_id, since),
        )
        works = [WorkClaim.read(claim) for (claim,) in claims]
        return frozenset((work.agent, work.made_in or work.round) for work in works)

    # ------------------------------------------------- what was seen and decided

    def plan(self, run_id: str, round_: int) -> tuple[RoundView, Selection]:
        """Return what the policy saw and decided, for "why".

        Raises:
            UnknownRoundError: There is no such round, or no more.
        """
        self._refuse_pruned(run_id, round_)
        row = self._db.execute(
            "SELECT view, selection FROM rounds WHERE run_id = ? AND round = ?", (run_id, round_)
        ).fetchone()
        if row is None:
            raise UnknownRoundError(run_id, round_)
        return saw(row)

    def _refuse_pruned(self, run_id: str, round_: int) -> None:
        if 1 <= round_ <= (last := self.closed_until(run_id)):
            problem = f"was pruned, with all before round {last + 1}"
            hint = "ask about a later round, or read an older `fedagent backup`"
            raise UnknownRoundError(run_id, round_, problem, hint)

    def free_before(self, run_id: str, round_: int) -> int | None:
        """Return what the run could pay to the clients of a round; None for no limit."""
        if self.run(run_id).unlimited:
            return None
        query = "SELECT rent_micro FROM rounds WHERE run_id = ? AND round = ?"
        return self._free(run_id, round_) - self._number(query, run_id, round_)

    def _free(self, run_id: str, round_: int) -> int:
        return self._number(
            "SELECT SUM(CASE kind WHEN 'grant' THEN amount_micro WHEN 'settle' THEN -amount_micro "
            "END) FROM entries WHERE run_id = ? AND COALESCE(round, 0) < ?",
            run_id,
            round_,
        )

    def logged(self, run_id: str, *, since: int = 0, before: int = MAX_COUNT) -> Iterator[Logged]:
        """Yield every round that has ended between two others as it is on disk, in order.

        Raises:
            UnknownRoundError: What the first of them saw is gone.
        """
        if since + 1 < before:
            self._refuse_pruned(run_id, since + 1)
        unlimited = self.run(run_id).unlimited
        free = self._free(run_id, since + 1)
        rows = self._db.execute(
            "SELECT r.*, e.mode, n.amount_micro AS settled FROM rounds r "
            "LEFT JOIN evaluations e USING (run_id, round) "
            "JOIN entries n ON n.run_id = r.run_id AND n.round = r.round "
            "AND n.kind IN ('settle', 'void') WHERE r.run_id = ? AND r.state <> 'open' "
            "AND r.round > ? AND r.round < ? ORDER BY r.round",
            (run_id, since, before),
        )
        for row in rows:
            view, selection = saw(row)
            done = row["state"] == "done"
            yield Logged(
                view=view,
                selection=selection,
                feedback=self._feedback(row, view, selection.pairs) if done else None,
                controls=controls_of(row),
                free_micro=None if unlimited else free - row["rent_micro"],
            )
            free -= row["settled"]

    # ------------------------------------------------------------ what was learnt

    def restore(self, run_id: str, policies: Learning, *, before: int = MAX_COUNT) -> int:
        """Give policies what they knew when a round was decided; return how many were replayed.

        Raises:
            PolicyError: The snapshot is of other policies.
            StoreDamagedError: Stored bytes are damaged.
            UnknownRoundError: What they learnt from was pruned.
        """
        state, since = self._snapshot(run_id, before)
        if state is not None:
            policies.restore(state)
        replayed = 0
        for one in self.logged(run_id, since=since, before=before):
            if one.feedback is not None:
                policies.learn(one.feedback, one.controls)
                replayed += 1
        return replayed

    def _snapshot(self, run_id: str, before: int) -> tuple[State | None, int]:
        """Return the newest state before a round, and after which round it is."""
        row = self._db.execute(
            "SELECT round, state FROM snapshots WHERE run_id = ? AND round < ? "
            "ORDER BY round DESC LIMIT 1",
            (run_id, before),
        ).fetchone()
        return (None, 0) if row is None else (unpack_arrays(row["state"]), row["round"])

    def _feedback(self, row: sqlite3.Row, view: RoundView, pairs: IntArray) -> Feedback:
        key = (row["run_id"], row["round"])
        orders = self._db.execute(
            f"SELECT {', '.join(_READ)} FROM orders WHERE run_id = ? AND round = ? ORDER BY place",
            key,
        ).fetchall()
        by_name = zip(*orders, strict=True) if orders else ((),) * len(_READ)
        columns: dict[str, list[Any]] = dict(zip(_READ, map(list, by_name), strict=True))
        if columns["client"] != view.pair_client[pairs].tolist():
            problem = f"of round {row['round']} are not those of its plan"
            raise StoreDamagedError("stored outcomes", problem)
        arrays: dict[str, Any] = {
            name: np.array(columns[name], dtype=dtype)
            for name, dtype in COLUMNS.items()
            if name not in _OPTIONAL or None not in columns[_OPTIONAL[name]]
        }
        opinions = None
        if row["mode"] == "report":
            found = self._db.execute(
                "SELECT client, score FROM answers WHERE run_id = ? AND round = ?", key
            ).fetchall()
            client = np.array([opinion["client"] for opinion in found], dtype=np.int64)
            score = np.array([opinion["score"] for opinion in found], dtype=np.float64)
            opinions = by_client(client, score, len(view.client_price))
        in_time = np.array(columns["in_time"], dtype=np.bool_)
        said = columns["status"], columns["reason"]
        believed = evidence(
            view.pair_edge[pairs].astype(np.int64),
            norm=np.array(columns["norm"], dtype=np.float64),
            samples=arrays["num_samples"],
            reason=columns["reason"],
            valid=~arrays["unpaid"],
        )
        return Feedback(
            view=view,
            pairs=pairs,
            X=in_time,
            ending=endings_of(*said, in_time, arrays["unpaid"]),
            evidence=believed,
            psi=row["psi"],
            rent_micro=row["rent_paid_micro"],
            opinions=opinions,
            **arrays,
        )

    def judged(self, run_id: str) -> dict[int, tuple[float, float | None]]:
        """Return each client's trust, and what its updates took over what it claimed, by index.

        The latter is None where it is unknown. Of a snapshot that is damaged nothing is known.
        """
        trust = Trust()
        try:
            state, since = self._snapshot(run_id, MAX_COUNT)
            if kept := taken(dict(state or {}), TRUST):
                trust.restore(kept)
            for one in self.logged(run_id, since=since):
                if one.feedback is not None:
                    trust.learn(one.feedback)
        except (UnknownRoundError, StoreDamagedError, PolicyError):
            return {}
        both = zip(trust.of(0).tolist(), trust.gaps(0).tolist(), strict=True)
        known = ((score, gap if math.isfinite(gap) else None) for score, gap in both)
        return dict(enumerate(known))


def open_reader(folder: Path) -> AbstractContextManager[Reader]:
    """Read all of the database of a data directory; see `open_books`."""
    return open_books(folder, Reader)
