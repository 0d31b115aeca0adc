"""`fedagent devices`: every agent of a run, where it is, and why one does not take part."""

import sqlite3
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from fedagent_cli import options, places
from fedagent_cli.errors import NoRunError
from fedagent_cli.output import credits_text, echo, emit, table
from fedagent_cli.read.runs import epsilon_of, epsilon_text, is_running, open_run, recipe_of
from fedagent_coordinator.books.reader import Reader
from fedagent_coordinator.books.rows import DeviceRow, RunRow
from fedagent_coordinator.enrolment import DATABASE, Enrolment, Member, OpenInvitation
from fedagent_coordinator.errors import UnreadableDatabaseError
from fedagent_coordinator.picture.status_files import DEVICES_FILE, Device, read_devices

MINUTE, HOUR, DAY = 60, 3600, 86_400
_TRUSTED = 0.995
NO_CLIENT = -1
"""Index of one that no round could have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDevice(DeviceRow):
    """One agent of a run as a person sees it."""

    online: bool | None = None  # it has a session with an edge; None if unknown
    last_seen_ms: int | None = None  # wall clock, now for one that is online; None if unknown
    edges: tuple[str, ...] = ()  # ids of the edges where it has a session
    address: str = ""
    software: str = ""
    reason: str = ""  # why it does not take part; empty if it does
    reason_by: str = ""  # the edge whose word that is; empty where it declined an order
    enrolment: str = ""  # what it is to the site; empty where there are no certificates
    epsilon: float | None = None  # most that its updates cost; None: nothing is counted here
    note: str = ""  # what is to be known of its samples, though it takes part

    def record(self) -> dict[str, object]:
        """Return it for programs."""
        return {**asdict(self), "client": None if self.client == NO_CLIENT else self.client}


def judged_devices(reader: Reader, run_id: str) -> list[DeviceRow]:
    """Return the agents that orders went to, with what their claims and updates came to."""
    gaps, trust = reader.claim_gaps(run_id), reader.trust(run_id)
    return [
        replace(row, claim_gap=gaps.get(row.client), trust=trust.get(row.client))
        for row in reader.devices(run_id)
    ]


def seen_devices(reader: Reader, run: RunRow) -> list[SeenDevice]:
    """Return every agent of a run, and in the newest one also those that edges refuse."""
    folder = reader.folder
    known, running = read_devices(folder), is_running(folder)
    heard: dict[str, Device] = dict(known.devices) if known is not None else {}
    # Whoever was online when the coordinator was killed was so at least until then.
    until_ms = round(1000 * (folder / DEVICES_FILE).stat().st_mtime) if heard else 0
    edges = reader.edges(run.run_id)
    found = [
        _seen(row, device, running, until_ms, edges)
        for row in judged_devices(reader, run.run_id)
        for device in (heard.pop(row.agent, None),)
    ]
    recipe = recipe_of(run)
    found = [replace(one, epsilon=epsilon_of(recipe, one.released)) for one in found]
    if known is not None and known.run == run.run_id:
        others = [(DeviceRow(client=NO_CLIENT, agent=one), heard[one]) for one in heard]
        found += [_seen(row, device, running, until_ms, edges) for row, device in others]
    return found


def _seen(
    row: DeviceRow,
    device: Device | None,
    running: bool | None,
    until_ms: int,
    edges: Mapping[str, str],
) -> SeenDevice:
    why = row.last_reason if row.last_status == "declined" else ""
    note = row.last_reason if row.last_status in {"arrived", "late"} else ""
    if device is None:
        return SeenDevice(**asdict(row), reason=why, note=note)
    online = bool(running and device.edges)
    last_ms = max(device.seen_ms, until_ms) if device.edges else device.seen_ms
    return SeenDevice(
        **asdict(row),
        online=online if running is not None else None,
        last_seen_ms=round(1000 * time.time()) if online else last_ms,
        edges=tuple(device.edges) if online else (),
        address=device.word.address,
        software=device.word.software,
        reason=device.word.reason or why,
        reason_by=(edges.get(device.by) or device.by[:8]) if device.word.reason else "",
        note=note,
    )


@click.command(
    epilog=options.examples(
        "fedagent devices", "fedagent devices --run 3f2a", "fedagent devices list --json"
    )
)
@options.coordinator_data
@options.run_id
@options.as_json
def devices(*, data_dir: Path | None, run: str | None, as_json: bool) -> None:
    """List every agent of the run and of the site, and who waits to be accepted.

    For each: whether it is online, what it did and what it was paid.
    """
    members, invited = _site(data_dir)
    try:
        with open_run(data_dir, run) as (reader, chosen):
            found = _enrolled(seen_devices(reader, chosen), members)
            edges, run_id = reader.edges(chosen.run_id), chosen.run_id
            recipe = recipe_of(chosen)
    except NoRunError:
        if not (members or invited) or run is not None:
            raise
        found, edges, run_id, recipe = _enrolled([], members), {}, "", None
    others = [one for one in members if one.role == "edge"]
    waiting = [one for one in members if one.state == "pending"]
    if as_json:
        emit(
            {
                "run": run_id,
                "devices": [device.record() for device in found],
                "edges": [
                    {"id": one.id, "name": one.name, "enrolment": _state(one)} for one in others
                ],
                "pending": [asdict(one) for one in waiting],
                "invited": [
                    {"name": one.name, "role": one.role, "expires": round(one.expires_s)}
                    for one in invited
                ],
            }
        )
        return
    table(
        (
            *("name", "last seen", "edge", "address", "software"),
            *("ordered", "in time", "used", "paid", "gap", "trust", "epsilon", "site", "last"),
        ),
        (
            _cells(name, device, edges, epsilon_text(recipe, device.released) or "-")
            for name, device in zip(_names(found), found, strict=True)
        ),
        unless=dict.fromkeys(
            ("edge", "address", "software", "gap", "trust", "epsilon", "site"), "-"
        ),
    )
    for one in others:
        echo(f"edge      {one.name or one.id[:12]}: {_state(one)}")
    print_reasons(found)
    for one in waiting:
        echo(f"waiting   code {one.code}: {one.role} {one.name or one.id[:12]} at {one.address}")
    if waiting:
        echo("compare the code with the device's, then `fedagent devices accept CODE`")
    for new in invited:
        echo(f"invited   {new.name} ({new.role}), until {moment(new.expires_s)}")


def moment(seconds: float) -> str:
    """Return a time of the wall clock for people."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _site(data_dir: Path | None) -> tuple[list[Member], list[OpenInvitation]]:
    """Return members and invitations of the site; none where there is none that we may read."""
    folder = (data_dir if data_dir is not None else places.data_dir("coordinator")).expanduser()
    try:
        if not (folder / DATABASE).exists():
            return [], []
        with Enrolment(folder) as found:
            now = time.time()
            return found.members(now=now), found.invitations(now=now)
    except (OSError, sqlite3.Error, UnreadableDatabaseError):
        return [], []


def _enrolled(found: list[SeenDevice], members: Sequence[Member]) -> list[SeenDevice]:
    """Return the devices with what they are to the site, and those that were in no round yet.

    The site's name for a device counts: it is what `revoke` takes.
    """
    by_id = {one.id: one for one in members if one.role == "agent"}
    known = [
        replace(device, label=one.name, enrolment=_state(one)) if one is not None else device
        for device in found
        for one in (by_id.pop(device.agent, None),)
    ]
    new = [
        SeenDevice(client=NO_CLIENT, agent=one.id, label=one.name, enrolment=_state(one))
        for one in by_id.values()
    ]
    return [*known, *new]


def _state(one: Member) -> str:
    """Say what somebody is to the site."""
    if one.state == "pending":
        return f"waiting, code {one.code}"
    if one.state != "joined" or one.not_after_s is None:
        return one.state
    days = (one.not_after_s - time.time()) / DAY
    return "expired" if days < 0 else f"joined, {days:.0f} days"


def print_reasons(devices: Sequence[SeenDevice], *, most: int | None = None) -> None:
    """Say who does not take part, or warns, and why, a line each."""
    names = _names(devices)
    for what, reasons in (
        ("declines", [d.reason + _says(d.reason_by) for d in devices]),
        ("warns", [d.note for d in devices]),
    ):
        given = [(name, why) for name, why in zip(names, reasons, strict=True) if why]
        for name, why in given[:most]:
            echo(f"{what:<9} {name}: {why}")
        if most is not None and len(given) > most:
            echo(f"          and {len(given) - most} more: `fedagent devices`")


def _says(edge: str) -> str:
    return f" (reported by edge {edge})" if edge else ""


def _names(devices: Sequence[SeenDevice]) -> list[str]:
    count = Counter(device.name for device in devices)
    return [
        one.name if count[one.name] == 1 else f"{one.name} ({one.agent[:8]})" for one in devices
    ]


def _cells(
    name: str, device: SeenDevice, edges: Mapping[str, str], epsilon: str
) -> tuple[object, ...]:
    at = ", ".join(edges.get(edge) or edge[:8] for edge in device.edges)
    last = "-" if device.last_round is None else f"{device.last_round} {device.last_status}"
    return (
        *(name, _ago(device), at or "-"),
        *(device.address or "-", device.software.removeprefix("fedagent ") or "-"),
        *(device.ordered, device.in_time, device.used, credits_text(device.paid_micro)),
        *("-" if device.claim_gap is None else f"{device.claim_gap:.2f}",),
        *("-" if device.trust is None or device.trust > _TRUSTED else f"{device.trust:.2f}",),
        epsilon,
        *(device.enrolment or "-", last),
    )


def _ago(device: SeenDevice) -> str:
    if device.online or device.last_seen_ms is None:
        return "online" if device.online else "-"
    seconds = max(0, round(time.time() - device.last_seen_ms / 1000))
    for unit, length in (("days", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"
