"""What decides remembers over restarts: a snapshot now and then, and every feedback since.

A feedback is not stored: it is rebuilt from the round's view, its selection and its
outcomes, so a policy that is restored has learnt exactly what was settled, bit for bit.
Opinions are written later, with the evaluation of a round's model, and join it here.
"""

import sqlite3
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedagent_coordinator.core.effects import PLAIN, Controls
from fedagent_coordinator.core.evaluation import by_client
from fedagent_coordinator.errors import RecordError
from fedagent_coordinator.policies.base import Feedback
from fedagent_coordinator.records import unpack_controls, unpack_selection, unpack_view

from .ledger import RENT_PAID
from .rounds import COUNTS, FLAGS, OUTCOME, SECONDS

_OPTIONAL = {"steps": "steps", "iterations": "iterations", "train_s": "steps"}
"""Columns that a feedback may do without, and the one whose NULLs say so: seconds may be NaN."""


def settled(
    sql: sqlite3.Connection, run_id: str, *, since: int = 0
) -> Iterator[tuple[Feedback, Controls]]:
    """Yield what was learnt of every settled round after `since`, in order."""
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
