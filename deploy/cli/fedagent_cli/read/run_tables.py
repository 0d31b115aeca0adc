"""`fedagent status --rounds` and `--all`: the rounds of a run, and every run, as tables."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from fedagent_cli.output import credits_text, emit, number_text, rounds_text, table
from fedagent_cli.read.runs import columns, is_running, open_run
from fedagent_coordinator.books.rows import RoundRow
from fedagent_coordinator.picture.summary import RunSummary, summarize


def show_rounds(data_dir: Path | None, run: str | None, *, last: int, as_json: bool) -> None:
    """Show the newest rounds: updates in time, cost and duration."""
    with open_run(data_dir, run) as (reader, chosen):
        first = reader.last_round(chosen.run_id) - last + 1 if last else 1
        with reader.whole(chosen.run_id, first=first) as near:
            found = near.rounds(chosen.run_id, last=last or None)
        shown = columns(reader.models.measures(chosen.run_id), (row.metrics for row in found))
        names = {edge: name or edge for edge, name in reader.edges(chosen.run_id).items()}
    if as_json:
        emit({"run": chosen.run_id, "rounds": [asdict(row) for row in found]})
        return
    controlled = any(row.rented or row.iterations for row in found)
    more = ("rho", "edge", "rent") if controlled else ()
    table(
        (
            *("round", "state", "ordered", "in time", "used", *(one.word for one in shown)),
            *("spent", "seconds", *more, "reason"),
        ),
        (
            (
                *(row.round, row.state, row.ordered, row.in_time, row.used),
                *(row.metrics.get(one.key) for one in shown),
                credits_text(row.paid_micro),
                sum(row.timing_ms.values()) / 1000 if row.timing_ms else None,
                *(_controls(row, names) if controlled else ()),
                row.reason,
            )
            for row in found
        ),
        unless={"state": "done", "reason": ""},
    )


def _controls(row: RoundRow, names: Mapping[str, str]) -> tuple[object, ...]:
    return (row.iterations or "-", names.get(row.rented, "-"), credits_text(row.rent_micro))


def show_runs(data_dir: Path | None, *, as_json: bool) -> None:
    """List every run of a coordinator, newest first."""
    with open_run(data_dir) as (reader, _):
        found = [summarize(reader, run) for run in reader.runs()]
    running = is_running(reader.folder)
    if as_json:
        states = [running if one.ended_ms is None else False for one in found]
        records = [one.record() for one in found]
        emit({"runs": [{**r, "running": s} for r, s in zip(records, states, strict=True)]})
        return
    unended = "running" if running else "not ended"
    table(
        ("run", "recipe", "policy", "started", "ended", "rounds", "evaluated by", "spent"),
        (
            (
                *(one.run[:12], one.recipe, one.policy, _when(one.begun_ms)),
                unended if one.ended_ms is None else _when(one.ended_ms),
                rounds_text(one.rounds_done, one.rounds_wanted),
                _good(one),
                credits_text(one.spent_micro),
            )
            for one in found
        ),
    )


def _good(run: RunSummary) -> str:
    by = run.measures[0] if run.measures else None
    if by is None or by.key not in run.metrics:
        return "not measured"
    return f"{by.word} {number_text(run.metrics[by.key])}"


def _when(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_ms / 1000))
