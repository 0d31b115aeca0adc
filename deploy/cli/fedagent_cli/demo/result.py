"""How a demo ends: the report's files, one screen, one JSON line, one exit code."""

import logging
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shutil import which

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from fedagent_agent.errors import PeerStoreError
from fedagent_agent.peers.store import KEPT_SLOTS, read_slots
from fedagent_cli.errors import INTERRUPTED, DemoError, NoRunError, UnbalancedError
from fedagent_cli.output import credits_text, echo, emit
from fedagent_cli.places import shortest
from fedagent_cli.report.indices import Columns
from fedagent_cli.report.page import write_report
from fedagent_cli.report.run_report import RunReport, read_run_report
from fedagent_coordinator.books.evaluations import PEERS

from .plan import Plan
from .run import DemoSettings, Finish

_log = logging.getLogger(__name__)
SIGNAL_BASE = 128
LEDGER: Mapping[object, str] = {True: "balanced", False: "NOT BALANCED", None: "no run yet"}


def conclude(finish: Finish, *, settings: DemoSettings, plan: Plan, as_json: bool) -> int:
    """Write the report, tell the result, and return the exit code.

    Raises:
        UnbalancedError: The ledger does not add up.
        DemoError: The run ended by itself before its last round.
    """
    data_dir = settings.directory / "coordinator"
    run, report = None, None
    try:
        run = _named(read_run_report(data_dir), plan, finish)
        if any(row.mode == PEERS for row in run.evaluations):
            ids = {key: settings.directory / name for key, name in finish.heard.names.items()}
            run = replace(run, inside=read_inside(ids, run.run))
        report = write_report(run, data_dir, settings.directory)
    except NoRunError as error:
        if not finish.signal:
            raise DemoError("the coordinator left no run", f"see {data_dir}.log") from error
    result = _summary(finish, run, settings=settings, plan=plan)
    result["report"] = None if report is None else str(report)
    if as_json:
        emit(result)
    else:
        _show(result, run, data_dir)
    if finish.signal:
        return INTERRUPTED if finish.signal == 2 else SIGNAL_BASE + finish.signal
    if not result["ledger_balanced"]:
        raise UnbalancedError("the ledger does not balance", f"see {data_dir}")
    if result["rounds_done"] != settings.rounds and not result["conclusion"]:
        raise DemoError(
            f"{result['rounds_done']} of {settings.rounds} rounds done", f"see {data_dir}.log"
        )
    return 0


def _summary(
    finish: Finish, run: RunReport | None, *, settings: DemoSettings, plan: Plan
) -> dict[str, object]:
    """Return the demo's result as the last line of ``--json`` has it."""
    heard, first = finish.heard, finish.seconds_to_first_round
    evaluated = run is not None and run.evaluations
    rounds = run.rounds if run else ()
    return {
        "rounds_done": len(rounds),
        "conclusion": heard.conclusion,
        "accuracy": run.accuracy if run else None,
        "metrics": run.metrics if run else {},
        **({"opinion": run.opinion, "chosen": _chosen(run)} if run and evaluated else {}),
        "ledger_balanced": run.ledger_balanced if run else None,
        "seconds_to_first_round": None if first is None else round(first, 3),
        "seconds": round(finish.seconds, 3),
        "agents": len(plan.agents),
        "edges": len(plan.edges),
        "policy": run.policy if run else settings.policy,
        "seed": settings.seed,
        "spent_micro": run.spent_micro if run else 0,
        "ordered": sum(row.ordered for row in rounds),
        "in_time": sum(row.in_time for row in rounds),
        "broker": heard.broker,
        "killed": heard.killed or None,
        "run": run.run if run else heard.run,
        "data_dir": str(settings.directory / "coordinator"),
        "interrupted": bool(finish.signal),
    }


def _chosen(run: RunReport) -> dict[str, float]:
    kinds = dict.fromkeys(agent.kind for agent in run.agents)
    own = {kind: [a.ordered for a in run.agents if a.kind == kind] for kind in kinds}
    return {kind: round(sum(times) / len(times), 2) for kind, times in own.items()}


def _show(result: dict[str, object], run: RunReport | None, data_dir: Path) -> None:
    """Print one screen of results, and what to do next."""
    label, good = ("accuracy", "not measured") if run is None else run.metric_line
    opinions = {}
    if run is not None and run.evaluations:
        chosen = ", ".join(f"{times:g} x {kind}" for kind, times in _chosen(run).items())
        opinion = {} if run.opinion is None else {"mean opinion": f"{run.opinion:.3f}"}
        opinions = {**opinion, "chosen, each": chosen}
    lines = {
        "rounds": run.progress if run else f"{result['rounds_done']} of ?",
        label: good,
        **opinions,
        "updates in time": f"{result['in_time']} of {result['ordered']} ordered",
        "spent": f"{credits_text(run.spent_micro if run else 0)} credits",
        **({"ended": str(result["conclusion"])} if result["conclusion"] else {}),
        "ledger": LEDGER[result["ledger_balanced"]],
        "policy": str(result["policy"]),
        "broker": str(result["broker"]),
        "time": f"{result['seconds']} s, first round after {result['seconds_to_first_round']} s",
        "report": str(result["report"] or "none"),
    }
    grid = Table.grid(padding=(0, 3))
    grid.add_column(style="dim")
    grid.add_column()
    for name, text in lines.items():
        grid.add_row(name, text)
    ended = "fedagent demo, ended early" if result["interrupted"] else "fedagent demo"
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(Panel(grid, title=ended, title_align="left", border_style="blue", padding=1))
    called = Path(sys.argv[0])
    own = "fedagent" if which("fedagent") or called.name != "fedagent" else os.path.relpath(called)
    if run is not None:
        looks = ["status --rounds 20", *(["opinions"] if run.evaluations else [])]
        if run.agents:  # who came in time least has most to be explained
            looks.append(f"why {min(run.agents, key=lambda agent: agent.in_time).name}")
        echo("Look closer:")
        for look in looks:
            echo(f"  {own} {look} --data-dir {shlex.quote(shortest(data_dir))}")
    echo("Next, the same with devices of your own, in three terminals:")
    for role in ("coordinator start --recipe digits", "edge start", "start --stream digits"):
        echo(f"  {own} {role}")


def _named(run: RunReport, plan: Plan, finish: Finish) -> RunReport:
    """Return the run with the names and facts that its books do not have."""
    heard, first = finish.heard, finish.seconds_to_first_round
    kinds = {agent.name: agent.kind for agent in plan.agents}
    agents = [replace(one, label=heard.names.get(one.agent, one.agent)) for one in run.agents]
    agents = [replace(one, kind=kinds.get(one.label, "")) for one in agents]
    agents.sort(key=lambda agent: (len(agent.name), agent.name))
    facts = {
        "fleet": f"{len(plan.agents)} agents, {len(plan.edges)} edges, all on one machine",
        "broker": heard.broker,
        "first round after": "-" if first is None else f"{first:.1f} s",
        "whole demo": f"{finish.seconds:.1f} s",
        "slow on purpose": plan.slow or "nobody",
        "killed with SIGKILL": heard.killed or "nobody",
        **{agent.name: agent.note for agent in plan.agents},
    }
    edges = {edge: heard.names.get(edge, edge) for edge in run.edges}
    return replace(run, agents=tuple(agents), edges=edges, facts={**run.facts, **facts})


def read_inside(folders: Mapping[str, Path], run: str) -> dict[str, Columns]:
    """Return opinions, beliefs and indices that the devices of a run knew and never sent.

    Only the owner of a device can read its directory; in a demo one person owns them all.

    Args:
        folders: Data directories by agent id.
        run: Whose slots are wanted.
    """
    found: dict[str, Columns] = {name: {} for name in ("opinion", "belief", "index")}
    for agent, folder in folders.items():
        try:
            slots = read_slots(folder, run=run, last=KEPT_SLOTS)
        except PeerStoreError as error:
            _log.info("%s keeps no slots: %s", folder, error)
            continue
        for slot in slots:
            for name, columns in found.items():
                value = getattr(slot, name)
                if value is not None:
                    columns.setdefault(agent, []).append((slot.round, float(value)))
    return {name: columns for name, columns in found.items() if columns}
