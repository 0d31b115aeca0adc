"""What old rounds saw is dropped, in pieces; the ledger, payments and outcomes stay.

Of a pruned round its view, its selection and its controls go, so it can no more be replayed or
asked why. Each piece of rounds is a row of `pruned`, bound by a fact that covers what is left of
their plans; the facts on the whole plans stay in the chain, for whoever has an older backup.
A policy is restored from a snapshot, so nothing after the oldest one that is kept goes.
"""

import sqlite3
from dataclasses import dataclass

from . import facts
from .connection import Database
from .rounds import pruned_until

_LIMIT = """SELECT MIN(s.kept, COALESCE(o.first - 1, s.kept)) FROM
    (SELECT COALESCE(MIN(round), 0) AS kept FROM snapshots WHERE run_id = ?1) s,
    (SELECT MIN(round) AS first FROM rounds WHERE run_id = ?1
        AND (round > ?2 OR state = 'open' OR closed_ms > ?3)) o"""
_BYTES = "COALESCE(SUM(length(view) + length(selection) + length(controls)), 0)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prunable:
    """Rounds of a run whose plans may go, `first` to `last`; none if `last` is before it."""

    run_id: str
    first: int
    last: int
    bytes: int

    @property
    def rounds(self) -> int:
        """How many there are."""
        return max(0, self.last - self.first + 1)


def prunable(
    sql: sqlite3.Connection,
    run_id: str,
    *,
    keep_rounds: int = 0,
    before_ms: int = 2**62,
    most: int = 2**31,
) -> Prunable:
    """Return which plans may go: those of rounds beyond the newest ones that ended before a time.

    No more than `most`, the oldest first.
    """
    newest = sql.execute("SELECT MAX(round) FROM rounds WHERE run_id = ?", (run_id,)).fetchone()[0]
    wanted = (run_id, max(0, (newest or 0) - keep_rounds), before_ms)
    first = pruned_until(sql, run_id) + 1
    last = min(int(sql.execute(_LIMIT, wanted).fetchone()[0]), first + most - 1)
    (size,) = sql.execute(
        f"SELECT {_BYTES} FROM rounds WHERE run_id = ? AND round BETWEEN ? AND ?",  # noqa: S608 - constant
        (run_id, first, last),
    ).fetchone()
    return Prunable(run_id=run_id, first=first, last=last, bytes=size)


def prune(db: Database, piece: Prunable, *, by: str) -> None:
    """Drop the plans of a piece in one transaction.

    Crash points: ``prune.named``, ``prune.dropped``, and those of `Database.transaction`.
    """
    key, now = (piece.run_id, piece.first, piece.last), db.clock_ms()
    with db.transaction("prune") as sql:
        sql.execute(
            "INSERT INTO pruned (run_id, first, round, by, at_ms) VALUES (?, ?, ?, ?, ?)",
            (*key, by, now),
        )
        db.checkpoint("prune.named")
        sql.execute(
            "UPDATE rounds SET view = x'', selection = x'', controls = x'' "
            "WHERE run_id = ? AND round BETWEEN ? AND ?",
            key,
        )
        db.checkpoint("prune.dropped")
        facts.bind(db.ledger, sql, facts.PRUNED, piece.run_id, piece.last, at_ms=now)
