"""How a demo ends: the report's files, a few lines, one JSON line, one exit code."""

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shutil import which

from fedagent_cli.errors import INTERRUPTED, UNBALANCED, CliError, MissingError
from fedagent_cli.output import echo, emit
from fedagent_cli.places import shortest
from fedagent_cli.report.page import write_report
from fedagent_cli.report.run_report import RunReport, read_run_report
from fedagent_protocol.errors import credits_text
from fedagent_testbed.local_fleet import FleetError

from .plan import Demo
from .run import Heard

SIGNAL_BASE = 128
LEDGER: Mapping[object, str] = {True: "balanced", False: "NOT BALANCED", None: "no run yet"}


def conclude(demo: Demo, heard: Heard, *, as_json: bool) -> int:
    """Write the report, tell the result, and return the exit code.

    Raises:
        CliError: The ledger does not add up.
        FleetError: The run ended by itself before its last round.
    """
    data_dir = demo.directory / "coordinator"
    run, report = None, None
    try:
        run = _of_demo(read_run_report(data_dir), demo, heard)
        report = write_report(run, demo.directory)
    except MissingError as error:
        if not heard.signal:
            raise FleetError("the coordinator left no run", f"see {data_dir}.log") from error
    result = _summary(demo, heard, run) | {"report": report and str(report)}
    if as_json:
        emit(result)
    else:
        _show(result, run, data_dir)
    if heard.signal:
        return INTERRUPTED if heard.signal == 2 else SIGNAL_BASE + heard.signal
    if not result["ledger_balanced"]:
        raise CliError("the ledger does not balance", f"see {data_dir}", exit_code=UNBALANCED)
    if result["rounds_done"] != demo.rounds and not result["conclusion"]:
        raise FleetError(
            f"{result['rounds_done']} of {demo.rounds} rounds done", f"see {data_dir}.log"
        )
    return 0


def _summary(demo: Demo, heard: Heard, run: RunReport | None) -> dict[str, object]:
    """Return the demo's result as the last line of ``--json`` has it."""
    first = heard.seconds_to_first_round
    rounds = run.rounds if run else ()
    return {
        "rounds_done": len(rounds),
        "conclusion": heard.conclusion,
        "accuracy": run.summary.accuracy if run else None,
        "metrics": run.summary.metrics if run else {},
        "ledger_balanced": run.ledger_balanced if run else None,
        "seconds_to_first_round": None if first is None else round(first, 3),
        "seconds": round(heard.seconds, 3),
        "agents": len(demo.agents),
        "edges": len(demo.edges),
        "policy": run.summary.policy if run else None,
        "seed": demo.seed,
        "spent_micro": run.summary.spent_micro if run else 0,
        "ordered": sum(row.ordered for row in rounds),
        "in_time": sum(row.in_time for row in rounds),
        "broker": heard.broker,
        "killed": heard.killed or None,
        "run": run.summary.run if run else heard.run,
        "data_dir": str(demo.directory / "coordinator"),
        "interrupted": bool(heard.signal),
    }


def _show(result: dict[str, object], run: RunReport | None, data_dir: Path) -> None:
    label, good = ("accuracy", "not measured") if run is None else run.metric_line
    lines = {
        "rounds": run.progress if run else f"{result['rounds_done']} of ?",
        label: good,
        "updates in time": f"{result['in_time']} of {result['ordered']} ordered",
        "spent": f"{credits_text(run.summary.spent_micro if run else 0)} credits",
        **({"ended": result["conclusion"]} if result["conclusion"] else {}),
        "ledger": LEDGER[result["ledger_balanced"]],
        "policy": result["policy"],
        "broker": result["broker"],
        "time": f"{result['seconds']} s, first round after {result['seconds_to_first_round']} s",
        "report": result["report"] or "none",
    }
    echo("The demo ended early:" if result["interrupted"] else "The demo is over:")
    for name, text in lines.items():
        echo(f"  {name:<18}{text}")
    called = Path(sys.argv[0])
    own = "fedagent" if which("fedagent") or called.name != "fedagent" else os.path.relpath(called)
    if run is not None:
        looks = ["status --rounds 20", *(["opinions"] if run.evaluations else [])]
        if run.picture.devices:  # who came in time least has most to be explained
            looks.append(f"why {min(run.picture.devices, key=lambda one: one.in_time).name}")
        echo("Look closer:")
        for look in looks:
            echo(f"  {own} {look} --data-dir {shlex.quote(shortest(data_dir))}")
    echo("Next, the same with devices of your own, in three terminals:")
    for role in ("coordinator start --recipe digits", "edge start", "start --stream digits"):
        echo(f"  {own} {role}")


def _of_demo(run: RunReport, demo: Demo, heard: Heard) -> RunReport:
    first, plan = heard.seconds_to_first_round, demo.plan
    facts = {
        "fleet": f"{len(demo.agents)} agents, {len(demo.edges)} edges, all on one machine",
        "broker": heard.broker,
        "first round after": "-" if first is None else f"{first:.1f} s",
        "whole demo": f"{heard.seconds:.1f} s",
        "slow on purpose": plan.slow or "nobody",
        "killed with SIGKILL": heard.killed or "nobody",
        **{agent.name: agent.note for agent in plan.agents},
    }
    return replace(run, facts={**run.facts, **facts})
