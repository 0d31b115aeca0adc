"""`fedagent service install|uninstall`: a role as a systemd service."""

import os
import shlex
import sys
from pathlib import Path

import click

from fedagent_cli import options, places
from fedagent_cli.command_line import Group
from fedagent_cli.errors import UsageError
from fedagent_cli.output import echo, emit
from fedagent_cli.role import launch, systemd
from fedagent_cli.role.systemd import Service
from fedagent_protocol.extras import source_of

app = Group(
    "service",
    help="Run a role as a systemd service.",
)
_ROOT = Path("/")


@app.command(
    epilog=options.examples(
        "sudo fedagent service install agent",
        "fedagent service install agent --mine",
        "fedagent service install edge --dry-run",
        "sudo fedagent service install agent --user pi --data-dir /srv/agent",
        "sudo fedagent service install edge --password-file /root/mqtt-password",
    ),
)
@click.argument("role", type=click.Choice(["agent", "edge", "coordinator"]), metavar="ROLE")
@click.option(
    "--user", show_default="one that systemd creates for it", help="User that the service runs as."
)
@click.option(
    "--config",
    type=options.PATH,
    show_default="/etc/fedagent/ROLE.toml",
    help="Settings file of the service.",
)
@click.option(
    "--data-dir",
    type=options.PATH,
    show_default="below /var/lib",
    help="Data directory of the service; needs --user.",
)
@click.option("--mine", is_flag=True, help="Install for your own user's systemd, without root.")
@click.option(
    "--dry-run", is_flag=True, help="Print the files and the commands without changing anything."
)
@click.option(
    "--root",
    type=click.Path(exists=True, path_type=Path),
    default=_ROOT,
    metavar="DIR",
    help="Root folder of the system to change, e.g. a mounted image.",
)
@click.option("--password-file", type=options.PATH, help="File of root: the broker's password.")
@click.option("--tls-ca", type=options.PATH, help="File of root: certificate authority, PEM.")
@click.option("--tls-cert", type=options.PATH, help="File of root: own certificate, PEM.")
@click.option("--tls-key", type=options.PATH, help="File of root: own private key, PEM.")
@options.as_json
def install(
    role: str,
    *,
    user: str | None,
    config: Path | None,
    data_dir: Path | None,
    mine: bool,
    dry_run: bool,
    root: Path,
    as_json: bool,
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
        role=role,
        program=systemd.program(),
        reads=systemd.own_files(),
        config=(config or systemd.settings(role, mine=mine)).absolute(),
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
    record: dict[str, object], files: list[systemd.Wanted], root: Path, *, dry_run: bool, mine: bool
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
        unit = "--user-unit" if mine else "--unit"
        echo(
            f"its log: journalctl {unit} {name} --follow; after a change of settings: "
            f"systemctl{user} restart {name}"
        )


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
@click.argument("role", type=click.Choice(["agent", "edge", "coordinator"]), metavar="ROLE")
@click.option("--mine", is_flag=True, help="Install for your own user's systemd, without root.")
@click.option(
    "--dry-run", is_flag=True, help="Print the files and the commands without changing anything."
)
@click.option(
    "--root",
    type=click.Path(exists=True, path_type=Path),
    default=_ROOT,
    metavar="DIR",
    help="Root folder of the system to change, e.g. a mounted image.",
)
@options.as_json
def uninstall(role: str, *, mine: bool, dry_run: bool, root: Path, as_json: bool) -> None:
    """Stop a role's service and remove its unit; settings and data are kept."""
    root = root.absolute()
    _check_mine(mine=mine, root=root)
    if not dry_run and root == _ROOT:
        _need_systemd(mine=mine)
    name = f"fedagent-{role}"
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
    data = places.data_dir(role).absolute() if mine else Path("/var/lib") / name
    left = (systemd.below(root, path) for path in (systemd.settings(role, mine=mine), data))
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
