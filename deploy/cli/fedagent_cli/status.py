"""`fedagent status`: a run in a few lines."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import options, places
from .devices import SeenDevice, print_reasons, seen_devices
from .output import credits_text, echo, emit, rounds_text

if TYPE_CHECKING:
    from fedagent_coordinator.reader import Reader, Run
    from fedagent_coordinator.run_status import RunStatus

WAITING = {
    "edges": "for edges",
    "agents": "for agents",
    "declined": "the agents have just declined",
    "features": "for agents to measure what the policy needs",
    "prices": "every agent asks more than an edge may spend",
    "rents": "for an edge whose rent can be paid",
    "statistics": "for the devices to add up their samples (data.standardize)",
}
"""Words for the reasons of docs/coordinator.md, A round."""
MAX_NAMED = 5
"""Agents that decline, a line each."""


def status(
    *,
    data_dir: options.CoordinatorData = None,
    run: options.RunId = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a run in a few lines, while the coordinator runs or afterwards."""
    from .figures import metric_line  # noqa: PLC0415 - heavy imports
    from .runs import holder, open_run, run_status_of  # noqa: PLC0415

    folder = (data_dir if data_dir is not None else places.data_dir("coordinator")).expanduser()
    with open_run(folder, run) as (reader, chosen):
        agents = seen_devices(folder, reader, chosen)
        measures = reader.measures(chosen.run_id)
        metrics = reader.newest_metrics(chosen.run_id)
        stored = _stored(reader, chosen)
    pid = holder(folder)
    now = run_status_of(folder, chosen) if pid is not None else None
    record = {
        **stored,
        **_live(folder, agents, now),
        "accuracy": metrics.get("accuracy"),
        "primary_metric": measures[0].key if measures else None,
        "metrics": metrics,
    }
    if as_json:
        emit(record)
        return
    _print_status(chosen, record, now=now, pid=pid, good=metric_line(measures, metrics))
    print_reasons(agents, most=MAX_NAMED)


def _stored(reader: "Reader", chosen: "Run") -> dict[str, object]:
    """Return what the books say of a run."""
    from fedagent_coordinator.results import conclusion  # noqa: PLC0415 - heavy imports

    from .runs import recipe_of  # noqa: PLC0415

    recipe = recipe_of(chosen)
    done = reader.progress(chosen.run_id).rounds_done
    newest = next(iter(reader.rounds(chosen.run_id, last=1)), None)
    balance = reader.balance(chosen.run_id)
    rents = sum(reader.rents(chosen.run_id).values())
    final = reader.last_global(chosen.run_id)
    ended = conclusion(
        chosen.end_reason or "",
        placed=recipe is not None and recipe.placement.name != "coordinator",
        rent_micro=rents,
        rounds_done=done,
        model=final.digest if final else "",
    )
    return {
        "run": chosen.run_id,
        "recipe": recipe.name if recipe else chosen.recipe_digest,
        "policy": newest.policy if newest else recipe.policy.name if recipe else None,
        "ended": chosen.ended_ms is not None,
        "end_reason": chosen.end_reason,
        "conclusion": ended,
        "rounds_done": done,
        "rounds": reader.rounds_of(chosen),
        "origin": reader.origin(chosen.run_id) or None,
        "spent": balance.settled_micro,
        "rents": rents,
        "reserved": balance.reserved_micro,
        "edges": len(reader.edges(chosen.run_id)),
        "updates_used": reader.updates_used(chosen.run_id),
    }


def _live(folder: Path, agents: Sequence[SeenDevice], now: "RunStatus | None") -> dict[str, object]:
    """Return what a coordinator that runs sees; None where none does."""
    from .runs import is_running, next_round_s  # noqa: PLC0415 - heavy imports

    def reasons(field: str) -> list[dict[str, str]]:
        said = [(one, str(getattr(one, field))) for one in agents if getattr(one, field)]
        return [{"agent": one.agent, "name": one.name, "reason": why} for one, why in said]

    return {
        "running": is_running(folder),
        "agents": len(agents),
        "agents_live": sum(bool(one.online) for one in agents) if now else None,
        "declining": reasons("reason"),
        "warnings": reasons("note"),
        "edges_live": now.edges_live if now else None,
        "waiting": now.waiting if now else None,
        "found": now.found if now else None,
        "wanted": now.wanted if now else None,
        "next_round_s": next_round_s(now) if now else None,
        "other_coordinators": list(now.others) if now else [],
    }


def _print_status(
    chosen: "Run",
    record: Mapping[str, Any],
    *,
    now: "RunStatus | None",
    pid: int | None,
    good: tuple[str, str],
) -> None:
    """Say in a few lines what `status` found; `good` says how good the model is."""
    process = f"coordinator runs (process {pid})" if pid else "coordinator does not run"
    if record["running"] is None:
        process = "only its owner can see whether the coordinator runs"
    ended = f"ended: {record['conclusion'] or chosen.end_reason}"
    echo(f"run       {chosen.run_id[:12]}  {record['recipe']}, policy {record['policy']}")
    echo(f"state     {ended if chosen.ended_ms else process}")
    if now is not None and now.waiting:
        what = WAITING.get(now.waiting, now.waiting)
        count = f"{now.found} of {now.wanted}" if now.wanted else now.detail
        echo(f"waiting   {what}{count and ': ' + count}")
    for other in now.others if now is not None else ():
        echo(f"beside    another coordinator of this site, {other}: stop one, or change its --site")
    if record["origin"]:
        echo(f"began     from model {str(record['origin'])[:12]}")
    rounds = rounds_text(record["rounds_done"], record["rounds"])
    echo(f"rounds    {rounds}, {record['updates_used']} updates used")
    if record["next_round_s"] is not None:
        echo(f"next      round in {record['next_round_s']:.0f} s")
    echo(f"{good[0]:10}{good[1]}")
    echo(
        f"spent     {credits_text(record['spent'])} credits, "
        f"{credits_text(record['reserved'])} reserved"
        + (f"; {credits_text(record['rents'])} of it rents" if record["rents"] else "")
    )
    live = f"{record['agents_live']} live of " if now is not None else ""
    echo(f"agents    {live}{record['agents']} seen")
    live = f"{now.edges_live} live of " if now is not None else ""
    echo(f"edges     {live}{record['edges']} seen")
