"""Writing one evaluation into the database, inside a transaction that the store began."""

import json
import sqlite3
from collections.abc import Sequence

from .audit_opinions import SEALED, Row, evaluation_seal
from .core.effects import BookOpinions, BookVolunteers


def insert_opinions(sql: sqlite3.Connection, run_id: str, found: BookOpinions) -> None:
    """Write an evaluation with its opinions."""
    columns = (found.client, found.edge, found.score, found.samples, found.epsilon)
    rows = sorted(zip(*(column.tolist() for column in columns), strict=True))
    _insert_head(sql, run_id, found, rows, "report", metric=found.metric, mean=found.mean)
    sql.executemany(
        "INSERT INTO opinions VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(run_id, found.round, *row) for row in rows],
    )


def insert_volunteers(sql: sqlite3.Connection, run_id: str, found: BookVolunteers) -> None:
    """Write an evaluation with its volunteers."""
    rows = sorted(zip(found.client.tolist(), found.edge.tolist(), strict=True))
    _insert_head(sql, run_id, found, rows, "peers")
    sql.executemany(
        "INSERT INTO volunteers VALUES (?, ?, ?, ?)",
        [(run_id, found.round, *row) for row in rows],
    )


def _insert_head(
    sql: sqlite3.Connection,
    run_id: str,
    found: BookOpinions | BookVolunteers,
    rows: Sequence[Row],
    mode: str,
    *,
    metric: str = "",
    mean: float | None = None,
) -> None:
    reasons = json.dumps(dict(sorted(found.reasons.items())))
    head = (found.round, found.slot, mode, found.digest, metric, found.asked, len(rows), mean)
    head_all = (*head, reasons, float(found.seconds))
    sql.execute(
        f"INSERT INTO judgements (run_id, seal, {SEALED}) "  # noqa: S608 - constant
        f"VALUES (?, ?, {','.join('?' * len(head_all))})",
        (run_id, evaluation_seal(head_all, rows), *head_all),
    )
