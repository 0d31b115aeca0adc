"""`fedagent runs`: every run of a coordinator's data directory."""

import time

from . import options, places
from .output import credits_text, emit, number_text, rounds_text, table


def runs(*, data_dir: options.CoordinatorData = None, as_json: options.AsJson = False) -> None:
    """List every run of a coordinator, newest first."""
    from fedagent_coordinator.summary import summarize  # noqa: PLC0415 - heavy imports

    from .runs import is_running, open_run  # noqa: PLC0415

    folder = (data_dir if data_dir is not None else places.data_dir("coordinator")).expanduser()
    with open_run(folder) as (reader, _):
        found = [summarize(reader, run).record() for run in reader.runs()]
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
                rounds_text(record["rounds_done"], record["rounds_wanted"]),
                _good(record),
                credits_text(int(str(record["spent_micro"]))),
            )
            for record in found
        ),
    )


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
