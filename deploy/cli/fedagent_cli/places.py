"""Where things are: data directories and recipes."""

import os
import re
import time
from pathlib import Path
from typing import Literal

from .errors import UsageError

MODELS = "models"
"""Folder of global models in a coordinator's data directory."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def home() -> Path:
    """Return the folder of all data directories.

    ``$FEDAGENT_HOME``, else ``$XDG_DATA_HOME/fedagent``, else ``~/.local/share/fedagent``.
    """
    if own := os.environ.get("FEDAGENT_HOME"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_DATA_HOME")
    return (Path(shared).expanduser() if shared else Path.home() / ".local" / "share") / "fedagent"


def data_dir(role: str, name: str | None = None) -> Path:
    """Return the data directory of a role on this machine.

    A name gives a directory of its own, so that several devices run side by side.

    Raises:
        UsageError: The name cannot name a folder.
    """
    if name is None:
        return home() / role
    if not _NAME.fullmatch(name):
        raise UsageError(f"not a name: {name!r}", "use 1-63 letters, digits, '-', '_' or '.'")
    return home() / f"{role}-{name}"


def coordinator_dir(given: Path | None) -> Path:
    """Return the data directory of the coordinator that is meant: this user's, or a given one."""
    return (given or data_dir("coordinator")).expanduser()


def dated(parent: str) -> Path:
    """Return a folder's name below `parent`, by this moment and by chance."""
    return Path(parent) / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def empty_folder(wanted: Path, *, hint: str) -> Path:
    """Return the full path of an empty folder, made if it is not there.

    Raises:
        UsageError: It cannot be made, or there is something in it.
    """
    path = wanted.expanduser().resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise UsageError(f"{path} is not empty", hint)
    except OSError as error:
        raise UsageError(f"cannot use {path}: {error.strerror}", hint) from error
    return path


def shortest(path: Path) -> str:
    """Return a path as it is typed here: from the current folder, unless from the root is shorter.

    A folder that is no more has no paths from it.
    """
    try:
        return min(str(path.absolute()), os.path.relpath(path), key=len)
    except FileNotFoundError:
        return str(path)


def bundled(name: Literal["recipes", "systemd"]) -> Path:
    """Return a folder that comes with the package: in the wheel, or in the source tree."""
    inside = Path(__file__).parent / name
    return inside if inside.is_dir() else Path(__file__).parents[2] / name


def recipe_names() -> tuple[str, ...]:
    """Return the names of the bundled recipes, sorted."""
    return tuple(sorted(path.stem for path in bundled("recipes").glob("*.toml")))


def find_recipe(wanted: str) -> Path:
    """Return the recipe file for a path or a bundled name.

    Raises:
        UsageError: There is neither; the message names the bundled ones.
    """
    path = Path(wanted).expanduser()
    if path.is_file():
        return path.resolve()
    shipped = bundled("recipes") / f"{wanted}.toml"
    if re.fullmatch(r"[A-Za-z0-9_-]+", wanted) and shipped.is_file():
        return shipped
    raise UsageError(
        f"no recipe {wanted!r}", f"give a file or one of: {', '.join(recipe_names()) or 'none'}"
    )
