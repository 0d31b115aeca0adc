"""What decides remembers over restarts: a snapshot now and then, and every feedback since.

A feedback is not stored: it is rebuilt from the round's view, its selection and its
outcomes, so a policy that is restored has learnt exactly what was settled, bit for bit.
Opinions are written later, with the evaluation of a round's model, and join it here.
"""

import hashlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedagent_coordinator.core.decision_policies import DecisionPolicies
from fedagent_coordinator.core.effects import PLAIN, Controls
from fedagent_coordinator.core.evaluation import by_client
from fedagent_coordinator.errors import RecordError, StateError
from fedagent_coordinator.policies.base import Feedback, State
from fedagent_coordinator.records import (
    pack_arrays,
    unpack_arrays,
    unpack_controls,
    unpack_selection,
    unpack_view,
)

from .connection import Database
from .ledger import RENT_PAID
from .rounds import COUNTS, FLAGS, OUTCOME, SECONDS

SNAPSHOT_EVERY = 50
"""Rounds between snapshots: replay stays short and full states are written rarely."""
_KEPT = 2
_OPTIONAL = {"steps": "steps", "iterations": "iterations", "train_s": "steps"}
"""Columns that a feedback may do without, and the one whose NULLs say so: seconds may be NaN."""


def save_snapshot(db: Database, run_id: str, round_: int, policy: str, state: State) -> None:
    """Keep the state of `policy` after it learnt from `round_`; older ones but one go."""
    data = pack_arrays(state)
    with db.transaction("snapshot") as sql:
        sql.execute(
            "INSERT OR REPLACE INTO snapshots (run_id, round, policy, state, state_sha256) "
            "VALUES (?, ?, ?, ?, ?)",
            (run_id, round_, policy, data, hashlib.sha256(data).digest()),
        )
        sql.execute(
            "DELETE FROM snapshots WHERE run_id = ? AND round NOT IN (SELECT round FROM "
            "snapshots WHERE run_id = ? ORDER BY round DESC LIMIT ?)",
            (run_id, run_id, _KEPT),
        )


def restore(sql: sqlite3.Connection, run_id: str, policy: str, policies: DecisionPolicies) -> int:
    """Give what decides back what it knew; return how many rounds were replayed.

    Raises:
        StateError: The run's snapshot is of another policy.
        RecordError: Stored bytes are damaged.
    """
    since = 0
    row = sql.execute(
        "SELECT * FROM snapshots WHERE run_id = ? ORDER BY round DESC LIMIT 1", (run_id,)
    ).fetchone()
    if row is not None:
        since = row["round"]
        if row["policy"] != policy:
            raise StateError(policy, f"the run was decided by {row['policy']!r}")
        if hashlib.sha256(row["state"]).digest() != row["state_sha256"]:
            raise RecordError("policy state", "has changed on disk")
        policies.restore(unpack_arrays(row["state"]))
    replayed = 0
    for feedback, controls in settled(sql, run_id, since=since):
        policies.learn(feedback, controls)
        replayed += 1
    return replayed


def settled(
    sql: sqlite3.Connection, run_id: str, *, since: int = 0
) -> Iterator[tuple[Feedback, Controls]]:
    """Yield what was learnt of every settled round after `since`, in order.

    Raises:
        RecordError: Stored bytes are damaged.
    """
    rows = sql.execute(
        f"SELECT r.*, {RENT_PAID} AS rent_paid, e.mode FROM rounds r "  # noqa: S608 - constant
        "LEFT JOIN evaluations e USING (run_id, round) "
        "WHERE r.run_id = ? AND r.round > ? AND r.state = 'done' ORDER BY r.round",
        (run_id, since),
    )
    for row in rows:
        yield _feedback(sql, row), unpack_controls(row["controls"]) if row["controls"] else PLAIN


def _feedback(sql: sqlite3.Connection, row: sqlite3.Row) -> Feedback:
    key = (row["run_id"], row["round"])
    view, pairs = unpack_view(row["view"]), unpack_selection(row["selection"]).pairs
    names = ", ".join(f"o.{name}" for name in OUTCOME)
    outcomes = sql.execute(
        f"SELECT {names} FROM outcomes o JOIN reservations v USING (run_id, round, client) "  # noqa: S608 - constants
        "WHERE o.run_id = ? AND o.round = ? ORDER BY v.place",
        key,
    ).fetchall()
    columns = {name: [outcome[name] for outcome in outcomes] for name in OUTCOME}
    if columns["client"] != view.pair_client[pairs].tolist():
        raise RecordError("outcomes", f"of round {row['round']} are not those of its plan")
    arrays: dict[str, Any] = {
        name: np.array(columns[name], dtype=dtype)
        for group, dtype in ((FLAGS, np.bool_), (COUNTS, np.int64), (SECONDS, np.float64))
        for name in group
        if name not in _OPTIONAL or None not in columns[_OPTIONAL[name]]
    }
    opinions = None
    if row["mode"] == "report":
        found = sql.execute(
            "SELECT client, score FROM opinions WHERE run_id = ? AND round = ?", key
        ).fetchall()
        client = np.array([opinion["client"] for opinion in found], dtype=np.int64)
        score = np.array([opinion["score"] for opinion in found], dtype=np.float64)
        opinions = by_client(client, score, len(view.client_price))
    return Feedback(
        view=view,
        pairs=pairs,
        X=np.array(columns["in_time"], dtype=np.bool_),
        psi=row["psi"],
        rent_micro=row["rent_paid"],
        opinions=opinions,
        **arrays,
    )
