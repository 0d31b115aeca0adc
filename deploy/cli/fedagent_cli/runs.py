"""Open a coordinator's data directory for reading, with errors for people."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fedagent_coordinator.errors import StoreDamagedError, StoreError, UnknownRunError
from fedagent_coordinator.reader import Reader, Run, open_reader
from fedagent_coordinator.situation import Situation, read_situation
from fedagent_protocol.transport.data_dir import holder_of as holder
from fedagent_task.recipe import Recipe

from . import places
from .errors import DamagedError, NoRunError

__all__ = ["holder", "open_run", "recipe_of"]


@contextmanager
def open_run(data_dir: Path | None, run_id: str | None = None) -> Iterator[tuple[Reader, Run]]:
    """Open a data directory, the default one if None, and choose a run.

    Raises:
        NoRunError: There is no database, no such run, or it may not be read.
        DamagedError: The database is not what was written.
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
    except StoreDamagedError as error:
        raise DamagedError(f"{error.path} is damaged ({error.problem})", error.mend) from error
    except (StoreError, sqlite3.Error) as error:
        raise NoRunError(f"{folder} cannot be read: {error}", "is it a coordinator's?") from error


def recipe_of(run: Run) -> Recipe | None:
    """Return the recipe that a run keeps, None if this version cannot read it."""
    try:
        return msgspec.json.decode(run.recipe, type=Recipe)
    except msgspec.DecodeError:
        return None


def situation_of(folder: Path, run: Run) -> Situation | None:
    """Return what the coordinator that runs there sees of this run."""
    found = read_situation(folder)
    return found if found is not None and found.run == run.run_id else None
