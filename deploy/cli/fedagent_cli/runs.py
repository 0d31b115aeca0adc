"""Open a coordinator's data directory for reading, with errors for people."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedagent_coordinator.database.connection import DATABASE
from fedagent_coordinator.database.models import recipe_in
from fedagent_coordinator.database.rows import RunRow
from fedagent_coordinator.errors import (
    SchemaVersionError,
    StoreDamagedError,
    StoreError,
    UnknownRunError,
)
from fedagent_coordinator.reader import Reader, open_reader
from fedagent_coordinator.status_files import RunStatus, read_run_status
from fedagent_node.data_dir import LOCK_FILE
from fedagent_node.data_dir import holder_of as holder
from fedagent_node.process import boot_id
from fedagent_task.spec import Recipe

from . import places
from .errors import NoRunError, UnreadableError

__all__ = ["forbidden", "holder", "next_round_s", "open_run", "recipe_of", "run_status_of"]


@contextmanager
def open_run(data_dir: Path | None, run_id: str | None = None) -> Iterator[tuple[Reader, RunRow]]:
    """Open a data directory, the default one if None, and choose a run.

    Raises:
        NoRunError: There is no database, no such run, or it may not be read.
        UnreadableError: The database is damaged, or of another release.
    """
    folder = (data_dir if data_dir is not None else places.data_dir("coordinator")).expanduser()
    _check_access(folder)
    try:
        with open_reader(folder) as reader:
            yield reader, reader.run(run_id)
    except UnknownRunError as error:
        if run_id:
            raise NoRunError(
                f"no single run begins with {run_id!r} in {folder}", "see `fedagent status`"
            ) from error
        raise NoRunError(
            f"no run in {folder}", "start one (`fedagent coordinator start`), or give --data-dir"
        ) from error
    except (StoreDamagedError, SchemaVersionError) as error:
        raise UnreadableError(error.sentence, error.hint) from error
    except sqlite3.OperationalError as error:
        # A reader makes the files beside the database if the coordinator does not run.
        if not os.access(folder, os.W_OK):
            raise forbidden(folder) from error
        raise NoRunError(f"{folder} cannot be read: {error}", "is it a coordinator's?") from error
    except (StoreError, sqlite3.Error) as error:
        raise NoRunError(f"{folder} cannot be read: {error}", "is it a coordinator's?") from error


def _check_access(folder: Path) -> None:
    """Refuse a data directory that is another user's.

    Raises:
        NoRunError: This user may not read its database.
    """
    try:
        with (folder / DATABASE).open("rb"):
            pass
    except PermissionError as error:
        raise forbidden(folder) from error
    except OSError:
        pass  # not there, or broken: opening it says which


def forbidden(folder: Path) -> NoRunError:
    """Return that a data directory, or a file in it, is another user's, and whose."""
    owner = "its owner"
    with suppress(OSError, KeyError):
        owner = f"its owner (sudo -u {_owner(folder)} fedagent ...)"
    return NoRunError(f"this user may not read {folder}", f"run the command as {owner}")


def _owner(folder: Path) -> str:
    import pwd  # noqa: PLC0415 - only here

    return pwd.getpwuid(folder.stat().st_uid).pw_name


def is_running(folder: Path) -> bool | None:
    """Return whether a coordinator works on a data directory; None if this user cannot know."""
    lock = folder / LOCK_FILE
    if lock.exists() and not os.access(lock, os.R_OK):
        return None
    return holder(folder) is not None


def recipe_of(run: RunRow) -> Recipe | None:
    """Return the recipe that a run keeps, None if this version cannot read it."""
    return recipe_in(run.recipe)


def run_status_of(folder: Path, run: RunRow) -> RunStatus | None:
    """Return what the coordinator that runs there sees of this run."""
    found = read_run_status(folder)
    return found if found is not None and found.run == run.run_id else None


def next_round_s(now: RunStatus) -> float | None:
    """Return the seconds until a scheduled round may begin; None where none is to come."""
    left = now.next_at - time.monotonic()
    return round(left, 1) if left > 0 and now.boot == boot_id() else None
