"""What rounds taught, read again from what they saw, decided and how their orders ended.

A feedback is not stored: it is rebuilt from the round's view, its selection and its orders,
so a policy that is restored has learnt exactly what was settled, bit for bit. Opinions are
written later, with the evaluation of a round's model, and join it here.
"""

# ruff: noqa: S608 - every query is made of constants

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedagent_coordinator.core.answers import by_client
from fedagent_coordinator.core.effects import PLAIN, Controls
from fedagent_coordinator.core.outcomes import endings_of
from fedagent_coordinator.core.trust import evidence
from fedagent_coordinator.errors import StoreDamagedError, UnknownRoundError
from fedagent_coordinator.policies.base import (
    MAX_COUNT,
    Feedback,
    IntArray,
    RoundView,
    Selection,
    State,
)

from .archive import closed_until
from .records import unpack, unpack_arrays

COLUMNS: dict[str, type[np.generic]] = {
    **dict.fromkeys(("used", "void", "censored"), np.bool_),
    **dict.fromkeys(("num_samples", "arrivals", "steps", "iterations"), np.int64),
    **dict.fromkeys(("tau_s", "dt_s", "lc_s", "ut_s", "train_s"), np.float64),
    **dict.fromkeys(("seconds_per_iteration", "loss", "loss_rms"), np.float64),
}
"""Of `orders`, as `Feedback` has them too."""
_READ = ("client", "in_time", *COLUMNS, "status", "reason", "norm")
_OPTIONAL = {"steps": "steps", "iterations": "iterations", "train_s": "steps"}
"""Columns that a feedback may do without, and the one whose NULLs say so: seconds may be NaN."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Logged:
    """A round as it is on disk: what its policy saw and decided, and what it learnt.

    Attributes:
        feedback: None of a round that was voided: nobody learnt from it.
        free_micro: What the run could still pay to clients; None for no limit.
    """

    view: RoundView
    selection: Selection
    feedback: Feedback | None
    controls: Controls = PLAIN
    free_micro: int | None = None


class Restorable(Protocol):
    """What decided the rounds of a run (`core.decision.Learning`)."""

    def restore(self, state: State) -> None:
        """Continue from `state` exactly."""

    def learn(self, feedback: Feedback, controls: Controls) -> None:
        """Learn from a settled round."""


def restore(
    sql: sqlite3.Connection, run_id: str, policies: Restorable, *, before: int = MAX_COUNT
) -> int:
    """Give policies what they knew when a round was decided; return how many were replayed.

    Raises:
        StateError: The snapshot is of other policies.
        StoreDamagedError: Stored bytes are damaged.
        UnknownRoundError: What they learnt from was pruned.
    """
    row = sql.execute(
        "SELECT round, state FROM snapshots WHERE run_id = ? AND round < ? "
        "ORDER BY round DESC LIMIT 1",
        (run_id, before),
    ).fetchone()
    if row is not None:
        policies.restore(unpack_arrays(row["state"]))
    replayed, since = 0, 0 if row is None else row["round"]
    for feedback, controls in settled(sql, run_id, since=since, before=before):
        policies.learn(feedback, controls)
        replayed += 1
    return replayed


def refuse_pruned(sql: sqlite3.Connection, run_id: str, round_: int) -> None:
    """Raise `UnknownRoundError` if what a round saw is gone."""
    if 1 <= round_ <= (last := closed_until(sql, run_id)):
        problem = f"was pruned, with all before round {last + 1}"
        hint = "ask about a later round, or read an older `fedagent backup`"
        raise UnknownRoundError(run_id, round_, problem, hint)


def settled(
    sql: sqlite3.Connection, run_id: str, *, since: int = 0, before: int = MAX_COUNT
) -> Iterator[tuple[Feedback, Controls]]:
    """Yield what was learnt of every settled round after `since` and `before` another, in order.

    Raises:
        UnknownRoundError: What the first of them saw is gone.
    """
    if since + 1 < before:
        refuse_pruned(sql, run_id, since + 1)
    rows = sql.execute(
        "SELECT r.*, e.mode FROM rounds r LEFT JOIN evaluations e USING (run_id, round) "
        "WHERE r.run_id = ? AND r.round > ? AND r.round < ? AND r.state = 'done' ORDER BY r.round",
        (run_id, since, before),
    )
    for row in rows:
        view, selection = saw(row)
        yield _feedback(sql, row, view, selection.pairs), controls_of(row)


def logged(sql: sqlite3.Connection, run_id: str) -> Iterator[Logged]:
    """Yield every round that has ended, in order.

    Raises:
        UnknownRoundError: What the first of them saw is gone.
    """
    refuse_pruned(sql, run_id, 1)
    unlimited = sql.execute("SELECT unlimited FROM runs WHERE run_id = ?", (run_id,)).fetchone()[0]
    free = free_before(sql, run_id, 1)
    rows = sql.execute(
        "SELECT r.*, e.mode, n.amount_micro AS settled FROM rounds r "
        "LEFT JOIN evaluations e USING (run_id, round) "
        "JOIN entries n ON n.run_id = r.run_id AND n.round = r.round "
        "AND n.kind IN ('settle', 'void') WHERE r.run_id = ? AND r.state <> 'open' "
        "ORDER BY r.round",
        (run_id,),
    )
    for row in rows:
        view, selection = saw(row)
        yield Logged(
            view=view,
            selection=selection,
            feedback=_feedback(sql, row, view, selection.pairs) if row["state"] == "done" else None,
            controls=controls_of(row),
            free_micro=None if unlimited else free - row["rent_micro"],
        )
        free -= row["settled"]


def free_before(sql: sqlite3.Connection, run_id: str, round_: int) -> int:
    """Return what was free before a round reserved anything."""
    (free,) = sql.execute(
        "SELECT COALESCE(SUM(CASE kind WHEN 'grant' THEN amount_micro WHEN 'settle' "
        "THEN -amount_micro END), 0) FROM entries WHERE run_id = ? AND COALESCE(round, 0) < ?",
        (run_id, round_),
    ).fetchone()
    return int(free)


def saw(row: sqlite3.Row) -> tuple[RoundView, Selection]:
    """Return what the policy saw and decided."""
    return unpack(row["view"], RoundView), unpack(row["selection"], Selection)


def controls_of(row: sqlite3.Row) -> Controls:
    """Return what was decided of a round besides who trains."""
    return unpack(row["controls"], Controls) if row["controls"] else PLAIN


def _feedback(
    sql: sqlite3.Connection, row: sqlite3.Row, view: RoundView, pairs: IntArray
) -> Feedback:
    key = (row["run_id"], row["round"])
    orders = sql.execute(
        f"SELECT {', '.join(_READ)} FROM orders WHERE run_id = ? AND round = ? ORDER BY place", key
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
        found = sql.execute(
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
        valid=~arrays["void"],
    )
    return Feedback(
        view=view,
        pairs=pairs,
        X=in_time,
        ending=endings_of(*said, in_time, arrays["void"]),
        evidence=believed,
        psi=row["psi"],
        rent_micro=row["rent_paid_micro"],
        opinions=opinions,
        **arrays,
    )
