"""Clients' evaluations of models: opinions or volunteers.

Policies learn from opinions, so a run can be replayed only as long as they are whole.
"""

# ruff: noqa: S608 - every query is made of constants

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedagent_coordinator.books.rows import fetch
from fedagent_coordinator.core.effects import BookEvaluation

PEERS = "peers"
"""The mode in which clients volunteer and their opinions stay with them."""

_HEAD = (
    *("round", "slot", "mode", "digest", "metric", "asked", "answered", "mean"),
    *("reasons", "seconds"),
)
_ANSWERS = """SELECT a.round, a.client, c.agent_id AS agent, a.score, a.samples, a.epsilon
    FROM answers a JOIN clients c ON c.run_id = a.run_id AND c.idx = a.client
    WHERE a.run_id = ?1 AND (?2 IS NULL OR a.round = ?2) ORDER BY a.round, a.client"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEvaluation:
    """One call for opinions, or for volunteers, and its result; see `effects.BookEvaluation`.

    Of each opinion, by agent id, `EvaluationQueries.answered` gives score, samples and epsilon.
    """

    round: int
    slot: int
    mode: str  # ``report`` or ``peers``
    digest: str
    metric: str
    asked: int
    answered: int
    mean: float | None
    reasons: Mapping[str, int]
    seconds: float
    scores: Mapping[str, float] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)
    epsilons: Mapping[str, float] = field(default_factory=dict)
    volunteers: tuple[str, ...] = ()  # agent ids

    @property
    def volunteered(self) -> int | None:
        """How many volunteered, where the mode is that."""
        return self.answered if self.mode == PEERS else None

    @property
    def least(self) -> float | None:
        """Lowest opinion."""
        return min(self.scores.values(), default=None)

    @property
    def most(self) -> float | None:
        """Highest opinion."""
        return max(self.scores.values(), default=None)

    @property
    def epsilon(self) -> float:
        """Largest epsilon of the opinions; 0 where none has noise."""
        return max(self.epsilons.values(), default=0.0)

    @property
    def missing(self) -> str:
        """Why agents have no row, in one line."""
        return ", ".join(f"{count} {reason}" for reason, count in sorted(self.reasons.items()))

    def record(self) -> dict[str, Any]:
        """Return plain JSON values."""
        more = {"least": self.least, "most": self.most, "epsilon": self.epsilon}
        return {**asdict(self), **more}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """One client's opinion of one model, as it left the device; no score of a volunteer's."""

    round: int
    client: int
    agent: str
    score: float | None
    samples: int | None
    epsilon: float | None  # 0 is no noise


class EvaluationQueries:
    """Queries about evaluations."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def rows(self, run_id: str) -> list[ModelEvaluation]:
        """Return every evaluation of a run, oldest first."""
        rows = self._db.execute(
            f"SELECT {', '.join(_HEAD)} FROM evaluations WHERE run_id = ? ORDER BY round",
            (run_id,),
        )
        return [ModelEvaluation(**{**row, "reasons": json.loads(row["reasons"])}) for row in rows]

    def first_of(self, run_id: str, last: int) -> int:
        """Return the round of the oldest of the `last` evaluations; 0 is all of them."""
        return min((row.round for row in self.rows(run_id)[-last:]), default=1)

    def answered(self, run_id: str) -> list[ModelEvaluation]:
        """Return every evaluation of a run with its opinions or volunteers, oldest first."""
        found: dict[int, list[AnswerRow]] = {}
        for answer in self.answers(run_id):
            found.setdefault(answer.round, []).append(answer)
        return [
            replace(
                row,
                scores={one.agent: one.score for one in own if one.score is not None},
                samples={one.agent: one.samples for one in own if one.samples is not None},
                epsilons={one.agent: one.epsilon for one in own if one.epsilon},
                volunteers=tuple(one.agent for one in own if one.score is None),
            )
            for row in self.rows(run_id)
            for own in (found.get(row.round, []),)
        ]

    def answers(self, run_id: str, round_: int | None = None) -> list[AnswerRow]:
        """Return what was answered of one model, or of every one, by round and client."""
        return fetch(self._db, AnswerRow, _ANSWERS, (run_id, round_))

    def last_opinions(self, run_id: str) -> dict[int, float]:
        """Return the newest opinion of each client that ever had one."""
        rows = self._db.execute(
            "SELECT client, score, MAX(round) FROM answers "
            "WHERE run_id = ? AND score IS NOT NULL GROUP BY client",
            (run_id,),
        )
        return {client: score for client, score, _ in rows}


def insert_evaluation(sql: sqlite3.Connection, run_id: str, found: BookEvaluation) -> bool:
    """Write an evaluation with its opinions or volunteers; False if its round has them already."""
    columns = [found.client.tolist(), found.edge.tolist()]
    if found.peers:
        columns += [[None] * len(found.client)] * 3
    else:
        columns += [found.score.tolist(), found.samples.tolist(), found.epsilon.tolist()]
    rows = list(zip(*columns, strict=True))
    head = (
        *(found.round, found.slot, found.mode.value, found.digest, found.metric, found.asked),
        *(
            len(rows),
            found.mean,
            json.dumps(dict(sorted(found.reasons.items()))),
            float(found.seconds),
        ),
    )
    made = sql.execute(
        f"INSERT INTO evaluations (run_id, {', '.join(_HEAD)}) "
        f"VALUES (?, {', '.join('?' * len(_HEAD))}) ON CONFLICT (run_id, round) DO NOTHING",
        (run_id, *head),
    )
    if not made.rowcount:
        return False
    sql.executemany(
        "INSERT INTO answers (run_id, round, client, edge, score, samples, epsilon) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(run_id, found.round, *row) for row in rows],
    )
    return True
