"""`fedagent runs`: every run of a coordinator's data directory."""

import time
from typing import TYPE_CHECKING

from . import options, places
from .output import credits_text, emit, number_text, rounds_text, table

if TYPE_CHECKING:
    from fedagent_coordinator.reader import Reader, Run


def runs(*, data_dir: options.CoordinatorData = None, as_json: options.AsJson = False) -> None:
    """List every run of a coordinator, newest first."""
    from .runs import is_running, open_run  # noqa: PLC0415 - heavy imports

    folder = (data_dir if data_dir is not None else places.data_dir("coordinator")).expanduser()
    with open_run(folder) as (reader, _):
        found = [_record(reader, run) for run in reader.runs()]
    running = is_running(folder)
    for record in found:
        record["running"] = running if record["ended_ms"] is None else False
    if as_json:
        emit({"runs": found})
        return
    table(
        ("run", "recipe", "policy", "started", "ended", "rounds", "evaluated by", "spent"),
        (
            (
                str(record["run"])[:12],
                record["recipe"],
                record["policy"],
                _when(record["begun_ms"]),
                _end(record),
                rounds_text(record["rounds_done"], record["rounds"]),
                _good(record),
                credits_text(int(str(record["spent"]))),
            )
            for record in found
        ),
    )


def _record(reader: "Reader", run: "Run") -> dict[str, object]:
    """Return a run in one row."""
    from .runs import recipe_of  # noqa: PLC0415 - heavy imports

    recipe, progress = recipe_of(run), reader.progress(run.run_id)
    newest = next(iter(reader.rounds(run.run_id, last=1)), None)
    metrics, measures = reader.newest_metrics(run.run_id), reader.measures(run.run_id)
    planned = recipe.policy.name if recipe is not None else None
    return {
        "run": run.run_id,
        "recipe": recipe.name if recipe is not None else run.recipe_digest[:12],
        "policy": newest.policy if newest is not None else planned,
        "begun_ms": run.begun_ms,
        "ended_ms": run.ended_ms,
        "end_reason": run.end_reason,
        "rounds_done": progress.rounds_done,
        "rounds": reader.rounds_of(run),
        "accuracy": metrics.get("accuracy"),
        "loss": metrics.get("loss"),
        "primary_metric": measures[0].key if measures else None,
        "metrics": metrics,
        "spent": progress.spent_micro,
    }


def _good(record: dict[str, object]) -> str:
    """Return what a run is evaluated by, and the newest value."""
    from fedagent_task.measures import BY_KEY  # noqa: PLC0415 - heavy imports

    by, metrics = BY_KEY.get(str(record["primary_metric"])), record["metrics"]
    if by is None or not isinstance(metrics, dict) or by.key not in metrics:
        return "not measured"
    return f"{by.word} {number_text(metrics[by.key])}"


def _end(record: dict[str, object]) -> str:
    if record["ended_ms"] is not None:
        return _when(record["ended_ms"])
    return "running" if record["running"] else "not ended"


def _when(at_ms: object) -> str:
    """Return a wall clock time as it is here."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(int(str(at_ms)) / 1000))
