"""`fedagent devices`: every agent of a run, where it is, and why one does not take part."""

import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click
from msgspec import structs

from fedagent_cli import options, places
from fedagent_cli.errors import MissingError
from fedagent_cli.output import echo, emit, moment, table
from fedagent_cli.read.look import names_of, print_reasons
from fedagent_cli.read.runs import epsilon_of, epsilon_text, is_running, open_run, recipe_of
from fedagent_coordinator.books.read import Reader
from fedagent_coordinator.books.rows import RunRow
from fedagent_coordinator.errors import StoreDamagedError, UnknownRoundError
from fedagent_coordinator.picture.devices import DeviceCard, devices_of
from fedagent_coordinator.picture.totals import contexts_of
from fedagent_coordinator.site.enrolment import DATABASE, Enrolment, Member, OpenInvitation
from fedagent_node.site.certificates import CLOCK_S
from fedagent_protocol.errors import credits_text

DAY = 86_400
_TRUSTED = 0.995
UNLESS_KNOWN = (
    *("edge", "upload", "battery", "°C", "address", "software"),
    *("of claim", "trust", "epsilon", "site"),
)
"""Columns that are left out where no device has them."""


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
        with open_run(Reader, data_dir, run) as (reader, chosen):
            found = _enrolled(_judged(reader, chosen), members)
            edges, run_id = reader.edges(chosen.run_id), chosen.run_id
            recipe = recipe_of(chosen)
    except MissingError:
        if not (members or invited) or run is not None:
            raise
        found, edges, run_id, recipe = _enrolled([], members), {}, "", None
    others = [one for one in members if one.role == "edge"]
    waiting = [one for one in members if one.state == "pending"]
    if as_json:
        emit(
            {
                "run": run_id,
                "devices": [structs.asdict(device) for device in found],
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
            *("name", "last seen", "edge", "upload", "battery", "°C", "address", "software"),
            *("ordered", "in time", "used", "paid", "of claim", "trust", "epsilon", "site", "last"),
        ),
        (
            _cells(name, device, edges, epsilon_text(recipe, device.released) or "-")
            for name, device in zip(names_of(found), found, strict=True)
        ),
        unless=dict.fromkeys(UNLESS_KNOWN, "-"),
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


def _site(data_dir: Path | None) -> tuple[list[Member], list[OpenInvitation]]:
    """Return members and invitations of the site; none where there is none that we may read."""
    folder = places.coordinator_dir(data_dir)
    try:
        if not (folder / DATABASE).exists():
            return [], []
        with Enrolment(folder) as found:
            now = time.time()
            return found.members(now=now), found.invitations(now=now)
    except (OSError, sqlite3.Error, StoreDamagedError):
        return [], []


def _judged(reader: Reader, run: RunRow) -> list[DeviceCard]:
    told: Mapping[str, Mapping[str, float]] = {}
    with suppress(UnknownRoundError):  # none was decided yet
        view, _ = reader.plan(run.run_id, reader.last_round(run.run_id))
        told = contexts_of(view, [one.agent for one in reader.devices(run.run_id)])
    recipe, judged, found = recipe_of(run), reader.judged(run.run_id), list[DeviceCard]()
    for one in devices_of(reader, run, running=is_running(reader.folder)):
        trust, gap = judged.get(-1 if one.index is None else one.index, (None, None))
        epsilon, context = epsilon_of(recipe, one.released), told.get(one.id, {})
        found.append(
            structs.replace(one, claim_gap=gap, trust=trust, epsilon=epsilon, context=context)
        )
    return found


def _enrolled(found: list[DeviceCard], members: Sequence[Member]) -> list[DeviceCard]:
    """Return the devices with what they are to the site, and those that were in no round yet.

    The site's name for a device counts: it is what `revoke` takes.
    """
    by_id = {one.id: one for one in members if one.role == "agent"}
    cards = {one.id: one for one in found}
    for ident, one in by_id.items():
        card = cards.get(ident) or DeviceCard(id=ident, name=ident[:8])
        cards[ident] = structs.replace(card, name=one.name or card.name, enrolment=_state(one))
    return list(cards.values())


def _state(one: Member) -> str:
    if one.state == "pending":
        return f"waiting, code {one.code}"
    if one.state != "joined" or one.not_after_s is None:
        return one.state
    days, way = (one.not_after_s - time.time()) / DAY, "ahead" if one.ahead_s > 0 else "behind"
    clock = f", clock {abs(one.ahead_s) / DAY:.1f} days {way}"
    told = clock if abs(one.ahead_s) > CLOCK_S else ""
    return ("expired" if days < 0 else f"joined, {days:.0f} days") + told


def _cells(
    name: str, device: DeviceCard, edges: Mapping[str, str], epsilon: str
) -> tuple[object, ...]:
    at = ", ".join(edges.get(edge) or edge[:8] for edge in device.edges)
    last = "-" if device.last_round is None else f"{device.last_round} {device.last_status}"
    return (
        *(name, _ago(device), at or "-", *_told(device.context)),
        *(device.address or "-", device.software.removeprefix("fedagent ") or "-"),
        *(device.ordered, device.in_time, device.used, credits_text(device.paid_micro)),
        *("-" if device.claim_gap is None else f"{device.claim_gap:.0%}",),
        *("-" if device.trust is None or device.trust > _TRUSTED else f"{device.trust:.2f}",),
        epsilon,
        *(device.enrolment or "-", last),
    )


def _told(context: Mapping[str, float]) -> tuple[str, str, str]:
    bps, charge = context.get("upload_bps", 0.0), context.get("battery")
    units = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"))
    rate = next((f"{bps / each:.3g} {unit}" for each, unit in units if bps >= each), "-")
    celsius = context.get("temperature_c")
    warm = "-" if celsius is None else f"{celsius:.0f}"
    return rate, "-" if charge is None else f"{charge:.0%}", warm


def _ago(device: DeviceCard) -> str:
    if device.online or device.seen_ms is None:
        return "online" if device.online else "-"
    seconds = max(0, round(time.time() - device.seen_ms / 1000))
    units = (("days", DAY), ("h", 3600), ("min", 60))
    found = (f"{seconds // each} {unit} ago" for unit, each in units if seconds >= 2 * each)
    return next(found, f"{seconds} s ago")
