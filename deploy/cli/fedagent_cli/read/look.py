"""A run as it stands: in one record for programs, and in lines for people."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedagent_cli.output import echo, rounds_text
from fedagent_coordinator.books.queries import Queries
from fedagent_coordinator.books.rows import RunRow
from fedagent_coordinator.picture.devices import DeviceCard, devices_of
from fedagent_coordinator.picture.status_files import RunStatus
from fedagent_coordinator.picture.summary import RunSummary, summarize
from fedagent_node.data_dir import holder_of
from fedagent_protocol.errors import credits_text

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A run at one moment."""

    summary: RunSummary
    run: RunRow
    agents: list[DeviceCard]
    folder: Path
    pid: int | None  # of the coordinator that runs there
    now: RunStatus | None  # what it sees of this run

    def record(self) -> dict[str, Any]:
        """Return everything as plain JSON values; None is what only a running coordinator knows."""
        now, left = self.now, self.summary.next_ms / 1000 - time.time()
        told = ("edges_live", "waiting", "found", "wanted")
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
            **{key: getattr(now, key, None) for key in told},
            "edges": len(self.summary.edges),
            "running": is_running(self.folder),
            "agents": len(self.agents),
            "agents_live": sum(bool(one.online) for one in self.agents) if now else None,
            "next_round_s": round(left, 1) if left > 0 else None,
            "other_coordinators": list(now.others) if now else [],
            "epsilon": epsilon_of(recipe_of(self.run), self._released),
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
        elif record["running"] is None:
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
        if spent := epsilon_text(recipe_of(self.run), self._released):
            yield f"privacy   a device has spent at most epsilon {spent}"


def look_at(reader: Queries, run: RunRow) -> Look:
    """Return how a run stands."""
    pid, now = holder_of(reader.folder), RunStatus.read(reader.folder)
    if pid is None or (now is not None and now.run != run.run_id):
        now = None
    return Look(
        summary=summarize(reader, run).waiting_as(now, time.time()),
        run=run,
        agents=devices_of(reader, run, running=is_running(reader.folder)),
        folder=reader.folder,
        pid=pid,
        now=now,
    )


def print_reasons(devices: Sequence[DeviceCard], *, most: int | None = None) -> None:
    """Say who does not take part, or warns, and why, a line each."""
    names = names_of(devices)
    for what, reasons in (
        ("declines", [one.reason for one in devices]),
        ("warns", [one.note for one in devices]),
    ):
        given = [(name, why) for name, why in zip(names, reasons, strict=True) if why]
        for name, why in given[:most]:
            echo(f"{what:<9} {name}: {why}")
        if most is not None and len(given) > most:
            echo(f"          and {len(given) - most} more: `fedagent devices`")


def names_of(devices: Sequence[DeviceCard]) -> list[str]:
    """Return what each is called, with its id where two have one name."""
    count = Counter(device.name for device in devices)
    return [one.name if count[one.name] == 1 else f"{one.name} ({one.id[:8]})" for one in devices]
