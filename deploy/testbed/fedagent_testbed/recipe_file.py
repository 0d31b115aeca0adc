"""Read a testbed recipe: TOML with overrides; one that the world does not use is refused."""

import difflib
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from fedagent_coordinator import iterations, placement
from fedagent_protocol.errors import text_of
from fedagent_task.errors import RecipeError
from fedagent_task.recipe.explain import explain, fields_of, nearest_key, refuse, show
from fedagent_task.recipe.text import not_finite, override, read_table

from . import oracles
from .recipe import TestbedRecipe, check_recipe

Table = Mapping[str, object]
_FOLDER = Path(__file__).parent / "recipes"
_WORLDS_FILE = Path(__file__).parent / "worlds.toml"
_BASE = "cocs-decisions"
"""What a world of the file is made of, if it names no other."""
_LINKED = ("radio", "traces")
_PAIRS = (*_LINKED, "chances", "recorded")
_ONLY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("iterations", "placement", "model", "learner", "world.streaming"), ("bas",)),
    **dict.fromkeys(("world.radio", "world.change"), ("radio",)),
    **dict.fromkeys(("world.liars", "world.speeds", "world.bad_edge.slower"), _LINKED),
    **dict.fromkeys(("world.work", "world.repriced"), (*_LINKED, "chances")),
    **dict.fromkeys(("world.visible", "world.churn", "world.late", "world.dying"), _PAIRS),
    **dict.fromkeys(("world.flips", "world.bad_edge.fails", "world.correlated"), _PAIRS),
    **dict.fromkeys(("world.cold", "world.missing", "rounds.min_updates"), _PAIRS),
    "rounds.deadline_s": (*_PAIRS, "open"),
    "world.success": ("open",),
    **{f"world.{kind}": (kind,) for kind in ("traces", "chances")},
}
"""Sections and keys that only these worlds use."""


def load_recipe(recipe: str | Path, sets: Iterable[str] = ()) -> TestbedRecipe:
    """Read a recipe by the name of one of ours, or from a file, with overrides ``key.path=value``.

    Nothing after the sign is the empty text.

    Raises:
        RecipeError: There is none, or a key is unknown, missing or out of range; or one is set
            that the recipe's world does not use.
    """
    table, changes = _table(recipe), list(sets)
    for assignment in changes:
        key, equals, value = assignment.partition("=")
        table = override(table, assignment if value.strip() or not equals else f'{key}=""')
    try:
        made = msgspec.convert(table, TestbedRecipe)
        refuse([*not_finite(table)])
    except msgspec.ValidationError as error:
        raise _explained(error, table) from error
    for assignment in changes:
        _check_used(assignment.partition("=")[0].replace(" ", ""), made.world.kind)
    _check_policies(made)
    check_recipe(made)
    return made


def recipe_names() -> tuple[str, ...]:
    """Return the names of the recipes that come with the testbed; its worlds are among them."""
    return tuple(sorted([*(path.stem for path in _FOLDER.glob("*.toml")), *world_names()]))


def world_names() -> tuple[str, ...]:
    """Return the recipes of worlds to hold a policy against, in the order of their file."""
    return tuple(_worlds())


@functools.cache
def _worlds() -> dict[str, Table]:
    table = read_table(_WORLDS_FILE.read_text(encoding="utf-8"))
    return {name: item for name, item in table.items() if isinstance(item, Mapping)}


def _table(recipe: str | Path) -> Table:
    """Return the keys of a recipe; a world's are those of its base with its own over them."""
    own = _worlds().get(str(recipe))
    if own is None:
        return read_table(_text(recipe))
    mine = {key: value for key, value in own.items() if key != "base"}
    return _merged(_table(str(own.get("base", _BASE))), {**mine, "name": str(recipe)})


def _merged(base: Table, over: Table) -> dict[str, object]:
    table = dict(base)
    for key, value in over.items():
        old = table.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        table[key] = _merged(old, value) if both else value  # type: ignore[arg-type]  # both are tables
    return table


def _text(recipe: str | Path) -> str:
    path = Path(recipe)
    if path.suffix != ".toml":
        path = _FOLDER / f"{recipe}.toml"
    try:
        return text_of(path.read_bytes())
    except (OSError, UnicodeError) as error:
        known = ", ".join(recipe_names())
        raise RecipeError(
            str(recipe)[:80], "cannot be read", f"name a .toml file, or one of {known}"
        ) from error


def _explained(error: msgspec.ValidationError, table: Table) -> RecipeError:
    key, reason, _ = explain(error, table)
    hint = "see docs/testbed.md"
    if reason == "unknown key":
        known = [name for name, _ in fields_of(TestbedRecipe)]
        same = [name for name in known if name.count(".") == key.count(".")]
        near = nearest_key(key, same) or nearest_key(key, known)
        hint = f"did you mean {near}?" if near else hint
    return RecipeError(key, reason, hint)


def _check_used(key: str, world: str) -> None:
    for only, worlds in _ONLY.items():
        if f"{key}.".startswith(f"{only}.") and world not in worlds:
            hint = f"leave it out, it is for {' and '.join(worlds)}"
            raise RecipeError(show(key)[1:-1], f"is not used by world {world}", hint)


def _check_policies(made: TestbedRecipe) -> None:
    known = (*oracles.names(), *iterations.names(), *placement.names())
    for name, params in made.policies.items():
        given = params.get("base")
        base = given if isinstance(given, str) else name
        if base not in known:
            near = difflib.get_close_matches(base, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise RecipeError(show(f"policies.{name}")[1:-1], "is no policy", hint)
