"""`backup` and `restore`: a coordinator's data directory as a copy, and back."""

import sqlite3
import sys
from pathlib import Path

import click

from fedagent_coordinator.backup import back_up
from fedagent_coordinator.backup import restore as lay_down

from . import options, places
from .errors import UNREADABLE, CliError
from .output import echo, emit, writing


@click.command(
    epilog=options.examples(
        "fedagent backup /mnt/usb/fedagent-monday",
        "fedagent backup /mnt/usb/fedagent-monday --data-dir /srv/coordinator --json",
    )
)
@click.argument("folder", type=options.PATH)
@options.coordinator_data
@options.as_json
def backup(folder: Path, *, data_dir: Path | None, as_json: bool) -> None:
    """Back up a coordinator's data directory, even while it runs.

    The copy has the ledger with its mark, models, identity and who belongs to the site: keep it
    as you keep keys.
    """
    source = places.coordinator_dir(data_dir)
    try:
        with writing(folder, what="the backup "):
            made = back_up(source, folder.expanduser())
    except sqlite3.Error as error:
        raise CliError(
            f"{source} cannot be copied to {folder}: {error}",
            "check the free space at both places, then run `fedagent ledger verify`",
            exit_code=UNREADABLE,
        ) from error
    if as_json:
        emit({"backup": str(folder), "entries": made.seq})
    else:
        echo(f"{folder}: the ledger up to entry {made.seq}, with models, identity and site")


@click.command(
    epilog=options.examples(
        "fedagent restore /mnt/usb/fedagent-monday",
        "fedagent restore /mnt/usb/fedagent-monday --accept-lost-history",
    )
)
@click.argument("folder", type=options.PATH)
@options.coordinator_data
@click.option(
    "--accept-lost-history",
    is_flag=True,
    help="Restore a backup that is older than the data in place.",
)
@options.as_json
def restore(
    folder: Path, *, data_dir: Path | None, accept_lost_history: bool, as_json: bool
) -> None:
    """Restore a backup as a coordinator's data directory; existing data is moved aside.

    Edges know what was paid since: if they know more than the copy, the coordinator says so when
    it starts, and ends (32).
    """
    target = places.coordinator_dir(data_dir)
    with writing(target):
        done = lay_down(folder.expanduser(), target, accept_lost_history=accept_lost_history)
    if as_json:
        aside = None if done.aside is None else str(done.aside)
        emit({"data_dir": str(target), "entries": done.backup.seq, "aside": aside})
        return
    if done.aside is not None:
        sys.stderr.write(f"the replaced data is in {done.aside}\n")
    echo(
        f"{target}: restored the ledger up to entry {done.backup.seq}; start the coordinator as "
        "before"
    )
