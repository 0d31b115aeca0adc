"""Agents of a run as people see them: where each is, and why one does not take part."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from fedagent_cli.output import echo
from fedagent_coordinator.books.queries import Queries
from fedagent_coordinator.books.rows import DeviceRow, RunRow
from fedagent_coordinator.picture.status_files import DEVICES_FILE, Device, read_devices

from .runs import epsilon_of, is_running, recipe_of

if TYPE_CHECKING:
    from fedagent_coordinator.books.reader import Reader

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


def judged_devices(reader: "Reader", run_id: str) -> list[DeviceRow]:
    """Return the agents that orders went to, with what their claims and updates came to."""
    gaps, trust = reader.claim_gaps(run_id), reader.trust(run_id)
    return [
        replace(row, claim_gap=gaps.get(row.client), trust=trust.get(row.client))
        for row in reader.devices(run_id)
    ]


def seen_devices(reader: Queries, run: RunRow, rows: Sequence[DeviceRow]) -> list[SeenDevice]:
    """Return every agent of a run: `rows`, and in the newest one those that edges refuse."""
    folder = reader.folder
    known, running = read_devices(folder), is_running(folder)
    heard: dict[str, Device] = dict(known.devices) if known is not None else {}
    # Whoever was online when the coordinator was killed was so at least until then.
    until_ms = round(1000 * (folder / DEVICES_FILE).stat().st_mtime) if heard else 0
    edges = reader.edges(run.run_id)
    found = [
        _seen(row, device, running, until_ms, edges)
        for row in rows
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


def print_reasons(devices: Sequence[SeenDevice], *, most: int | None = None) -> None:
    """Say who does not take part, or warns, and why, a line each."""
    names = names_of(devices)
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


def names_of(devices: Sequence[SeenDevice]) -> list[str]:
    """Return what each is called, with its id where two have one name."""
    count = Counter(device.name for device in devices)
    return [
        one.name if count[one.name] == 1 else f"{one.name} ({one.agent[:8]})" for one in devices
    ]
