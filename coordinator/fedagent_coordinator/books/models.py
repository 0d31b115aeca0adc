"""Global models of a run, and how good they are: rows, queries and writes."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fedagent_task.recipe.spec import Recipe
from fedagent_task.scoring.measures import DEVICE_SCORE, Measure, complete, measures_of

_NEWEST = 2**63 - 1
_MODEL = "SELECT m.round, m.digest, m.size_bytes FROM"
_BEST = f"""{_MODEL} metrics e
    JOIN models m ON m.run_id = e.run_id AND m.round = e.round
    WHERE e.run_id = ? AND e.metric = ? ORDER BY e.value * ? DESC, e.round DESC LIMIT 1"""
_BEST_ON_DEVICES = f"""WITH scores AS (
        SELECT run_id, digest, value, MAX(round) FROM metrics
        WHERE run_id = ? AND metric = ? GROUP BY digest)
    {_MODEL} scores e JOIN models m ON m.run_id = e.run_id AND m.digest = e.digest
    ORDER BY e.value * ? DESC, m.round DESC LIMIT 1"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One global model of a run."""

    round: int
    digest: str
    size_bytes: int
    metrics: Mapping[str, float]


def recipe_in(text: str) -> Recipe | None:
    """Return the recipe that a run keeps, None if this version cannot read it."""
    try:
        return msgspec.json.decode(text, type=Recipe)
    except msgspec.DecodeError:
        return None


class ModelQueries:
    """Queries about models and their metrics."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def measures(self, run_id: str) -> tuple[Measure, ...]:
        """Return what the models of a run are evaluated by, the first before all."""
        row = self._db.execute("SELECT recipe FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        return measures_of(None if row is None else recipe_in(row["recipe"]))

    def metrics(
        self, run_id: str, *, first: int = 0, last: int | None = None
    ) -> dict[int, dict[str, float]]:
        """Return the metrics of every evaluated round, with those that follow from others."""
        metrics: dict[int, dict[str, float]] = {}
        for round_, name, value in self._db.execute(
            "SELECT round, metric, value FROM metrics "
            "WHERE run_id = ? AND round BETWEEN ? AND ? ORDER BY round",
            (run_id, first, _NEWEST if last is None else last),
        ):
            metrics.setdefault(round_, {})[name] = value
        measures = self.measures(run_id)
        return {round_: complete(measures, found) for round_, found in metrics.items()}

    def newest_metrics(self, run_id: str) -> dict[str, float]:
        """Return the newest value of every metric of a run."""
        # Beside one MAX, sqlite takes the value from the row that has it.
        rows = self._db.execute(
            "SELECT metric, value, MAX(round) FROM metrics WHERE run_id = ? GROUP BY metric",
            (run_id,),
        )
        return complete(self.measures(run_id), {name: value for name, value, _ in rows})

    def rows(self, run_id: str, *, last: int | None = None) -> list[ModelRow]:
        """Return the models of a run, newest first; only the `last` ones if given.

        The score of a model by the devices is that of the round that began with it.
        """
        return self._described(
            run_id,
            self._db.execute(
                "SELECT round, digest, size_bytes FROM models WHERE run_id = ? "
                "ORDER BY round DESC LIMIT ?",
                (run_id, -1 if last is None else last),
            ).fetchall(),
        )

    def last(self, run_id: str) -> ModelRow | None:
        """Return the newest model of a run."""
        return next(iter(self.rows(run_id, last=1)), None)

    def best(self, run_id: str) -> ModelRow | None:
        """Return the model that is best by the first measure of the run; the newest of equals."""
        measures = self.measures(run_id)
        if not measures:
            return None
        by = measures[0]
        # A root is the least where its square is.
        metric = by.key if by.rooted is None else by.rooted[0]
        query = _BEST_ON_DEVICES if by is DEVICE_SCORE else _BEST
        row = self._db.execute(query, (run_id, metric, by.rank(1.0))).fetchone()
        return None if row is None else self._described(run_id, [row])[0]

    def state(self, run_id: str) -> str:
        """Return the digest of what the server optimiser knew after the newest model."""
        row = self._db.execute(
            "SELECT state FROM models WHERE run_id = ? ORDER BY round DESC LIMIT 1", (run_id,)
        ).fetchone()
        return "" if row is None else str(row["state"])

    def to_keep(self, *, last: int = 5) -> set[str]:
        """Return the digests that garbage collection must leave.

        Of each run the newest models, the best one, the newest state of its server optimiser, and
        what its devices get once.
        """
        keep: set[str] = set()
        for run_id, text in self._db.execute("SELECT run_id, recipe FROM runs").fetchall():
            recipe = recipe_in(text)
            if recipe is not None and recipe.model.once:
                keep.add(recipe.model.once)
            keep.update(model.digest for model in self.rows(run_id, last=last))
            keep.add(self.state(run_id))
            if (best := self.best(run_id)) is not None:
                keep.add(best.digest)
        return keep - {""}

    def _described(self, run_id: str, rows: Sequence[sqlite3.Row]) -> list[ModelRow]:
        """Return models with their metrics; of a long run no more is read than they need."""
        if not rows:
            return []
        first, last = rows[-1]["round"], rows[0]["round"]
        metrics = self.metrics(run_id, first=first, last=last)
        # By digest, the devices' score of the models that rounds from `first` began with.
        scores = dict(
            self._db.execute(
                "SELECT digest, value FROM metrics "
                "WHERE run_id = ? AND round >= ? AND metric = ? ORDER BY round",
                (run_id, first, DEVICE_SCORE.key),
            ).fetchall()
        )
        found = []
        for row in rows:
            every = metrics.get(row["round"], {})
            own = {name: value for name, value in every.items() if not name.startswith("device_")}
            if row["digest"] in scores:
                own[DEVICE_SCORE.key] = scores[row["digest"]]
            found.append(ModelRow(**row, metrics=own))
        return found
