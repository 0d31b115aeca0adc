"""`fedagent status`: a run in a few lines."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from . import options, places
from .devices import say_reasons, seen_devices
from .output import credits_text, emit, rounds_text, say

if TYPE_CHECKING:
    from fedagent_coordinator.audit import Balance
    from fedagent_coordinator.reader import Run
    from fedagent_coordinator.situation import Situation

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
MOST_NAMED = 5
"""Agents that decline, a line each."""


def status(
    *,
    data_dir: options.CoordinatorData = None,
    run: options.RunId = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a run in a few lines, while the coordinator runs or afterwards."""
    from fedagent_coordinator.results import conclusion  # noqa: PLC0415 - heavy imports

    from .figures import told  # noqa: PLC0415
    from .runs import (  # noqa: PLC0415
        holder,
        is_running,
        next_round_s,
        open_run,
        recipe_of,
        situation_of,
    )

    folder = (data_dir if data_dir is not None else places.data_dir("coordinator")).expanduser()
    with open_run(folder, run) as (reader, chosen):
        recipe = recipe_of(chosen)
        done = reader.progress(chosen.run_id).rounds_done
        newest = next(iter(reader.rounds(chosen.run_id, last=1)), None)
        balance = reader.balance(chosen.run_id)
        edges = reader.edges(chosen.run_id)
        used = reader.updates_used(chosen.run_id)
        agents = seen_devices(folder, reader, chosen)
        rents = sum(reader.rents(chosen.run_id).values())
        final = reader.last_global(chosen.run_id)
        wanted = reader.rounds_of(chosen)
        origin = reader.origin(chosen.run_id)
        measures = reader.measures(chosen.run_id)
        metrics = reader.newest_metrics(chosen.run_id)
    ended = conclusion(
        chosen.end_reason or "",
        placed=recipe is not None and recipe.placement.name != "coordinator",
        rent_micro=rents,
        rounds_done=done,
        model=final.digest if final else "",
    )
    pid = holder(folder)
    now = situation_of(folder, chosen) if pid is not None else None
    record = {
        "run": chosen.run_id,
        "recipe": recipe.name if recipe else chosen.recipe_digest,
        "policy": newest.policy if newest else recipe.policy.name if recipe else None,
        "running": is_running(folder),
        "ended": chosen.ended_ms is not None,
        "end_reason": chosen.end_reason,
        "conclusion": ended,
        "rounds_done": done,
        "rounds": wanted,
        "origin": origin or None,
        "accuracy": metrics.get("accuracy"),
        "judged_by": measures[0].key if measures else None,
        "metrics": metrics,
        "spent": balance.settled_micro,
        "rents": rents,
        "reserved": balance.reserved_micro,
        "agents": len(agents),
        "agents_live": sum(bool(one.online) for one in agents) if now else None,
        "declining": [
            {"agent": one.agent, "name": one.name, "why": one.why} for one in agents if one.why
        ],
        "warnings": [
            {"agent": one.agent, "name": one.name, "why": one.note} for one in agents if one.note
        ],
        "edges": len(edges),
        "edges_live": now.edges_live if now else None,
        "waiting": now.waiting if now else None,
        "found": now.found if now else None,
        "wanted": now.wanted if now else None,
        "next_round_s": next_round_s(now) if now else None,
        "updates_used": used,
        "other_coordinators": list(now.others) if now else [],
    }
    if as_json:
        emit(record)
        return
    good = told(measures, metrics)
    _say_status(chosen, record, balance, rents=rents, now=now, pid=pid, good=good)
    say_reasons(agents, most=MOST_NAMED)


def _say_status(
    chosen: "Run",
    record: Mapping[str, object],
    balance: "Balance",
    *,
    rents: int,
    now: "Situation | None",
    pid: int | None,
    good: tuple[str, str],
) -> None:
    """Say in a few lines what `status` found; `good` says how good the model is."""
    process = f"coordinator runs (process {pid})" if pid else "coordinator does not run"
    if record["running"] is None:
        process = "only its owner can see whether the coordinator runs"
    ended = f"ended: {record['conclusion'] or chosen.end_reason}"
    say(f"run       {chosen.run_id[:12]}  {record['recipe']}, policy {record['policy']}")
    say(f"state     {ended if chosen.ended_ms else process}")
    if now is not None and now.waiting:
        what = WAITING.get(now.waiting, now.waiting)
        count = f"{now.found} of {now.wanted}" if now.wanted else now.detail
        say(f"waiting   {what}{count and ': ' + count}")
    for other in now.others if now is not None else ():
        say(f"beside    another coordinator of this site, {other}: stop one, or change its --site")
    if record["origin"]:
        say(f"began     from model {str(record['origin'])[:12]}")
    rounds = rounds_text(record["rounds_done"], record["rounds"])
    say(f"rounds    {rounds}, {record['updates_used']} updates used")
    if record["next_round_s"] is not None:
        say(f"next      round in {record['next_round_s']:.0f} s")
    say(f"{good[0]:10}{good[1]}")
    say(
        f"spent     {credits_text(balance.settled_micro)} credits, "
        f"{credits_text(balance.reserved_micro)} reserved"
        + (f"; {credits_text(rents)} of it rents" if rents else "")
    )
    live = f"{record['agents_live']} live of " if now is not None else ""
    say(f"agents    {live}{record['agents']} seen")
    live = f"{now.edges_live} live of " if now is not None else ""
    say(f"edges     {live}{record['edges']} seen")
