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


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
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
        *_second(status),
        *_disk(reader),
        *_clock(reader, run.run_id, now),
        *_clocks(reader, now),
        *_edges(reader, run.run_id, status),
        *_declining(devices),
        *_never(devices, folder or str(reader.folder.absolute())),
    ]


def _second(status: RunStatus | None) -> Iterator[Alarm]:
    for other in status.others if status is not None else ():
        yield Alarm(
            kind="second_coordinator",
            subject=other,
            text=f"another coordinator runs at this site: {other}",
            hint="stop one of the two, or change its --site",
        )


def _disk(reader: Queries) -> Iterator[Alarm]:
    with suppress(OSError):
        free = shutil.disk_usage(reader.folder).free
        if free < LEAST_FREE:
            yield Alarm(
                kind="disk",
                subject=str(reader.folder),
                text=f"{free >> 20} MiB are left on the disk of the coordinator",
                hint="free space: without it no round can be recorded, and the coordinator stops",
            )


def _clock(reader: Queries, run_id: str, now: float) -> Iterator[Alarm]:
    for row in reader.rounds(run_id, last=1):
        last_ms = max(row.opened_ms, row.closed_ms or 0)
        if last_ms > round(1000 * now) + _BACK_MS:
            yield Alarm(
                kind="clock",
                subject=run_id,
                text=f"the clock shows an earlier time than when round {row.round} was recorded",
                hint="set the clock (timedatectl set-ntp true): certificates and the ledger "
                "record its time",
                since=last_ms / 1000,
            )


def _clocks(reader: Queries, now: float) -> Iterator[Alarm]:
    """Yield members of the site by whose clock certificates would begin or end wrongly."""
    members = []
    with suppress(OSError, sqlite3.Error, StoreDamagedError):  # of another user, or damaged
        members = members_in(reader.folder, now)
    wrong = [one for one in members if abs(one.ahead_s) > CLOCK_S and one.state == "joined"]
    for one in wrong[:MOST]:
        way = "ahead of" if one.ahead_s > 0 else "behind"
        yield Alarm(
            kind="clock",
            subject=one.id,
            name=one.name,
            text=f"the clock of {one.role} {one.name or one.id[:8]} is "
            f"{abs(one.ahead_s) / 86_400:.1f} days {way} the coordinator's",
            hint="set it (timedatectl set-ntp true); until then it checks no validity times",
            since=one.asked_s,
        )


def _edges(reader: Queries, run_id: str, status: RunStatus | None) -> Iterator[Alarm]:
    """Yield the edges that are not heard, did not report their newest round, or are in trouble."""
    last, names = reader.last_round(run_id), reader.edges(run_id)
    rows = reader.edge_results(run_id, since=last - LAST_ROUNDS)
    newest = {row.edge_id: row for row in rows}  # in the order of the rounds
    said = {
        row.edge_id: f"has not reported since round {row.round}"
        for row in newest.values()
        if row.failed == SILENT
    }
    for edge in status.silent if status is not None else ():
        said[edge] = "no longer answers"
    for edge, problem in said.items():
        yield Alarm(
            kind="silent_edge",
            subject=edge,
            name=names.get(edge, ""),
            text=f"edge {names.get(edge) or edge} {problem}",
            hint="check that it runs and reaches the coordinator: `fedagent doctor` on it",
        )
    for edge, why in (status.trouble if status is not None else {}).items():
        yield Alarm(
            kind="edge_trouble",
            subject=edge,
            name=names.get(edge, ""),
            text=f"edge {names.get(edge) or edge} does not take part in rounds: {why}",
            hint="fix what its message names; it then takes part again by itself",
        )


def _declining(devices: list[DeviceCard]) -> Iterator[Alarm]:
    for one in [device for device in devices if device.reason][:MOST]:
        yield Alarm(
            kind="declining",
            subject=one.id,
            name=one.name,
            text=f"device {one.name} does not take part: {one.reason}",
            hint="fix what its message names; `fedagent doctor` on it checks the rest",
            since=None if one.seen_ms is None else one.seen_ms / 1000,
        )


def _never(devices: list[DeviceCard], folder: str) -> Iterator[Alarm]:
    never = [one for one in devices if one.ordered >= NEVER_AFTER and not one.in_time]
    for one in never[:MOST]:
        ended = f", last {one.last_status}" if one.last_status else ""
        reason = f" ({one.reason or one.note})" if one.reason or one.note else ""
        yield Alarm(
            kind="never_delivering",
            subject=one.id,
            name=one.name,
            text=f"device {one.name} was ordered {one.ordered} times and never delivered in time"
            f"{ended}{reason}",
            hint=f"`fedagent why {_typed(one)} --data-dir {shlex.quote(folder)}` shows how each "
            "order ended, and for how long; a longer rounds.deadline_s gives it time",
        )


def _typed(device: DeviceCard) -> str:
    return device.name if _TYPED.fullmatch(device.name) else device.id
