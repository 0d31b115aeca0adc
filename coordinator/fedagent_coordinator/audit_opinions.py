"""Are opinions and volunteers those that were booked? Each evaluation is sealed on its own.

Policies learn from opinions, so a run can be replayed only as long as they are whole;
feedbacks are sealed without them, because they come later.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Sequence

import msgspec

Row = Sequence[float | int]
"""Client, edge, score, samples, epsilon of an opinion; client, edge of a volunteer."""

SEALED = "round, slot, mode, digest, metric, asked, answered, mean, reasons, seconds"
"""Columns of an evaluation that its seal covers, in this order."""


def evaluation_seal(head: Sequence[object], rows: Sequence[Row]) -> bytes:
    """Return the digest that seals an evaluation and its rows.

    Args:
        head: The values of `SEALED`.
        rows: Its opinions or volunteers, by client.
    """
    return hashlib.sha256(msgspec.msgpack.encode([list(head), [list(r) for r in rows]])).digest()


def check_evaluations(db: sqlite3.Connection, problem: Callable[[str], None]) -> None:
    """Compare every evaluation with its rows and its seal; keys find rows without one.

    Args:
        db: The database.
        problem: Takes what is wrong, one line each.
    """
    # One evaluation at a time: a long run has millions of opinions.
    evaluated = db.execute(
        f"SELECT run_id, seal, {SEALED} FROM judgements ORDER BY run_id, round"  # noqa: S608 - constant
    )
    for run_id, seal, *head in evaluated:
        round_, mode, answered = head[0], head[2], head[6]
        rows = {
            kept: db.execute(
                f"SELECT {columns} WHERE run_id = ? AND round = ? ORDER BY client",
                (run_id, round_),
            ).fetchall()
            for kept, columns in _ROWS.items()
        }
        found = rows.pop(mode)
        if len(found) != answered or any(rows.values()):
            problem(f"round {round_}: {answered} answers were booked, others are there")
        elif evaluation_seal(head, found) != seal:
            problem(f"round {round_}: the evaluation of its model has changed")


_ROWS = {
    "report": "client, edge, score, samples, epsilon FROM opinions",
    "peers": "client, edge FROM volunteers",
}
