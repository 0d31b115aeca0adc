"""What reading commands share: a run of a data directory, and how good its models are, in words."""

import os
import pwd
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from msgspec import structs

from fedagent_cli import places
from fedagent_cli.errors import MissingError, no_run
from fedagent_cli.extras import optional
from fedagent_cli.output import number_text
from fedagent_coordinator.books.models import recipe_in
from fedagent_coordinator.books.queries import Q, open_books
from fedagent_coordinator.books.rows import RunRow
from fedagent_coordinator.books.schema import DATABASE
from fedagent_coordinator.errors import (
    StoreDamagedError,
    StoreError,
    UnknownRoundError,
    UnknownRunError,
)
from fedagent_node.data_dir import LOCK_FILE, holder_of
from fedagent_task.recipe.spec import Recipe
from fedagent_task.scoring.measures import HELD_OUT, IN_TRAINING, Measure, few

LABELS = {"rmse": "error", "train_error": "error", "train_loss": "loss", "device_score": "score"}
"""What a line about it begins with, where that is not its key."""
NOT_REPORTED = "not measured: if neighbours decide, devices report neither score nor loss"
NOT_HELD_OUT = "not measured on held-out samples (evaluation.dataset)"
Metrics = Mapping[str, float]


@contextmanager
def open_run(
    kind: type[Q], data_dir: Path | None, run_id: str | None = None
) -> Iterator[tuple[Q, RunRow]]:
    """Open a data directory, the default one if None, and choose a run.

    The queries of a `kind` can be asked: `Queries` are quickly loaded, a `Reader` has all.

    The folder of a demo, of demos (the newest), or of a study stands for its coordinator's.

    Raises:
        MissingError: There is no database, no such run, or it may not be read.
        CliError: The database is damaged, or of another version.
        MissingError: Rounds were pruned that are needed.
    """
    folder = _coordinator_in(places.coordinator_dir(data_dir))
    try:
        (folder / DATABASE).open("rb").close()
    except PermissionError as error:
        raise forbidden(folder) from error
    except OSError:
        pass  # not there, or broken: opening it says which
    try:
        with open_books(folder, kind) as reader:
            yield reader, reader.run(run_id)
    except UnknownRunError as error:
        raise _no_run(folder, run_id, given=data_dir is not None) from error
    except (StoreDamagedError, UnknownRoundError):
        raise
    except PermissionError as error:
        if folder not in Path(str(error.filename)).parents:
            raise
        # The mark and the key are the owner's alone: others cannot verify.
        raise forbidden(folder) from error
    except sqlite3.OperationalError as error:
        # A reader makes the files beside the database if the coordinator does not run.
        if not os.access(folder, os.W_OK):
            raise forbidden(folder) from error
        full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
        hint = (
            "free space for temporary files" if full else "check that it is a coordinator's folder"
        )
        raise no_run(f"{folder} cannot be read: {error}", hint) from error
    except (StoreError, sqlite3.Error) as error:
        raise no_run(
            f"{folder} cannot be read: {error}", "check that it is a coordinator's folder"
        ) from error


def _coordinator_in(folder: Path) -> Path:
    """Return the data directory that a folder stands for: itself if there is none in it."""
    if os.path.exists(folder / DATABASE):  # noqa: PTH110 - false where it is not ours
        return folder
    inside = [*folder.glob(f"coordinator/{DATABASE}"), *folder.glob(f"*/coordinator/{DATABASE}")]
    return max(inside, key=lambda path: path.stat().st_mtime).parent if inside else folder


def _no_run(folder: Path, run_id: str | None, *, given: bool) -> MissingError:
    if not (folder / DATABASE).exists():
        if not given:
            hint = "start one (`fedagent coordinator start`), or give its data directory"
            return no_run(f"no run in {folder}: no coordinator has run there", hint)
        what = (
            f"no run in {folder}: it is not a coordinator's folder"
            if folder.exists()
            else f"there is no folder {folder}"
        )
        return no_run(what, "name the folder of a coordinator, a demo or a study")
    if run_id is None:
        return no_run(f"no run in {folder}", "start one (`fedagent coordinator start`)")
    return no_run(
        f"no run, or more than one, begins with {run_id!r} in {folder}",
        "see `fedagent status --all`",
    )


def forbidden(folder: Path) -> MissingError:
    """Return that a data directory, or a file in it, is another user's, and whose."""
    owner = "its owner"
    with suppress(OSError, KeyError):
        owner = f"its owner (sudo -u {pwd.getpwuid(folder.stat().st_uid).pw_name} fedagent ...)"
    return no_run(f"this user may not read {folder}", f"run the command as {owner}")


def is_running(folder: Path) -> bool | None:
    """Return whether a coordinator works on a data directory; None if this user cannot know."""
    lock = folder / LOCK_FILE
    if lock.exists() and not os.access(lock, os.R_OK):
        return None
    return holder_of(folder) is not None


def recipe_of(run: RunRow) -> Recipe | None:
    """Return the recipe that a run keeps, None if this version cannot read it."""
    return recipe_in(run.recipe)


def epsilon_of(recipe: Recipe | None, released: int) -> float | None:
    """Return the epsilon of so many updates; None: none is counted, or not on this machine."""
    if recipe is None or not recipe.privacy.wanted or find_spec("opendp") is None:
        return None
    accountant = optional("fedagent_task.privacy.accountant", "opendp", "privacy")
    most = recipe.privacy.releases or recipe.rounds.count
    spec = structs.replace(recipe.privacy, releases=most)
    spent: float = accountant.epsilon_spent(spec, min(released, most))
    return spent


def epsilon_text(recipe: Recipe | None, released: int) -> str:
    """Return it with what a device may spend; without an accountant, in updates; or nothing."""
    if recipe is None or not recipe.privacy.wanted:
        return ""
    spent = epsilon_of(recipe, released)
    if spent is None:
        most = recipe.privacy.releases or recipe.rounds.count
        return f"{min(released, most)} of {most} updates"
    return f"{spent:.3g} of {recipe.privacy.epsilon:g}"


def metric_line(measures: Sequence[Measure], metrics: Metrics) -> tuple[str, str]:
    """Return a label and one line on how good a model is."""
    if not measures:
        return "accuracy", NOT_REPORTED
    by = measures[0]
    label = LABELS.get(by.key, by.key)
    known = [one for one in measures if one.key in metrics]
    if by.where == HELD_OUT:
        known = [one for one in known if one.where != IN_TRAINING]
    if not known:
        return label, "not measured yet"
    line = ", ".join(_with_unit(one, metrics[one.key], by) for one in known)
    return label, f"{line}; {NOT_HELD_OUT}" if by.where == IN_TRAINING else line


def columns(measures: Sequence[Measure], rows: Iterable[Metrics]) -> tuple[Measure, ...]:
    """Return what a table shows: what is evaluated by, and the few others that were measured."""
    listed = list(rows)
    return tuple(
        one
        for one in few(measures)
        if one is measures[0] or any(one.key in metrics for metrics in listed)
    )


def _with_unit(one: Measure, value: float, by: Measure) -> str:
    number = number_text(value)
    match one.key:
        case "rmse" | "mae":
            return f"{number} ({one.key})"
        case "device_score":
            return f"{number} on the devices' new samples"
        case _ if one is not by:
            return f"{one.word if by.where != one.where else 'loss'} {number}"
        case _:
            return f"{number} in training" if one.where == IN_TRAINING else number
