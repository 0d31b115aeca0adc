"""`fedagent devices` and its commands: who belongs to the site, and what a device tells."""

import re
import secrets
import sqlite3
import ssl
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from fedagent_cli import options, places
from fedagent_cli.command_line import Group
from fedagent_cli.errors import UNREADABLE, CliError, UsageError, no_run
from fedagent_cli.extras import draw_qr
from fedagent_cli.output import echo, emit, moment
from fedagent_cli.read.runs import forbidden
from fedagent_cli.site.devices import devices
from fedagent_coordinator.errors import RefusedError
from fedagent_coordinator.site.enrolment import UNKNOWN, Enrolment, Member
from fedagent_node.data_dir import load_or_create
from fedagent_node.errors import JoinError
from fedagent_node.site import FOLDER
from fedagent_node.site.certificates import fingerprint
from fedagent_node.site.credentials import CA_FILE
from fedagent_node.site.joining import (
    JOIN_VERSION,
    SECRET_BYTES,
    Invitation,
    JoinRole,
    read_code,
    split_place,
)
from fedagent_node.site.reading import site_of
from fedagent_protocol.errors import ProtocolError

app = Group(
    "devices",
    default="list",
    help="List, invite, accept and revoke devices and edges.",
    epilog=options.examples(
        "fedagent devices",
        "fedagent devices --run 3f2a",
        "fedagent devices invite kitchen",
        "fedagent devices accept K7QM-2XAF-4TDE",
    ),
)
app.add_command(devices, "list")
_ID = re.compile(r"[0-9a-f]{32}")


@app.command(
    "invite",
    epilog=options.examples(
        "fedagent devices invite kitchen",
        "fedagent devices invite hall --role edge",
        "fedagent devices invite barn --address fed.example.org:8871",
    ),
)
@click.argument("name")
@click.option(
    "--role", type=click.Choice(["agent", "edge"]), default="agent", help="agent or edge."
)
@click.option(
    "--address",
    multiple=True,
    metavar="HOST:PORT",
    help="Another address at which it can reach the coordinator. Repeatable.",
)
@options.coordinator_data
@options.as_json
def invite(
    *, name: str, role: JoinRole, address: tuple[str, ...], data_dir: Path | None, as_json: bool
) -> None:
    """Print an invitation: one string, and a QR code at a terminal, for one device and one day.

    Give it to the device: `fedagent start --join STRING`, to an edge: `fedagent edge start --join
    STRING`. The string lets its holder join once in that role.
    """
    folder = places.coordinator_dir(data_dir)
    site, fingerprint = founded_site(folder)
    if not 0 < len(name) <= 64 or not name.isprintable():
        raise UsageError(f"not a name: {name!r}", "use 1 to 64 letters")
    with opened_enrolment(folder) as found:
        reached = _reached((*(address or ()), *found.places()))
        secret = secrets.token_bytes(SECRET_BYTES)
        expires = found.invite(name, role, secret, now=time.time())
    text = Invitation(
        version=JOIN_VERSION,
        secret=secret,
        fingerprint=fingerprint,
        site=site,
        role=role,
        name=name,
        places=reached,
    ).text()
    if as_json:
        emit({"invitation": text, "name": name, "role": role, "expires": round(expires)})
        return
    if not sys.stdout.isatty():
        echo(text)
        return
    draw_qr(text)
    start = "fedagent edge start --listen 0.0.0.0" if role == "edge" else "fedagent start"
    named = f"--name {name}" if role == "edge" else f"--name {name} --stream ..."
    other = f" --site {site}" if site != "default" else ""
    echo(f"for {name}, once, until {moment(expires)}; there:")
    echo(f"{start} {named}{other} --join {text}")


def _reached(named: Iterable[str]) -> tuple[str, ...]:
    reached = tuple(dict.fromkeys(named))[:16]
    try:
        for place in reached:
            split_place(place)
    except JoinError as error:
        raise UsageError(f"--address: {error.words}", "write HOST or HOST:PORT") from error
    if not reached:
        raise UsageError(
            "the address at which devices reach this coordinator is unknown",
            "start it first (`fedagent coordinator start --listen 0.0.0.0`), or add --address",
        )
    return reached


@app.command(
    "accept",
    epilog=options.examples(
        "fedagent devices accept K7QM-2XAF-4TDE",
        "fedagent devices accept --all",
    ),
)
@click.argument("code", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Accept all that wait, whatever code they show.")
@options.coordinator_data
@options.as_json
def accept(*, code: tuple[str, ...], every: bool, data_dir: Path | None, as_json: bool) -> None:
    """Accept a device or an edge that is waiting to join.

    CODE is what it shows: another one means that the join is being intercepted. --all trusts the
    network.
    """
    shown = read_code(" ".join(code))
    if every == bool(shown):
        raise UsageError("who is accepted is not clear", "give the code it shows, or --all")
    accepted: list[Member] = []
    with opened_enrolment(places.coordinator_dir(data_dir)) as found:
        waiting = [one for one in found.members(now=time.time()) if one.state == "pending"]
        if not every:
            waiting = [one for one in waiting if one.code == shown]
            if not waiting:
                problem = f"no device or edge is waiting with code {shown}"
                raise UsageError(problem, "give the code that it shows; see `fedagent devices`")
        for one in waiting:
            try:
                found.accept(one.code, one.id, now=time.time())
                accepted.append(one)
            except RefusedError as error:
                if not every:
                    raise
                sys.stderr.write(f"{one.role} {one.name or one.id[:12]}: {error}\n")
    if as_json:
        emit({"accepted": [{"id": one.id, "name": one.name, "role": one.role} for one in accepted]})
        return
    for one in accepted:
        echo(f"accepted {one.role} {one.name or one.id[:12]}; it gets its certificate in seconds")
    if not waiting:
        echo("no device or edge is waiting")


@app.command("revoke", epilog=options.examples("fedagent devices revoke kitchen"))
@click.argument("who")
@options.coordinator_data
@options.as_json
def revoke(*, who: str, data_dir: Path | None, as_json: bool) -> None:
    """Remove a device or an edge from the site permanently: its key can never join again.

    WHO is its name, or the start of its id. A running coordinator disconnects it within a minute,
    at every edge. Give the whole id of one that the coordinator does not know, because it was
    restored from a backup.
    """
    folder = places.coordinator_dir(data_dir)
    with opened_enrolment(folder) as found:
        everybody = found.members(now=time.time())
        if _is_stranger(folder, who, everybody):
            ident, name, role = who, "", UNKNOWN
        else:
            members = [one for one in everybody if one.state != "revoked"]
            one = _only(members, who, "belongs to the site under that name or id")
            ident, name, role = one.id, one.name, one.role
        found.revoke(ident, now=time.time())
    if as_json:
        emit({"revoked": ident, "name": name, "role": role})
    else:
        echo(f"revoked {role} {name or ident[:12]} ({ident[:12]})")


def _is_stranger(folder: Path, who: str, everybody: list[Member]) -> bool:
    """Return whether a whole id is that of nobody known, and not the coordinator's own."""
    known = {one.id for one in everybody}
    return bool(_ID.fullmatch(who)) and who not in known and who != load_or_create(folder).id


def _only(members: list[Member], who: str, does: str) -> Member:
    """Return the one that is meant."""
    meant = [one for one in members if one.name == who]
    meant = meant or [one for one in members if len(who) >= 4 and one.id.startswith(who)]
    if not meant:
        raise UsageError(f"no device or edge {does}: {who}", "see `fedagent devices`")
    if len(meant) > 1:
        several = ", ".join(f"{one.id[:12]} ({one.role} at {one.address})" for one in meant)
        raise UsageError(f"more than one {does}: {several}", "give the start of an id")
    return meant[0]


def founded_site(folder: Path) -> tuple[str, bytes]:
    """Return the name of the site that was founded here, and its authority's fingerprint."""
    path = folder / FOLDER / CA_FILE
    try:
        der = ssl.PEM_cert_to_DER_cert(path.read_text("ascii"))
        return site_of(der), bytes.fromhex(fingerprint(der))
    except OSError as error:
        raise no_run(
            f"no site in {folder}",
            "start the coordinator first (`fedagent coordinator start --listen 0.0.0.0`), "
            "or give --data-dir",
        ) from error
    except (ValueError, ProtocolError) as error:
        raise CliError(
            f"{path} is not a certificate", "restore it from a copy", exit_code=UNREADABLE
        ) from error


@contextmanager
def opened_enrolment(folder: Path) -> Iterator[Enrolment]:
    """Open the enrolments of the site that was founded here."""
    founded_site(folder)
    try:
        with Enrolment(folder) as found:
            yield found
    except PermissionError as error:
        raise forbidden(folder) from error
    except sqlite3.Error as error:
        raise no_run(f"{folder} cannot be written: {error}", "try again") from error
