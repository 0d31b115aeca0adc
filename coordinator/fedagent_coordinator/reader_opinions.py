"""What the store knows of clients' opinions and of volunteers: read-only."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEvaluation:
    """One call for opinions, or for volunteers, and what came of it.

    Attributes:
        round: Of the model; 0 for the one that the run began with.
        slot: Models evaluated so far in the run, with this one.
        mode: ``report`` or ``peers``.
        digest: The model; empty if the coordinator had died and it was never made.
        metric: What the scores are; empty where there are none.
        asked: Agents that were called.
        answered: Opinions, or volunteers.
        mean: Mean opinion; None without any, and in mode ``peers``.
        reasons: Agents without an opinion, by reason.
        seconds: From the call to its end.
    """

    round: int
    slot: int
    mode: str
    digest: str
    metric: str
    asked: int
    answered: int
    mean: float | None
    reasons: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpinionRow:
    """What one client thinks of one model.

    Attributes:
        edge: Run-wide index of the edge that it came through.
        score: In [0, 1], as clipped, rounded and noised on the device.
        epsilon: Of local differential privacy; 0 for no noise.
    """

    round: int
    client: int
    agent_id: str
    label: str
    edge: int
    edge_id: str
    score: float
    samples: int
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VolunteerRow:
    """One client that volunteered after one model."""

    round: int
    client: int
    agent_id: str
    label: str
    edge: int
    edge_id: str


class OpinionReader:
    """Queries about evaluations.

    Args:
        connection: A connection to the database, read-only or not.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def evaluations(self, run_id: str) -> list[ModelEvaluation]:
        """Return every call of a run, oldest first."""
        rows = self._db.execute(
            "SELECT round, slot, mode, digest, metric, asked, answered, mean, reasons, seconds "
            "FROM judgements WHERE run_id = ? ORDER BY round",
            (run_id,),
        )
        return [
            ModelEvaluation(
                round=row[0],
                slot=row[1],
                mode=row[2],
                digest=row[3],
                metric=row[4],
                asked=row[5],
                answered=row[6],
                mean=row[7],
                reasons=json.loads(row[8]),
                seconds=row[9],
            )
            for row in rows
        ]

    def is_evaluated(self, run_id: str, round_: int) -> bool:
        """Return whether the call after a round is booked."""
        row = self._db.execute(
            "SELECT 1 FROM judgements WHERE run_id = ? AND round = ?", (run_id, round_)
        ).fetchone()
        return row is not None

    def opinions(self, run_id: str, round_: int | None = None) -> list[OpinionRow]:
        """Return the opinions of one model, or of every one, by round and client."""
        rows = self._db.execute(
            "SELECT o.round, o.client, c.agent_id, c.label, o.edge, e.edge_id, o.score, "
            "o.samples, o.epsilon FROM opinions o "
            "JOIN clients c ON c.run_id = o.run_id AND c.idx = o.client "
            "JOIN edges e ON e.run_id = o.run_id AND e.idx = o.edge "
            "WHERE o.run_id = ? AND (? IS NULL OR o.round = ?) ORDER BY o.round, o.client",
            (run_id, round_, round_),
        )
        return [
            OpinionRow(
                round=row[0],
                client=row[1],
                agent_id=row[2],
                label=row[3],
                edge=row[4],
                edge_id=row[5],
                score=row[6],
                samples=row[7],
                epsilon=row[8],
            )
            for row in rows
        ]

    def last_opinions(self, run_id: str) -> dict[int, float]:
        """Return the newest opinion of each client that ever had one."""
        rows = self._db.execute(
            "SELECT client, score, MAX(round) FROM opinions WHERE run_id = ? GROUP BY client",
            (run_id,),
        )
        return {row[0]: row[1] for row in rows}

    def volunteers(self, run_id: str, round_: int | None = None) -> list[VolunteerRow]:
        """Return who volunteered after one model, or after every one, by round and client."""
        rows = self._db.execute(
            "SELECT v.round, v.client, c.agent_id, c.label, v.edge, e.edge_id FROM volunteers v "
            "JOIN clients c ON c.run_id = v.run_id AND c.idx = v.client "
            "JOIN edges e ON e.run_id = v.run_id AND e.idx = v.edge "
            "WHERE v.run_id = ? AND (? IS NULL OR v.round = ?) ORDER BY v.round, v.client",
            (run_id, round_, round_),
        )
        return [
            VolunteerRow(
                round=row[0],
                client=row[1],
                agent_id=row[2],
                label=row[3],
                edge=row[4],
                edge_id=row[5],
            )
            for row in rows
        ]

    def done_rounds(self, run_id: str, since: int) -> list[tuple[int, int]]:
        """Return the settled rounds after `since`, and how many clients each ordered."""
        return self._db.execute(
            "SELECT round, ordered FROM rounds WHERE run_id = ? AND round > ? "
            "AND state = 'done' ORDER BY round",
            (run_id, since),
        ).fetchall()

    def trained_since(self, run_id: str, since: int) -> list[str]:
        """Return the agents whose updates were used in rounds after `since`."""
        rows = self._db.execute(
            "SELECT DISTINCT c.agent_id FROM outcomes o "
            "JOIN clients c ON c.run_id = o.run_id AND c.idx = o.client "
            "WHERE o.run_id = ? AND o.round > ? AND o.used ORDER BY c.idx",
            (run_id, since),
        )
        return [row[0] for row in rows]
