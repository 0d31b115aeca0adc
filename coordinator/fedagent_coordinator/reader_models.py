"""What the store knows of models, and of how good they are: read-only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fedagent_task.measures import DEVICE_SCORE, Measure, complete, measures_of
from fedagent_task.spec import Recipe

from .reader_opinions import OpinionReader

_NEWEST = 2**63 - 1
_BEST = """SELECT m.round, m.kind, m.edge, m.digest, m.size_bytes FROM evaluations e
    JOIN models m ON m.run_id = e.run_id AND m.round = e.round AND m.kind = 'global'
    WHERE e.run_id = ? AND e.metric = ? ORDER BY e.value * ? DESC, e.round DESC LIMIT 1"""
_BEST_ON_DEVICES = """WITH told AS (
        SELECT run_id, digest, value, MAX(round) FROM evaluations
        WHERE run_id = ? AND metric = ? GROUP BY digest)
    SELECT m.round, m.kind, m.edge, m.digest, m.size_bytes FROM told e
    JOIN models m ON m.run_id = e.run_id AND m.digest = e.digest AND m.kind = 'global'
    ORDER BY e.value * ? DESC, m.round DESC LIMIT 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One model of a run; `edge` is -1 for a global one."""

    round: int
    kind: str
    edge: int
    digest: str
    size_bytes: int
    metrics: Mapping[str, float]


def recipe_in(text: str) -> Recipe | None:
    """Return the recipe that a run keeps, None if this version cannot read it."""
    try:
        return msgspec.json.decode(text, type=Recipe)
    except msgspec.DecodeError:
        return None


class ModelReader(OpinionReader):
    """Queries about models and their metrics."""

    def measures(self, run_id: str) -> tuple[Measure, ...]:
        """Return what the models of a run are evaluated by, the first before all."""
        row = self._db.execute("SELECT recipe FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        return measures_of(None if row is None else recipe_in(row[0]))

    def metrics(
        self, run_id: str, *, first: int = 0, last: int | None = None
    ) -> dict[int, dict[str, float]]:
        """Return the metrics of every evaluated round, with those that follow from others.

        Args:
            run_id: The run.
            first: The first of these rounds.
            last: The last of them; None for the newest.
        """
        metrics: dict[int, dict[str, float]] = {}
        for round_, name, value in self._db.execute(
            "SELECT round, metric, value FROM evaluations "
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
            "SELECT metric, value, MAX(round) FROM evaluations WHERE run_id = ? GROUP BY metric",
            (run_id,),
        )
        return complete(self.measures(run_id), {name: value for name, value, _ in rows})

    def models(
        self, run_id: str, *, kind: str = "global", last: int | None = None
    ) -> list[ModelRow]:
        """Return the models of a run, newest first; only the `last` ones if given.

        The score of a model by the devices is that of the round that began with it.
        """
        return self._described(
            run_id,
            self._db.execute(
                "SELECT round, kind, edge, digest, size_bytes FROM models "
                "WHERE run_id = ? AND kind = ? ORDER BY round DESC, edge LIMIT ?",
                (run_id, kind, -1 if last is None else last),
            ).fetchall(),
        )

    def _described(
        self, run_id: str, rows: Sequence[tuple[int, str, int, str, int]]
    ) -> list[ModelRow]:
        """Return models with their metrics; of a long run no more is read than they need."""
        if not rows:
            return []
        first, last = rows[-1][0], rows[0][0]
        metrics = self.metrics(run_id, first=first, last=last)
        scores = self._device_scores(run_id, first)
        found = []
        for round_, kind, edge, digest, size in rows:
            every = metrics.get(round_, {}) if kind == "global" else {}
            own = {name: value for name, value in every.items() if not name.startswith("device_")}
            if kind == "global" and digest in scores:
                own[DEVICE_SCORE.key] = scores[digest]
            found.append(
                ModelRow(
                    round=round_,
                    kind=kind,
                    edge=edge,
                    digest=digest,
                    size_bytes=size,
                    metrics=own,
                )
            )
        return found

    def last_global(self, run_id: str) -> ModelRow | None:
        """Return the newest global model of a run."""
        return next(iter(self.models(run_id, last=1)), None)

    def best_global(self, run_id: str) -> ModelRow | None:
        """Return the global model that is best by what the run's are evaluated by.

        That is the highest accuracy or the lowest error; the newest of equals.
        """
        measures = self.measures(run_id)
        if not measures:
            return None
        by = measures[0]
        # A root is the least where its square is.
        metric = by.key if by.rooted is None else by.rooted[0]
        query = _BEST_ON_DEVICES if by is DEVICE_SCORE else _BEST
        row = self._db.execute(query, (run_id, metric, by.rank(1.0))).fetchone()
        return None if row is None else self._described(run_id, [row])[0]

    def models_to_keep(self, *, last: int = 5) -> set[str]:
        """Return the digests that garbage collection must leave: newest and best of each run."""
        keep: set[str] = set()
        for (run_id,) in self._db.execute("SELECT run_id FROM runs").fetchall():
            keep.update(model.digest for model in self.models(run_id, last=last))
            best = self.best_global(run_id)
            if best is not None:
                keep.add(best.digest)
        return keep

    def _device_scores(self, run_id: str, first: int) -> dict[str, float]:
        """Return by digest what devices said of the models that rounds from `first` began with."""
        rows = self._db.execute(
            "SELECT digest, value FROM evaluations "
            "WHERE run_id = ? AND round >= ? AND metric = ? ORDER BY round",
            (run_id, first, DEVICE_SCORE.key),
        )
        return dict(rows.fetchall())
