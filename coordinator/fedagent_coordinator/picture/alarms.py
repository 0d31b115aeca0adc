"""What an operator should see to in a run, and how: for `status --watch` and the page."""

import re
import shlex
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

import msgspec

from fedagent_coordinator.books.queries import Queries
from fedagent_coordinator.errors import StoreDamagedError
from fedagent_coordinator.site.enrolment import members_in
from fedagent_node.site.certificates import CLOCK_S

from .devices import DeviceCard, devices_of
from .status_files import RunStatus

LEAST_FREE = 200 << 20
"""Bytes on the disk of a coordinator below which it is said."""
NEVER_AFTER = 3
"""Orders after which a device that came in time never is said to deliver never."""
LAST_ROUNDS = 200
"""Rounds in which an edge must have failed to be said silent."""
SILENT = "silent"
"""As `core.outcomes` writes it, which imports numpy."""
NTP = "timedatectl set-ntp true"
_BACK_MS = 60_000
_TYPED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Names that can be typed as they are. A device chooses its name: no command is made of others."""
MOST = 50
"""Alarms of one kind."""

Kind = Literal[
    "declining",
    "never_delivering",
    "second_coordinator",
    "disk",
    "clock",
    "silent_edge",
    "edge_trouble",
]


class Alarm(msgspec.Struct, frozen=True):
    """One thing to see to; `subject` is the id of a device or edge, an address or a folder."""

    kind: Kind
    subject: str
    text: str
    hint: str
    name: str = ""
    since: float | None = None  # wall clock, seconds


def alarms(
    reader: Queries,
    status: RunStatus | None,
    now: float,
    *,
    run_id: str | None = None,
    folder: str = "",
) -> list[Alarm]:
    """Return what is to be seen to; `now` is the wall clock, `status` None of one that is down.

    Hints name the data directory as `folder`, from the root if that is empty.
    """
    run = reader.run(run_id)
    devices = devices_of(reader, run)
    return [
        *_coordinator(reader, run.run_id, status, now),
        *_clocks(reader, now),
        *_edges(reader, run.run_id, status),
        *_declining(devices),
        *_never(devices, folder or str(reader.folder.absolute())),
    ]


def _coordinator(
    reader: Queries, run_id: str, status: RunStatus | None, now: float
) -> Iterator[Alarm]:
    """Yield what is wrong where the coordinator is: another one, the disk, the clock."""
    for other in status.others if status is not None else ():
        text = f"another coordinator runs at this site: {other}"
        yield Alarm("second_coordinator", other, text, "stop one of the two, or change its --site")
    with suppress(OSError):
        free = shutil.disk_usage(reader.folder).free
        if free < LEAST_FREE:
            text = f"{free >> 20} MiB are left on the disk of the coordinator"
            hint = "free space: without it no round can be recorded, and the coordinator stops"
            yield Alarm("disk", str(reader.folder), text, hint)
    for row in reader.rounds(run_id, last=1):
        last_ms = max(row.opened_ms, row.closed_ms or 0)
        if last_ms > round(1000 * now) + _BACK_MS:
            text = f"the clock shows an earlier time than when round {row.round} was recorded"
            hint = f"set the clock ({NTP}): certificates and the ledger record its time"
            yield Alarm("clock", run_id, text, hint, since=last_ms / 1000)


def _clocks(reader: Queries, now: float) -> Iterator[Alarm]:
    """Yield members of the site by whose clock certificates would begin or end wrongly."""
    members = []
    with suppress(OSError, sqlite3.Error, StoreDamagedError):  # of another user, or damaged
        members = members_in(reader.folder, now)
    wrong = [one for one in members if abs(one.ahead_s) > CLOCK_S and one.state == "joined"]
    for one in wrong[:MOST]:
        days = abs(one.ahead_s) / 86_400
        way = "ahead of" if one.ahead_s > 0 else "behind"
        who = f"{one.role} {one.name or one.id[:8]}"
        text = f"the clock of {who} is {days:.1f} days {way} the coordinator's"
        hint = f"set it ({NTP}); until then it checks no validity times"
        yield Alarm("clock", one.id, text, hint, one.name, one.asked_s)


def _edges(reader: Queries, run_id: str, status: RunStatus | None) -> Iterator[Alarm]:
    """Yield the edges that are not heard, did not report their newest round, or are in trouble."""
    last, names = reader.last_round(run_id), reader.edges(run_id)
    rows = reader.edge_results(run_id, since=last - LAST_ROUNDS)
    newest = {row.edge_id: row for row in rows}  # in the order of the rounds
    silent = {
        row.edge_id: f"has not reported since round {row.round}"
        for row in newest.values()
        if row.failed == SILENT
    }
    trouble: dict[str, str] = {}
    if status is not None:
        silent |= dict.fromkeys(status.silent, "no longer answers")
        trouble = status.trouble
    for edge, problem in silent.items():
        text = f"edge {names.get(edge) or edge} {problem}"
        hint = "check that it runs and reaches the coordinator: `fedagent doctor` on it"
        yield Alarm("silent_edge", edge, text, hint, names.get(edge, ""))
    for edge, why in trouble.items():
        text = f"edge {names.get(edge) or edge} does not take part in rounds: {why}"
        hint = "fix what its message names; it then takes part again by itself"
        yield Alarm("edge_trouble", edge, text, hint, names.get(edge, ""))


def _declining(devices: list[DeviceCard]) -> Iterator[Alarm]:
    hint = "fix what its message names; `fedagent doctor` on it checks the rest"
    for one in [device for device in devices if device.reason][:MOST]:
        text = f"device {one.name} does not take part: {one.reason}"
        since = None if one.seen_ms is None else one.seen_ms / 1000
        yield Alarm("declining", one.id, text, hint, one.name, since)


def _never(devices: list[DeviceCard], folder: str) -> Iterator[Alarm]:
    never = [one for one in devices if one.ordered >= NEVER_AFTER and not one.in_time]
    for one in never[:MOST]:
        ended = f", last {one.last_status}" if one.last_status else ""
        reason = f" ({one.reason or one.note})" if one.reason or one.note else ""
        often = f"was ordered {one.ordered} times and never delivered in time"
        typed = one.name if _TYPED.fullmatch(one.name) else one.id
        hint = (
            f"`fedagent why {typed} --data-dir {shlex.quote(folder)}` shows how each order ended, "
            "and for how long; a longer rounds.deadline_s gives it time"
        )
        text = f"device {one.name} {often}{ended}{reason}"
        yield Alarm("never_delivering", one.id, text, hint, one.name)
