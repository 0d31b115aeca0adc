"""Where things are: data directories and recipes."""

import os
import re
from pathlib import Path

from .errors import UsageError

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


def recipe_folder() -> Path:
    """Return the folder of the bundled recipes: in the wheel, or in the source tree."""
    inside = Path(__file__).parent / "recipes"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "recipes"


def unit_folder() -> Path:
    """Return the folder of the bundled units and their example files."""
    inside = Path(__file__).parent / "systemd"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "systemd"


def recipe_names() -> tuple[str, ...]:
    """Return the names of the bundled recipes, sorted."""
    return tuple(sorted(path.stem for path in recipe_folder().glob("*.toml")))


def find_recipe(wanted: str) -> Path:
    """Return the recipe file for a path or a bundled name.

    Raises:
        UsageError: There is neither; the message names the bundled ones.
    """
    path = Path(wanted).expanduser()
    if path.is_file():
        return path.resolve()
    bundled = recipe_folder() / f"{wanted}.toml"
    if re.fullmatch(r"[A-Za-z0-9_-]+", wanted) and bundled.is_file():
        return bundled
    raise UsageError(
        f"no recipe {wanted!r}", f"give a file or one of: {', '.join(recipe_names()) or 'none'}"
    )
