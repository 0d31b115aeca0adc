"""`backup` and `restore`: a coordinator's data directory as a copy, and back."""

import sqlite3
import sys
from pathlib import Path
from typing import Annotated

from . import command_line, options, places
from .errors import RoleError, UnreadableError
from .output import echo, emit, writing

Copy = Annotated[Path, command_line.Argument(help="Folder for the backup.")]


def backup(
    folder: Copy, *, data_dir: options.CoordinatorData = None, as_json: options.AsJson = False
) -> None:
    """Back up a coordinator's data directory, even while it runs.

    The copy has the ledger with its mark, models, identity and who belongs to the site: keep it
    as you keep keys.
    """
    from fedagent_coordinator.backup import back_up  # noqa: PLC0415 - heavy imports
    from fedagent_coordinator.errors import BackupError  # noqa: PLC0415 - heavy imports

    source = (data_dir or places.data_dir("coordinator")).expanduser()
    try:
        with writing(folder, what="the backup "):
            made = back_up(source, folder.expanduser())
    except BackupError as error:
        raise RoleError(error.sentence, error.hint, exit_code=2) from error
    except sqlite3.Error as error:
        raise UnreadableError(
            f"{source} cannot be copied to {folder}: {error}",
            "check the free space at both places, then run `fedagent ledger verify`",
        ) from error
    if as_json:
        emit({"backup": str(folder), "entries": made.seq, "commits": made.commits})
    else:
        echo(f"{folder}: the ledger up to entry {made.seq}, with models, identity and site")


def restore(
    folder: Copy,
    *,
    data_dir: options.CoordinatorData = None,
    accept_lost_history: Annotated[
        bool,
        command_line.Option(
            "--accept-lost-history", help="Restore a backup that is older than the data in place."
        ),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Restore a backup as a coordinator's data directory; existing data is moved aside.

    Edges know what was paid since: if they know more than the copy, the coordinator says so when
    it starts, and ends (32).
    """
    from fedagent_coordinator.backup import restore as lay_down  # noqa: PLC0415 - heavy imports
    from fedagent_coordinator.errors import CoordinatorError  # noqa: PLC0415 - heavy imports
    from fedagent_coordinator.exits import exit_code  # noqa: PLC0415 - heavy imports
    from fedagent_node.errors import DataDirBusyError  # noqa: PLC0415 - heavy imports

    target = (data_dir or places.data_dir("coordinator")).expanduser()
    try:
        with writing(target):
            done = lay_down(folder.expanduser(), target, accept_lost_history=accept_lost_history)
    except (CoordinatorError, DataDirBusyError) as error:
        raise RoleError(error.sentence, error.hint, exit_code=exit_code(error) or 33) from error
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
