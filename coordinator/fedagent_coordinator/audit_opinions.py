"""Are opinions and volunteers those that were booked? Each judgement is sealed on its own.

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
"""Columns of a judgement that its seal covers, in this order."""


def judgement_seal(head: Sequence[object], rows: Sequence[Row]) -> bytes:
    """Return the digest that seals a judgement and its rows.

    Args:
        head: The values of `SEALED`.
        rows: Its opinions or volunteers, by client.
    """
    return hashlib.sha256(msgspec.msgpack.encode([list(head), [list(r) for r in rows]])).digest()


def check_judgements(db: sqlite3.Connection, problem: Callable[[str], None]) -> None:
    """Compare every judgement with its rows and its seal.

    Args:
        db: The database.
        problem: Takes what is wrong, one line each.
    """
    rows: dict[tuple[str, int, str], list[Row]] = {}
    for run_id, round_, *row in db.execute(
        "SELECT run_id, round, client, edge, score, samples, epsilon FROM opinions "
        "ORDER BY run_id, round, client"
    ):
        rows.setdefault((run_id, round_, "report"), []).append(row)
    for run_id, round_, *row in db.execute(
        "SELECT run_id, round, client, edge FROM volunteers ORDER BY run_id, round, client"
    ):
        rows.setdefault((run_id, round_, "peers"), []).append(row)
    for run_id, seal, *head in db.execute(f"SELECT run_id, seal, {SEALED} FROM judgements"):  # noqa: S608 - constant
        round_, mode, answered = head[0], head[2], head[6]
        found = rows.pop((run_id, round_, mode), [])
        if len(found) != answered:
            problem(f"round {round_}: {answered} opinions were booked, {len(found)} are there")
        elif judgement_seal(head, found) != seal:
            problem(f"round {round_}: what its model was judged has changed")
    for _, round_, mode in sorted(rows):
        problem(f"round {round_}: opinions or volunteers of a model that was not judged ({mode})")
