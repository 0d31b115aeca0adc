"""What the store knows of models, and of how good they are: read-only."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from fedagent_task.measures import DEVICE_SCORE, Measure, complete, measures_of
from fedagent_task.spec import Recipe

from .reader_opinions import OpinionReader


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
        """Return what the models of a run are judged by, the first before all."""
        row = self._db.execute("SELECT recipe FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        return measures_of(None if row is None else recipe_in(row[0]))

    def metrics(self, run_id: str) -> dict[int, dict[str, float]]:
        """Return the metrics of every evaluated round, with those that follow from others."""
        metrics: dict[int, dict[str, float]] = {}
        for round_, name, value in self._db.execute(
            "SELECT round, metric, value FROM evaluations WHERE run_id = ? ORDER BY round",
            (run_id,),
        ):
            metrics.setdefault(round_, {})[name] = value
        measures = self.measures(run_id)
        return {round_: complete(measures, found) for round_, found in metrics.items()}

    def newest_metrics(self, run_id: str) -> dict[str, float]:
        """Return the newest value of every metric of a run."""
        newest: dict[str, float] = {}
        for found in self.metrics(run_id).values():
            newest.update(found)
        return newest

    def models(
        self, run_id: str, *, kind: str = "global", last: int | None = None
    ) -> list[ModelRow]:
        """Return the models of a run, newest first; only the `last` ones if given.

        The score of a model by the devices is that of the round that began with it.
        """
        metrics = self.metrics(run_id) if kind == "global" else {}
        scores = self._device_scores(run_id)
        rows = self._db.execute(
            "SELECT round, kind, edge, digest, size_bytes FROM models "
            "WHERE run_id = ? AND kind = ? ORDER BY round DESC, edge LIMIT ?",
            (run_id, kind, -1 if last is None else last),
        )
        found = []
        for row in rows:
            own = metrics.get(row[0], {})
            own = {name: value for name, value in own.items() if not name.startswith("device_")}
            if kind == "global" and row[3] in scores:
                own[DEVICE_SCORE.key] = scores[row[3]]
            found.append(
                ModelRow(
                    round=row[0],
                    kind=row[1],
                    edge=row[2],
                    digest=row[3],
                    size_bytes=row[4],
                    metrics=own,
                )
            )
        return found

    def last_global(self, run_id: str) -> ModelRow | None:
        """Return the newest global model of a run."""
        return next(iter(self.models(run_id, last=1)), None)

    def best_global(self, run_id: str) -> ModelRow | None:
        """Return the global model that is best by what the run's are judged by.

        That is the highest accuracy or the lowest error; the newest of equals.
        """
        measures = self.measures(run_id)
        if not measures:
            return None
        by = measures[0]
        judged = [model for model in self.models(run_id) if by.key in model.metrics]
        return max(judged, key=lambda m: (by.rank(m.metrics[by.key]), m.round), default=None)

    def models_to_keep(self, *, last: int = 5) -> set[str]:
        """Return the digests that garbage collection must leave: newest and best of each run."""
        keep: set[str] = set()
        for (run_id,) in self._db.execute("SELECT run_id FROM runs").fetchall():
            keep.update(model.digest for model in self.models(run_id, last=last))
            best = self.best_global(run_id)
            if best is not None:
                keep.add(best.digest)
        return keep

    def _device_scores(self, run_id: str) -> dict[str, float]:
        """Return by digest what devices said of the models that rounds began with."""
        rows = self._db.execute(
            "SELECT digest, value FROM evaluations WHERE run_id = ? AND metric = ? ORDER BY round",
            (run_id, DEVICE_SCORE.key),
        )
        return dict(rows.fetchall())
