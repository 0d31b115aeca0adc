"""The memory of what decides: a snapshot now and then, and every feedback since.

Feedbacks are part of the settle transaction, so a policy that is restored has
learnt exactly what was settled, bit for bit (DESIGN, Policies); so have iteration
control and placement. Opinions are booked later, with the evaluation of a round's model,
and join its feedback here.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .core.decision_policies import DecisionPolicies
from .core.effects import PLAIN, Controls
from .core.evaluation import by_client
from .database import Database
from .errors import RecordError, StateError
from .policies.base import Feedback, State
from .records import (
    pack_arrays,
    unpack_arrays,
    unpack_controls,
    unpack_feedback,
    unpack_view,
)

SNAPSHOT_EVERY = 50
"""Rounds between snapshots: replay stays short and full states are written rarely."""
_KEPT = 2


class PolicyJournal:
    """Snapshots and feedbacks of the policies of all runs."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def snapshot(self, run_id: str, round_: int, policy: str, state: State) -> None:
        """Keep the state of `policy` after it learnt from `round_`; older ones but one go."""
        data = pack_arrays(state)
        with self._db.transaction("snapshot") as sql:
            sql.execute(
                "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)",
                (run_id, round_, policy, data, hashlib.sha256(data).digest()),
            )
            sql.execute(
                "DELETE FROM snapshots WHERE run_id = ? AND round NOT IN (SELECT round FROM "
                "snapshots WHERE run_id = ? ORDER BY round DESC LIMIT ?)",
                (run_id, run_id, _KEPT),
            )

    def restore(self, run_id: str, name: str, policies: DecisionPolicies) -> int:
        """Give what decides back what it knew; return how many rounds were replayed.

        Raises:
            StateError: The run's snapshot is of another policy.
            RecordError: Stored bytes are damaged.
        """
        with self._db.lock:
            since = 0
            row = self._db.connection.execute(
                "SELECT round, policy, state, state_sha256 FROM snapshots WHERE run_id = ? "
                "ORDER BY round DESC LIMIT 1",
                (run_id,),
            ).fetchone()
            if row is not None:
                since, owner, data, seal = row
                if owner != name:
                    raise StateError(name, f"the run was decided by {owner!r}")
                if hashlib.sha256(data).digest() != seal:
                    raise RecordError("policy state", "has changed on disk")
                policies.restore(unpack_arrays(data))
            replayed = 0
            for feedback, controls in self.settled(run_id, since=since):
                policies.learn(feedback, controls)
                replayed += 1
            return replayed

    def feedbacks(self, run_id: str, *, since: int = 0) -> Iterator[Feedback]:
        """Yield the feedback of every settled round after `since`, in order.

        Raises:
            RecordError: Stored bytes are damaged.
        """
        for feedback, _ in self.settled(run_id, since=since):
            yield feedback

    def settled(self, run_id: str, *, since: int = 0) -> Iterator[tuple[Feedback, Controls]]:
        """Yield the same with what had been decided besides.

        Raises:
            RecordError: Stored bytes are damaged.
        """
        rows = self._db.connection.execute(
            "SELECT r.round, r.view, r.feedback, c.record, j.mode FROM rounds r "
            "LEFT JOIN controls c USING (run_id, round) "
            "LEFT JOIN judgements j USING (run_id, round) WHERE r.run_id = ? AND r.round > ? "
            "AND r.state = 'done' ORDER BY r.round",
            (run_id, since),
        )
        for round_, view, feedback, record, mode in rows:
            controls = PLAIN if record is None else unpack_controls(record)
            found = unpack_feedback(feedback, unpack_view(view))
            yield self._evaluated(run_id, round_, found) if mode == "report" else found, controls

    def _evaluated(self, run_id: str, round_: int, feedback: Feedback) -> Feedback:
        """Return the feedback of a round with the opinions of its model."""
        rows = self._db.connection.execute(
            "SELECT client, score FROM opinions WHERE run_id = ? AND round = ?", (run_id, round_)
        ).fetchall()
        client = np.array([row[0] for row in rows], dtype=np.int64)
        score = np.array([row[1] for row in rows], dtype=np.float64)
        opinions = by_client(client, score, len(feedback.view.client_price))
        return replace(feedback, opinions=opinions)
