"""A run as it stands: in one record for programs, and in lines for people."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedagent_cli.output import echo, rounds_text
from fedagent_coordinator.books.queries import Queries
from fedagent_coordinator.books.rows import RoundRow, RunRow
from fedagent_coordinator.picture.alarms import Alarm, alarms
from fedagent_coordinator.picture.devices import DeviceCard, devices_of
from fedagent_coordinator.picture.status_files import RunStatus
from fedagent_coordinator.picture.summary import RunSummary, summarize
from fedagent_node.data_dir import holder_of
from fedagent_protocol.errors import credits_text
from fedagent_task.recipe.spec import Recipe

from .runs import epsilon_of, epsilon_text, is_running, metric_line, recipe_of

WAITING = {
    "edges": "for edges",
    "agents": "for agents",
    "declined": "the agents have just declined",
    "features": "for agents to report the features that the policy needs",
    "prices": "every agent asks more than an edge may spend",
    "budget": "every agent that is heard asks more than the run has left (budget.total)",
    "rents": "for an edge whose rent can be paid",
    "statistics": "for the devices' sample statistics (data.standardize)",
}
"""Words for the reasons of docs/coordinator.md, A round."""
ENDS = {"rounds": "all rounds are done"}
LAST = 200
"""Rounds that are read at a time where a run is watched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A run at one moment."""

    summary: RunSummary
    recipe: Recipe | None
    agents: list[DeviceCard]
    pid: int | None  # of the coordinator that runs there
    running: bool | None  # None if this user cannot know
    now: RunStatus | None  # what it sees of this run
    rounds: Sequence[RoundRow] = ()  # the newest, where the run is watched
    alarms: Sequence[Alarm] = ()

    def record(self) -> dict[str, Any]:
        """Return everything as plain JSON values; None is what only a running coordinator knows."""
        now, left = self.now, self.summary.next_ms / 1000 - time.time()
        said = {
            key: [
                {"agent": one.id, "name": one.name, "reason": str(getattr(one, field))}
                for one in self.agents
                if getattr(one, field)
            ]
            for key, field in (("declining", "reason"), ("warnings", "note"))
        }
        return {
            **self.summary.record(),
            **said,
            **{
                key: getattr(now, key, None) for key in ("edges_live", "waiting", "found", "wanted")
            },
            "edges": len(self.summary.edges),
            "running": self.running,
            "agents": len(self.agents),
            "agents_live": sum(bool(one.online) for one in self.agents) if now else None,
            "next_round_s": round(left, 1) if left > 0 else None,
            "other_coordinators": list(now.others) if now else [],
            "epsilon": epsilon_of(self.recipe, self._released),
        }

    @property
    def _released(self) -> int:
        return max((one.released for one in self.agents), default=0)

    def lines(self) -> Iterator[str]:
        """Yield what people read."""
        run, now, record = self.summary, self.now, self.record()
        state = f"coordinator is running (process {self.pid})"
        if run.ended_ms:
            state = f"ended: {run.conclusion or ENDS.get(run.reason, run.reason)}"
        elif self.running is None:
            state = "only its owner can see whether the coordinator is running"
        elif self.pid is None:
            state = "coordinator is not running"
        yield f"run       {run.run[:12]}  {run.recipe}, policy {run.policy}"
        yield f"state     {state}"
        if now is not None and now.waiting:
            what = WAITING.get(now.waiting, now.waiting)
            count = f"{now.found} of {now.wanted}" if now.wanted else now.detail
            yield f"waiting   {what}{count and ': ' + count}"
        for other in record["other_coordinators"]:
            hint = "stop one, or change its --site"
            yield f"beside    another coordinator of this site, {other}: {hint}"
        if run.origin:
            yield f"began     from model {run.origin[:12]}"
        rounds = rounds_text(run.rounds_done, run.rounds_wanted)
        yield f"rounds    {rounds}, {run.updates_used} updates used"
        if record["next_round_s"] is not None:
            yield f"next      round in {record['next_round_s']:.0f} s"
        label, good = metric_line(run.measures, run.metrics)
        yield f"{label:10}{good}"
        rents = f"; {credits_text(run.rent_micro)} of it for rents" if run.rent_micro else ""
        spent = f"{credits_text(run.spent_micro)} credits"
        yield f"spent     {spent}, {credits_text(run.reserved_micro)} reserved{rents}"
        for what in ("agents", "edges"):
            here = f"{record[f'{what}_live']} live of " if now is not None else ""
            yield f"{what:10}{here}{record[what]} seen"
        if spent := epsilon_text(self.recipe, self._released):
            yield f"privacy   a device has spent at most epsilon {spent}"


def look_at(reader: Queries, run: RunRow, *, watched: bool = False, folder: str = "") -> Look:
    """Return how a run stands; who watches gets rounds and alarms too.

    Hints of alarms name the data directory as `folder`, from the root if that is empty.
    """
    pid, running = holder_of(reader.folder), is_running(reader.folder)
    now = RunStatus.read(reader.folder)
    if pid is None or (now is not None and now.run != run.run_id):
        now = None
    wall = time.time()
    return Look(
        summary=summarize(reader, run).waiting_as(now, wall),
        recipe=recipe_of(run),
        agents=devices_of(reader, run, running=running),
        pid=pid,
        running=running,
        now=now,
        rounds=reader.rounds(run.run_id, last=LAST) if watched else (),
        alarms=alarms(reader, now, wall, run_id=run.run_id, folder=folder) if watched else (),
    )


def print_reasons(devices: Sequence[DeviceCard], *, most: int | None = None) -> None:
    """Say who does not take part, or warns, and why, a line each."""
    names = names_of(devices)
    for what, field in (("declines", "reason"), ("warns", "note")):
        both = zip(names, devices, strict=True)
        given = [f"{name}: {why}" for name, one in both if (why := getattr(one, field))]
        for line in given[:most]:
            echo(f"{what:<9} {line}")
        if most is not None and len(given) > most:
            echo(f"          and {len(given) - most} more: `fedagent devices`")


def names_of(devices: Sequence[DeviceCard]) -> list[str]:
    """Return what each is called, with its id where two have one name."""
    count = Counter(device.name for device in devices)
    return [one.name if count[one.name] == 1 else f"{one.name} ({one.id[:8]})" for one in devices]
