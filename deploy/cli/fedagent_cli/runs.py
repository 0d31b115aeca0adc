"""Open a coordinator's data directory for reading, with errors for people."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from fedagent_coordinator.errors import StoreError, UnknownRunError
from fedagent_coordinator.reader import Reader, Run, open_reader
from fedagent_task.recipe import Recipe

from . import places
from .errors import NoRunError

LOCK = "lock"


@contextmanager
def open_run(data_dir: Path | None, run_id: str | None = None) -> Iterator[tuple[Reader, Run]]:
    """Open a data directory, the default one if None, and choose a run.

    Raises:
        NoRunError: There is no database, no such run, or it cannot be read.
    """
    folder = data_dir if data_dir is not None else places.data_dir("coordinator")
    try:
        with open_reader(folder.expanduser()) as reader:
            yield reader, reader.run(run_id)
    except UnknownRunError as error:
        if run_id:
            raise NoRunError(
                f"no single run begins with {run_id!r} in {folder}", "see `fedagent status`"
            ) from error
        raise NoRunError(
            f"no run in {folder}", "start one (`fedagent coordinator start`), or give --data-dir"
        ) from error
    except (StoreError, sqlite3.Error) as error:
        raise NoRunError(f"{folder} cannot be read: {error}", "is it a coordinator's?") from error


def recipe_of(run: Run) -> Recipe | None:
    """Return the recipe that a run keeps, None if this version cannot read it."""
    try:
        return msgspec.json.decode(run.recipe, type=Recipe)
    except msgspec.DecodeError:
        return None


def holder(folder: Path) -> int | None:
    """Return the process that has a data directory, None if nobody has."""
    try:
        pid = int((folder / LOCK).read_text().strip() or 0)
    except (OSError, ValueError):
        return None
    return pid if pid and psutil.pid_exists(pid) else None
