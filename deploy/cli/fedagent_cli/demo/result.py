"""How a demo ends: the report's files, one screen, one JSON line, one exit code."""

import logging
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shutil import which

from fedagent_cli.errors import INTERRUPTED, DemoError, NoRunError, UnbalancedError
from fedagent_cli.output import credits_text, echo, emit
from fedagent_cli.places import shortest
from fedagent_cli.report.indices import Columns
from fedagent_cli.report.page import write_report
from fedagent_cli.report.run_report import RunReport, read_run_report
from fedagent_coordinator.books.evaluations import PEERS

from .plan import Plan
from .run import DemoSettings, Finish
from .state import DemoState

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
        run = replace(run, inside=_inside(run, finish.state, settings))
        report = write_report(run, data_dir, settings.directory)
    except NoRunError as error:
        if not finish.signal:
            raise DemoError("the coordinator left no run", f"see {data_dir}.log") from error
    result = summary(finish, run, settings=settings, plan=plan, report=report)
    if as_json:
        emit(result)
    else:
        show(result, run, data_dir)
    if finish.signal:
        return INTERRUPTED if finish.signal == 2 else SIGNAL_BASE + finish.signal
    if not result["ledger_balanced"]:
        raise UnbalancedError("the ledger does not balance", f"see {data_dir}")
    if result["rounds_done"] != settings.rounds and not result["conclusion"]:
        raise DemoError(
            f"{result['rounds_done']} of {settings.rounds} rounds done", f"see {data_dir}.log"
        )
    return 0


def summary(
    finish: Finish,
    run: RunReport | None,
    *,
    settings: DemoSettings,
    plan: Plan,
    report: Path | None,
) -> dict[str, object]:
    """Return the demo's result as the last line of ``--json`` has it."""
    first = finish.seconds_to_first_round
    in_time = sum(row.in_time for row in run.rounds) if run else 0
    ordered = sum(row.ordered for row in run.rounds) if run else 0
    return {
        "rounds_done": len(run.rounds) if run else 0,
        "conclusion": str((finish.state.end or {}).get("conclusion", "")),
        "accuracy": run.accuracy if run else None,
        "metrics": run.metrics if run else {},
        **({"opinion": run.opinion, "chosen": _chosen(run)} if run and run.evaluations else {}),
        "ledger_balanced": run.ledger_balanced if run else None,
        "report": str(report) if report else None,
        "seconds_to_first_round": None if first is None else round(first, 3),
        "seconds": round(finish.seconds, 3),
        "agents": len(plan.agents),
        "edges": len(plan.edges),
        "policy": run.policy if run else settings.policy,
        "seed": settings.seed,
        "spent_micro": run.spent_micro if run else 0,
        "ordered": ordered,
        "in_time": in_time,
        "broker": finish.state.broker,
        "killed": plan.victim if _was_killed(finish.state, plan) else None,
        "run": run.run if run else finish.state.run,
        "data_dir": str(settings.directory / "coordinator"),
        "interrupted": bool(finish.signal),
    }


def _chosen(run: RunReport) -> dict[str, float]:
    kinds = dict.fromkeys(agent.kind for agent in run.agents)
    own = {kind: [a.ordered for a in run.agents if a.kind == kind] for kind in kinds}
    return {kind: round(sum(times) / len(times), 2) for kind, times in own.items()}


def show(result: dict[str, object], run: RunReport | None, data_dir: Path) -> None:
    """Print one screen of results, and what to do next."""
    from rich.console import Console  # noqa: PLC0415 - the view has loaded rich already
    from rich.panel import Panel  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    grid = Table.grid(padding=(0, 3))
    grid.add_column(style="dim")
    grid.add_column()
    label, good = ("accuracy", "not measured") if run is None else run.metric_line
    lines = {
        "rounds": run.progress if run else f"{result['rounds_done']} of ?",
        label: good,
        **_evaluated_lines(run),
        "updates in time": f"{result['in_time']} of {result['ordered']} ordered",
        "spent": f"{credits_text(run.spent_micro if run else 0)} credits",
        **({"ended": str(result["conclusion"])} if result["conclusion"] else {}),
        "ledger": LEDGER[result["ledger_balanced"]],
        "policy": str(result["policy"]),
        "broker": str(result["broker"]),
        "time": f"{result['seconds']} s, first round after {result['seconds_to_first_round']} s",
        "report": str(result["report"] or "none"),
    }
    for name, text in lines.items():
        grid.add_row(name, text)
    ended = "fedagent demo, ended early" if result["interrupted"] else "fedagent demo"
    width = None if sys.stdout.isatty() else 160
    console = Console(highlight=False, width=width)
    console.print(Panel(grid, title=ended, title_align="left", border_style="blue", padding=1))
    program = _program()
    if run is not None:
        looks = ["status --rounds 20", *(["opinions"] if run.evaluations else [])]
        if run.agents:  # who came in time least has most to be explained
            looks.append(f"why {min(run.agents, key=lambda agent: agent.in_time).name}")
        echo("Look closer:")
        folder = shlex.quote(shortest(data_dir))
        for look in looks:
            echo(f"  {program} {look} --data-dir {folder}")
    echo("Next, the same with devices of your own, in three terminals:")
    for role in ("coordinator start --recipe digits", "edge start", "start --stream digits"):
        echo(f"  {program} {role}")


def _evaluated_lines(run: RunReport | None) -> dict[str, str]:
    if run is None or not run.evaluations:
        return {}
    chosen = ", ".join(f"{times:g} x {kind}" for kind, times in _chosen(run).items())
    opinion = {} if run.opinion is None else {"mean opinion": f"{run.opinion:.3f}"}
    return {**opinion, "chosen, each": chosen}


def _program() -> str:
    called = Path(sys.argv[0])
    return "fedagent" if which("fedagent") or called.name != "fedagent" else os.path.relpath(called)


def _named(run: RunReport, plan: Plan, finish: Finish) -> RunReport:
    state = finish.state
    notes = {agent.name: agent.note for agent in state.agents.values()}
    kinds = {agent.name: agent.kind for agent in plan.agents}
    agents = [replace(agent, label=state.agent_name(agent.agent)) for agent in run.agents]
    agents = [replace(agent, kind=kinds.get(agent.label, "")) for agent in agents]
    agents.sort(key=lambda agent: (len(agent.name), agent.name))
    first = finish.seconds_to_first_round
    facts = {
        "fleet": f"{len(plan.agents)} agents, {len(plan.edges)} edges, all on one machine",
        "broker": state.broker,
        "first round after": "-" if first is None else f"{first:.1f} s",
        "whole demo": f"{finish.seconds:.1f} s",
        "slow on purpose": plan.slow or "nobody",
        "killed with SIGKILL": plan.victim if _was_killed(state, plan) else "nobody",
        **notes,
    }
    edges = {edge: state.edge_name(edge) for edge in run.edges}
    return replace(run, agents=tuple(agents), edges=edges, facts={**run.facts, **facts})


def _inside(run: RunReport, state: DemoState, settings: DemoSettings) -> dict[str, Columns]:
    if not any(row.mode == PEERS for row in run.evaluations):
        return {}
    ids = {agent.id: settings.directory / agent.name for agent in state.agents.values()}
    return read_inside(ids, run.run)


def read_inside(folders: Mapping[str, Path], run: str) -> dict[str, Columns]:
    """Return opinions, beliefs and indices that the devices of a run knew and never sent.

    Only the owner of a device can read its directory; in a demo one person owns them all.

    Args:
        folders: Data directories by agent id.
        run: Whose slots are wanted.
    """
    from fedagent_agent.errors import PeerStoreError  # noqa: PLC0415 - for few demos
    from fedagent_agent.peers.store import KEPT_SLOTS, read_slots  # noqa: PLC0415

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


def _was_killed(state: DemoState, plan: Plan) -> bool:
    return bool(plan.victim) and state.agents[plan.victim].state == "killed"
