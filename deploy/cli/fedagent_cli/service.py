"""`fedagent service install|uninstall|status|logs`: a role as a systemd service."""

import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Annotated

from fedagent_protocol.extras import source_of

from . import command_line, launch, options, places, systemd
from .errors import MissingError, UsageError
from .output import echo, emit
from .systemd import Service

if TYPE_CHECKING:
    from fedagent_protocol.option import Declared

app = command_line.CommandGroup(
    name="service", help="Run a role as a systemd service.", no_args_is_help=True
)
_ROOT = Path("/")


class Role(StrEnum):
    """What can be a service."""

    AGENT = "agent"
    EDGE = "edge"
    COORDINATOR = "coordinator"


Which = Annotated[Role, command_line.Argument(help="agent, edge or coordinator.", metavar="ROLE")]
DryRun = Annotated[
    bool,
    command_line.Option(
        "--dry-run", help="Print the files and the commands without changing anything."
    ),
]
Root = Annotated[
    Path,
    command_line.Option(
        exists=True,
        help="Root folder of the system to change, e.g. a mounted image.",
        metavar="DIR",
    ),
]
Mine = Annotated[
    bool,
    command_line.Option("--mine", help="Install for your own user's systemd, without root."),
]
User = Annotated[
    str | None,
    command_line.Option(
        help="User that the service runs as.", show_default="one that systemd creates for it"
    ),
]
Config = Annotated[
    Path | None,
    command_line.Option(
        help="Settings file of the service.", show_default="/etc/fedagent/ROLE.toml"
    ),
]
DataDir = Annotated[
    Path | None,
    command_line.Option(
        help="Data directory of the service; needs --user.", show_default="below /var/lib"
    ),
]


def _files_of_root() -> "list[Declared]":
    from fedagent_node.settings import NodeConfig  # noqa: PLC0415 - not for --help
    from fedagent_protocol.option import declared  # noqa: PLC0415

    files = [one for one in declared(NodeConfig) if one.keys[0] in ("tls", "password_file")]
    return sorted(files, key=lambda one: one.keys[0], reverse=True)


@app.command(
    options=_files_of_root,
    epilog=options.examples(
        "sudo fedagent service install agent",
        "fedagent service install agent --mine",
        "fedagent service install edge --dry-run",
        "sudo fedagent service install agent --user pi --data-dir /srv/agent",
        "sudo fedagent service install edge --password-file /root/mqtt-password",
    ),
)
def install(
    role: Which,
    *,
    user: User = None,
    config: Config = None,
    data_dir: DataDir = None,
    mine: Mine = False,
    dry_run: DryRun = False,
    root: Root = _ROOT,
    as_json: options.AsJson = False,
    **of_root: Path | None,
) -> None:
    """Install a role's unit and settings file, and start it.

    An existing settings file is not changed. Certificates and the password file may be readable by
    root only: systemd passes them to the service.
    """
    root = root.absolute()
    _check_mine(mine=mine, root=root, user=user, files=any(of_root.values()))
    if data_dir is not None and user is None and not mine:
        raise UsageError("--data-dir needs --user", "the user that systemd creates has its own")
    launch.tls(*(of_root.get(f"tls_{part}") for part in ("ca", "cert", "key")))
    service = Service(
        role=role.value,
        program=systemd.program(),
        reads=systemd.own_files(),
        config=(config or systemd.settings(role.value, mine=mine)).absolute(),
        user=user,
        data_dir=None if data_dir is None else data_dir.absolute(),
        files={
            name.replace("_", "-"): path.absolute()
            for name, path in of_root.items()
            if path is not None
        },
        mine=mine,
    )
    note = _note(service)
    if not dry_run and root == _ROOT:
        _need_systemd(mine=mine)
        if note and not mine:
            raise UsageError(*note)
    files = systemd.files_of(service)
    states = [file.state(root) for file in files]
    changed = any(state in ("new", "changed") for state in states)
    commands = systemd.commands_of(service, root, changed=changed)
    if not dry_run:
        if root == _ROOT:
            systemd.make_data_dir(service)
        _put(files, root)
        systemd.call(commands)
    record = {
        "service": service.name,
        "dry_run": dry_run,
        "files": [
            {"path": str(systemd.below(root, file.path)), "state": state, "text": file.text}
            for file, state in zip(files, states, strict=True)
        ],
        "commands": [shlex.join(command) for command in commands],
        "note": "; ".join(note),
    }
    if as_json:
        emit(record)
        return
    _show(record, files, root, dry_run=dry_run, mine=mine)


def _show(
    record: dict[str, object],
    files: list[systemd.Wanted],
    root: Path,
    *,
    dry_run: bool,
    mine: bool,
) -> None:
    for file in files:
        path, state = systemd.below(root, file.path), file.state(root)
        if dry_run:
            echo(f"# {path} ({state})\n{file.text}")
        else:
            echo(f"{path}: {'kept unchanged' if state == 'kept' else 'in place'}")
    commands = record["commands"]
    assert isinstance(commands, list)
    for command in commands:
        echo(command if dry_run else f"done: {command}")
    if record["note"]:
        echo(f"note: {record['note']}")
    if not dry_run:
        name, user = str(record["service"]), " --user" if mine else ""
        role = name.removeprefix("fedagent-")
        log = f"fedagent service logs {role} --follow{' --mine' if mine else ''}"
        echo(f"its log: {log}; after a change of settings: systemctl{user} restart {name}")


def _put(files: list[systemd.Wanted], root: Path) -> None:
    try:
        for file in files:
            file.write(root)
    except OSError as error:
        problem = f"cannot write {error.filename}: {error.strerror}"
        raise UsageError(problem, "check its owner and permissions") from error


def _note(service: Service) -> tuple[str, str] | tuple[()]:
    """Return why the service could not run this fedagent as it should, and the hint."""
    if service.mine:
        lonely = "it runs only while you are logged in", "loginctl enable-linger keeps it"
        return () if systemd.lingers() else lonely
    wheel = (source_of() or "dist/fedagent-*.whl").removeprefix("-e ")
    make = "python3 -m venv /opt/fedagent && /opt/fedagent/bin/pip install " + wheel
    if (hidden := service.in_tmp) is not None:
        named = "name another --config or --data-dir"
        hint = f"install it elsewhere: {make}" if hidden in service.reads else named
        return f"a service has its own /tmp and /var/tmp, where {hidden} does not exist", hint
    closed = systemd.unseen(service)
    if not closed:
        return ()
    who = f"the user {service.user}" if service.user else "a service's own user"
    return (
        f"{who} may not read {closed}",
        f"install it where every user can read it: {make}; or give --user",
    )


@app.command(epilog=options.examples("sudo fedagent service uninstall agent"))
def uninstall(
    role: Which,
    *,
    mine: Mine = False,
    dry_run: DryRun = False,
    root: Root = _ROOT,
    as_json: options.AsJson = False,
) -> None:
    """Stop a role's service and remove its unit; settings and data are kept."""
    root = root.absolute()
    _check_mine(mine=mine, root=root)
    if not dry_run and root == _ROOT:
        _need_systemd(mine=mine)
    name = f"fedagent-{role.value}"
    unit = systemd.below(root, systemd.units(mine=mine) / f"{name}.service")
    there = unit.exists()
    ctl = systemd.systemctl(mine=mine)
    other = [] if root == _ROOT else ["--root", str(root)]
    commands = [[*ctl, *other, "disable", *([] if other else ["--now"]), name]]
    if not dry_run and there:
        systemd.call(commands)
        unit.unlink()
        if not other:
            systemd.call([[*ctl, "daemon-reload"]])
    data = places.data_dir(role.value).absolute() if mine else Path("/var/lib") / name
    left = (systemd.below(root, path) for path in (systemd.settings(role.value, mine=mine), data))
    # Of a user that systemd made up the data is a link to where root alone looks.
    kept = [str(path) for path in left if os.path.lexists(path)]
    if as_json:
        emit({"service": name, "dry_run": dry_run, "removed": there, "kept": kept})
    elif not there:
        echo(f"{unit} does not exist: nothing to remove")
    else:
        for command in commands if dry_run else []:
            echo(shlex.join(command))
        echo(f"{'rm ' if dry_run else 'removed '}{unit}")
        if kept:
            echo(f"{'would be kept' if dry_run else 'kept'}: {', '.join(kept)}")


@app.command(
    epilog=options.examples("fedagent service status agent", "fedagent service status edge --json")
)
def status(
    role: Which, *, mine: Mine = False, root: Root = _ROOT, as_json: options.AsJson = False
) -> None:
    """Show the systemd state of a role's service, and since when it runs; 43 if there is none."""
    root = root.absolute()
    _check_mine(mine=mine, root=root)
    name, unit = f"fedagent-{role.value}", _unit(role, root, mine=mine)
    running = root == _ROOT and systemd.systemd_runs(mine=mine)
    said = systemd.shown(name, mine=mine) if running else {}
    record = {
        "service": name,
        "unit": str(unit),
        "systemd": running,
        "enabled": said.get("UnitFileState"),
        "active": said.get("ActiveState"),
        "since": said.get("ActiveEnterTimestamp"),
        "restarts": int(said["NRestarts"]) if said.get("NRestarts", "").isdigit() else None,
        "pid": int(said["MainPID"]) if said.get("MainPID", "0") != "0" else None,
    }
    if as_json:
        emit(record)
        return
    flag = " --mine" if mine else ""
    echo(f"{name}: {unit}")
    if running:
        since = f" since {record['since']}" if record["since"] else ""
        restarts = f", restarted {record['restarts']} times" if record["restarts"] else ""
        echo(f"{record['active']}, {record['enabled']}{since}{restarts}")
        echo(f"its log: fedagent service logs {role.value}{flag}")
    else:
        echo("systemd is not running here")


@app.command(
    epilog=options.examples("fedagent service logs edge", "fedagent service logs agent --follow")
)
def logs(
    role: Which,
    *,
    mine: Mine = False,
    lines: Annotated[int, command_line.Option(help="Number of newest lines.", min=1)] = 50,
    follow: Annotated[
        bool, command_line.Option("--follow", "-f", help="Keep printing new lines; Ctrl-C stops.")
    ] = False,
    as_json: Annotated[
        bool, command_line.Option("--json", help="Print journald's own JSON, one object per line.")
    ] = False,
) -> None:
    """Show the newest lines of a service's log, which journald keeps; 43 if there is none."""
    _unit(role, _ROOT, mine=mine)
    if which("journalctl") is None:
        raise UsageError("journalctl is not installed", "the log of a service is kept by systemd")
    unit = ["--user-unit" if mine else "--unit", f"fedagent-{role.value}"]
    more = ["--follow"] if follow else ["--no-pager"]
    shape = "json" if as_json else "short-iso"
    words = ["journalctl", *unit, "--lines", str(lines), "--output", shape, *more]
    os.execvp(words[0], words)  # noqa: S606 - the system's own, with fixed words


def _unit(role: Role, root: Path, *, mine: bool) -> Path:
    """Return a role's unit, which is there."""
    unit = systemd.below(root, systemd.units(mine=mine) / f"fedagent-{role.value}.service")
    if not unit.exists():
        flag = " --mine" if mine else "" if root == _ROOT else f" --root {root}"
        hint = f"{'' if mine else 'sudo '}fedagent service install {role.value}{flag}"
        raise MissingError(f"fedagent-{role.value} is not installed", hint)
    return unit


def _check_mine(*, mine: bool, root: Path, user: str | None = None, files: bool = False) -> None:
    if mine and (root != _ROOT or user is not None or files):
        problem = "--mine cannot be combined with --root, --user, --tls-... or --password-file"
        raise UsageError(problem, "name your own files in the settings file")


def _need_systemd(*, mine: bool) -> None:
    if not systemd.systemd_runs(mine=mine):
        hint = "--dry-run prints the files; --root DIR writes them into another system"
        whose = "your user has no systemd" if mine else "systemd is not running"
        raise UsageError(f"{whose} here", "log in by ssh or at the desk" if mine else hint)
    if not mine and os.geteuid() != 0:
        again = shlex.join([*systemd.program(), *sys.argv[1:]])
        raise UsageError("services belong to root", f"sudo {again}, or --mine")
