"""Recipes in files: with the task that a model of kind graph names, or a task file alone.

What a task file tells takes the place of its path, so that a recipe's digest is about content.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedagent_protocol.errors import text_of
from fedagent_task.errors import RecipeError
from fedagent_task.recipe.explain import Table, refuse
from fedagent_task.recipe.spec import Recipe
from fedagent_task.recipe.task_checks import MAX_BUFFER_BYTES
from fedagent_task.recipe.text import override, read_table, recipe_from_table
from fedagent_task.task_file import SUFFIX, TaskFile, read_task_file

ROUNDS, CREDITS, BUFFER = 20, 20, 1000
"""Rounds, credits of an edge for one of them, and samples that a device keeps at most, where a
task file stands for a recipe."""
PATIENCE_S = 10.0
SLOW_BYTES_S = 500_000.0
"""What a deadline grants a device: this long, and its model both ways at this rate."""
LONGEST_S = 900.0
_TOLD = ("features", "classes", "program", "first", "once", "once_bytes")


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """A recipe, and the task that its model is of; None unless that is of kind graph."""

    recipe: Recipe
    task: TaskFile | None = None


def open_recipe(path: Path, sets: Iterable[str] = ()) -> RecipeFile:
    """Read a recipe, or a task file in the place of one, with overrides as `parse_recipe` has.

    Raises:
        RecipeError: It cannot be read, or a key is wrong.
        RecipeError: The task file cannot be used.
    """
    if path.suffix == SUFFIX:
        table: Table = {"model": {"kind": "graph", "task": path.name}}
    else:
        try:
            table = read_table(text_of(path.read_bytes()))
        except (OSError, UnicodeError) as error:
            raise RecipeError("recipe", f"{path} cannot be read", "name a file") from error
    for assignment in sets:
        table = override(table, assignment)
    filled, task = with_task(table, path.parent)
    if path.suffix == SUFFIX and task is not None:
        filled = _with_defaults(filled, task, path.stem)
    return RecipeFile(recipe_from_table(filled), task)


def with_task(table: Mapping[str, object], folder: Path) -> tuple[Table, TaskFile | None]:
    """Return a recipe's table with what its task file tells, and the task.

    The file is named relative to `folder`. Keys that a person sets in ``[learner]`` and
    ``data.labels`` come before those of the task.

    Raises:
        RecipeError: A key is given that the task file tells.
        RecipeError: It cannot be used.
    """
    model = table.get("model")
    named = model.get("task") if isinstance(model, Mapping) else None
    if not isinstance(model, Mapping) or model.get("kind") != "graph" or not isinstance(named, str):
        return dict(table), None
    twice = [key for key in _TOLD if key in model]
    refuse([(f"model.{key}", "is set by the task file", "leave it out") for key in twice])
    task = read_task_file(folder / Path(named).expanduser())
    told = {key: getattr(task.model, key) for key in _TOLD}
    rest = {key: value for key, value in model.items() if key != "task"}
    made: Table = {**table, "model": {**rest, **told}}
    _below(made, "learner", task.learner)
    _below(made, "data", {"labels": list(task.labels)} if task.labels else {})
    return made, task


def _below(table: Table, section: str, defaults: Mapping[str, object]) -> None:
    """Put defaults below the keys that a section has."""
    given = table.get(section, {})
    if defaults and isinstance(given, Mapping):
        table[section] = {**defaults, **given}


def _with_defaults(table: Mapping[str, object], task: TaskFile, stem: str) -> Table:
    """Return the table with what a recipe needs beside its model."""
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    named = name if re.match("[a-z]", name) else f"task-{name}".rstrip("-")
    made: Table = {"name": named[:64], **table}
    _below(made, "rounds", {"count": ROUNDS, "deadline_s": deadline_s(task)})
    _below(made, "budget", {"per_edge": CREDITS})
    buffer = min(BUFFER, MAX_BUFFER_BYTES // (4 * task.model.features) or 1)
    _below(made, "learner", {"buffer": buffer})
    return made


def deadline_s(task: TaskFile) -> float:
    """Return a deadline for rounds with this model, by its size."""
    nbytes = sum(tensor.nbytes for tensor in task.first.values())
    return min(LONGEST_S, PATIENCE_S + round(2 * nbytes / SLOW_BYTES_S, 1))
