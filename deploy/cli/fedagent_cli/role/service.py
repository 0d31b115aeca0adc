"""`fedagent service install|uninstall`: a role as a systemd service."""

import os
import shlex
import sys
from pathlib import Path

import click

from fedagent_cli import options, places
from fedagent_cli.command_line import Group
from fedagent_cli.errors import UsageError
from fedagent_cli.output import echo, emit, writing
from fedagent_protocol.extras import source_of

from . import systemd
from .systemd import Service

app = Group("service", help="Run a role as a systemd service.")
ROOT = Path("/")
role_argument = click.argument(
    "role", type=click.Choice(["agent", "edge", "coordinator"]), metavar="ROLE"
)
mine_option = click.option(
    "--mine", is_flag=True, help="For your own user's systemd, without root."
)
dry_option = click.option(
    "--dry-run", is_flag=True, help="Print the files and the commands without changing anything."
)
root_option = click.option(
    "--root",
    type=click.Path(exists=True, path_type=Path),
    default=ROOT,
    metavar="DIR",
    help="Root folder of the system to change, e.g. a mounted image.",
)


@app.command(
    epilog=options.examples(
        "sudo fedagent service install agent",
        "fedagent service install agent --mine",
        "fedagent service install edge --dry-run",
        "sudo fedagent service install agent --user pi",
    ),
)
@role_argument
@click.option(
    "--user", show_default="one that systemd creates for it", help="User that the service runs as."
)
@click.option(
    "--config",
    type=options.PATH,
    show_default="/etc/fedagent/ROLE.toml",
    help="Settings file of the service.",
)
@mine_option
@dry_option
@root_option
@options.as_json
def install(
    role: str,
    *,
    user: str | None,
    config: Path | None,
    mine: bool,
    dry_run: bool,
    root: Path,
    as_json: bool,
) -> None:
    """Install a role's unit and settings file, and start it.

    An existing settings file is not changed. The data are below /var/lib, or with --mine where
    your own roles have them.
    """
    root = root.absolute()
    if mine and user is not None:
        raise UsageError("--mine cannot be combined with --user", "leave one of them out")
    _check(mine=mine, root=root, dry_run=dry_run)
    service = systemd.installed_here(role, config=config, user=user, mine=mine)
    note = _note(service)
    if note and not (mine or dry_run) and root == ROOT:
        raise UsageError(*note)
    files = [_file(_below(root, service.unit), service.unit_text())]
    files.append(_file(_below(root, service.config), service.settings_text(), other="kept"))
    fresh = [one for one in files if one["state"] in ("new", "changed")]
    enable = [*service.systemctl, "enable", service.name]
    again = [*service.systemctl, "restart" if fresh else "start", service.name]
    commands = [[*service.systemctl, "daemon-reload"], enable, again]
    if root != ROOT:  # it can only be enabled there
        commands = [["systemctl", "--root", str(root), *enable[1:]]]
    if not dry_run:
        for one in fresh:
            _write(Path(one["path"]), one["text"])
        systemd.call(commands)
    lines = [shlex.join(command) for command in commands]
    if as_json:
        named = {"service": service.name, "dry_run": dry_run, "note": "; ".join(note)}
        emit({**named, "files": files, "commands": lines})
        return
    for one in files:
        where, state = one["path"], one["state"]
        echo(f"# {where} ({state})\n{one['text']}" if dry_run else f"{where}: {state}")
    for line in lines:
        echo(line if dry_run else f"done: {line}")
    if note:
        echo(f"note: {'; '.join(note)}")
    if not dry_run:
        unit = "--user-unit" if mine else "--unit"
        restart = shlex.join([*service.systemctl, "restart", service.name])
        echo(f"its log: journalctl {unit} {service.name} --follow; after a change: {restart}")


def _note(service: Service) -> tuple[str, str] | tuple[()]:
    """Return why the service could not run this fedagent as it should, and the hint."""
    if service.mine:
        lonely = "it runs only while you are logged in", "loginctl enable-linger keeps it"
        return () if systemd.lingers() else lonely
    closed = service.unseen() if service.user is None else ""
    if not closed:
        return ()
    wheel = (source_of() or "dist/fedagent-*.whl").removeprefix("-e ")
    make = f"python3 -m venv /opt/fedagent && /opt/fedagent/bin/pip install {wheel}"
    hint = f"install it where every user can read it: {make}; or give --user"
    return f"a service's own user may not read {closed}", hint


@app.command(epilog=options.examples("sudo fedagent service uninstall agent"))
@role_argument
@mine_option
@dry_option
@root_option
@options.as_json
def uninstall(role: str, *, mine: bool, dry_run: bool, root: Path, as_json: bool) -> None:
    """Stop a role's service and remove its unit; settings and data are kept."""
    root = root.absolute()
    _check(mine=mine, root=root, dry_run=dry_run)
    service = systemd.installed_here(role, config=None, user=None, mine=mine)
    unit = _below(root, service.unit)
    there = unit.exists()
    where = ["--now"] if root == ROOT else ["--root", str(root)]
    command = [*service.systemctl, "disable", *where, service.name]
    if there and not dry_run:
        systemd.call([command])
        unit.unlink()
        if root == ROOT:
            systemd.call([[*service.systemctl, "daemon-reload"]])
    data = places.data_dir(role).absolute() if mine else Path("/var/lib") / service.name
    left = (_below(root, path) for path in (service.config, data))
    # Of a user that systemd made up the data is a link to where root alone looks.
    kept = [str(path) for path in left if os.path.lexists(path)]
    if as_json:
        emit({"service": service.name, "dry_run": dry_run, "removed": there, "kept": kept})
    elif not there:
        echo(f"{unit} does not exist: nothing to remove")
    else:
        echo(f"{shlex.join(command)}\nrm {unit}" if dry_run else f"removed {unit}")
        if kept:
            echo(f"{'would be kept' if dry_run else 'kept'}: {', '.join(kept)}")


def _check(*, mine: bool, root: Path, dry_run: bool) -> None:
    if mine and root != ROOT:
        raise UsageError("--mine cannot be combined with --root", "leave one of them out")
    if dry_run or root != ROOT:
        return
    if not systemd.systemd_runs(mine=mine):
        hint = "--dry-run prints the files; --root DIR writes them into another system"
        whose = "your user has no systemd" if mine else "systemd is not running"
        raise UsageError(f"{whose} here", "log in by ssh or at the desk" if mine else hint)
    if not mine and os.geteuid() != 0:
        again = shlex.join([sys.executable, "-m", "fedagent_cli", *sys.argv[1:]])
        raise UsageError("services belong to root", f"sudo {again}, or --mine")


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _file(path: Path, text: str, *, other: str = "changed") -> dict[str, str]:
    """Return a file that is wanted, and what becomes of it; `other` where it has another text."""
    state = "new"
    if path.exists():
        state = "same" if path.read_text("utf-8") == text else other
    return {"path": str(path), "state": state, "text": text}


def _write(path: Path, text: str) -> None:
    with writing(path, hint="check its owner and permissions"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        path.chmod(0o644)
