"""Read a testbed recipe: TOML, overrides, and which world uses which key.

``--set key.path=value`` overrides any key. What a world does not use is refused, not ignored.
"""

import difflib
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from fedagent_task.errors import RecipeError
from fedagent_task.explain import explain, fields_of, nearest_key, show
from fedagent_task.recipe import override, plain_values, read_table

from .recipe import TestbedRecipe, check_recipe

Table = Mapping[str, object]
_FOLDER = Path(__file__).parent / "recipes"
_WORLDS_FILE = Path(__file__).parent / "worlds.toml"
_BASE = "cocs-decisions"
"""What a world of the file is made of, if it names no other."""
_LINKED = ("radio", "traces")
_PAIRS = (*_LINKED, "chances", "recorded")
_DRAWN = (*_LINKED, "chances")
_STUDIES = (*_PAIRS, "exchange", "open")
_WORLDS: dict[str, tuple[str, ...]] = {
    "success": ("open",),
    "utility": _STUDIES,
    "rounds.deadline_s": (*_PAIRS, "open"),
    "rounds.max_wait_s": _PAIRS,
    "rounds.min_updates": _PAIRS,
    "rounds.merge_every": _PAIRS,
    "budget": _STUDIES,
    "links": _PAIRS,
    "radio": ("radio",),
    "work": _DRAWN,
    "exchange": ("exchange",),
    "traces": ("traces",),
    "churn": _PAIRS,
    "liars": _LINKED,
    **dict.fromkeys(("late", "dying", "flips", "correlated", "cold", "missing"), _PAIRS),
    "bad_edge.fails": _PAIRS,
    "bad_edge.slower": _LINKED,
    "repriced": _DRAWN,
    "speeds": _LINKED,
    "chances": ("chances",),
    "change": ("radio",),
    "training": _STUDIES,
    "aggregation": _STUDIES,
    "streaming": ("bas",),
}
"""Keys and sections that only these worlds use; the others are for all."""
_RENAMED = {"training.judged_on": "training.evaluated_on"}


def load_recipe(recipe: str | Path, sets: Iterable[str] = ()) -> TestbedRecipe:
    """Read a recipe by the name of one of ours, or from a file, with overrides ``key.path=value``.

    Nothing after the sign is the empty text. An override that changes the world leaves out what
    the recipe has for its own only.

    Raises:
        RecipeError: There is none, or a key is unknown, missing, out of range, or not used
            by the recipe's world.
    """
    table = _table(recipe)
    own_world, changes = str(table.get("world", "radio")), list(sets)
    for assignment in changes:
        key, equals, value = assignment.partition("=")
        table = override(table, assignment if value.strip() or not equals else f'{key}=""')
    _check_policies(table)
    world = _converted(table).world
    keys = [assignment.partition("=")[0].replace(" ", "") for assignment in changes]
    made = _converted(_used(table, world, own_world, keys))
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
    base = _table(str(own.get("base", _BASE)))
    mine = {key: value for key, value in own.items() if key != "base"}
    table = _merged(base, {**mine, "name": str(recipe)})
    world, before = (str(one.get("world", "radio")) for one in (table, base))
    return _used(table, world, before, list(_leaves(mine)))


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
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(recipe_names())
        raise RecipeError(
            str(recipe)[:80], "cannot be read", f"name a .toml file, or one of {known}"
        ) from error


def _converted(table: Table) -> TestbedRecipe:
    try:
        return msgspec.convert(plain_values(table, "", _finite), TestbedRecipe)
    except msgspec.ValidationError as error:
        raise _explained(error, table) from error


def _finite(_key: str) -> str:
    return "write a finite number"


def _explained(error: msgspec.ValidationError, table: Table) -> RecipeError:
    why = explain(error, table)
    hint = "see docs/testbed.md"
    if why.reason == "unknown key":
        near = _nearest(why.key)
        hint = f"did you mean {near}?" if near else hint
    return RecipeError(why.key, why.reason, hint)


def _nearest(key: str) -> str:
    if key in _RENAMED:
        return _RENAMED[key]
    return nearest_key(key, [name for name, _ in fields_of(TestbedRecipe)])


def _check_policies(table: Table) -> None:
    section = table.get("policies", {})
    if not isinstance(section, Mapping):
        reason = f"must be a table (got {show(section)})"
        raise RecipeError("policies", reason, "write policies.NAME.KEY=VALUE")
    for name, params in section.items():
        if not isinstance(params, Mapping):
            key = _show_key(f"policies.{name}")
            reason = f"must be a table (got {show(params)})"
            raise RecipeError(key, reason, f"write {key}.KEY=VALUE")


def _used(table: Table, world: str, own_world: str, sets: Collection[str]) -> dict[str, object]:
    """Return a table without the keys that it has for its own world, where that was changed."""
    for key in _leaves(table):
        if error := _unused(key, world, table):
            overridden = any(key == one or key.startswith(f"{one}.") for one in sets)
            if world == own_world or overridden:
                raise error
            table = _without(table, key.split("."))
    return dict(table)


def _leaves(table: Table) -> Iterator[str]:
    """Yield every key that a section or a policy is given; a whole policy is one."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{key}" for key in value)
        else:
            yield name


def _unused(key: str, world: str, table: Table) -> RecipeError | None:
    section, _, leaf = key.partition(".")
    if section == "policies":
        own = table[section]
        assert isinstance(own, Mapping)  # as are the policies' in it, by `_check_policies`
        base = leaf if world == "bas" else str(own[leaf].get("base", leaf))
        return _unknown_policy(leaf, base, world)
    worlds = _WORLDS.get(key) or _WORLDS.get(section)
    if worlds is None or world in worlds:
        return None
    hint = f"leave it out, it is for {' and '.join(worlds)}"
    return RecipeError(_show_key(key), f"is not used by world {world}", hint)


def _unknown_policy(name: str, base: str, world: str) -> RecipeError | None:
    from fedagent_coordinator import placement  # noqa: PLC0415 - heavy imports
    from fedagent_coordinator.core import iterations  # noqa: PLC0415

    from . import oracles  # noqa: PLC0415

    bas = world == "bas"
    known = (*iterations.names(), *placement.names()) if bas else oracles.names()
    if base in known:
        return None
    near = difflib.get_close_matches(base, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return RecipeError(_show_key(f"policies.{name}"), f"is no policy of world {world}", hint)


def _without(table: Table, path: list[str]) -> dict[str, object]:
    head, *rest = path
    if not rest:
        return {key: value for key, value in table.items() if key != head}
    inner = table[head]
    assert isinstance(inner, Mapping), "a leaf was found in it"
    return {**table, head: _without(inner, [".".join(rest)])}


def _show_key(key: str) -> str:
    return show(key)[1:-1]
