"""Read a testbed recipe: TOML, overrides, and which world uses which key.

``--set key.path=value`` overrides any key. What a world does not use is refused, not ignored.
"""

import difflib
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from fedagent_coordinator import iterations, placement
from fedagent_task.errors import RecipeError
from fedagent_task.recipe.explain import explain, fields_of, nearest_key, show
from fedagent_task.recipe.text import override, plain_values, read_table

from . import oracles
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
    **dict.fromkeys(("policy", "budget", "aggregation"), _STUDIES),
    **dict.fromkeys(("iterations", "placement", "model", "learner"), ("bas",)),
    "rounds.deadline_s": (*_PAIRS, "open"),
    **dict.fromkeys(("rounds.max_wait_s", "rounds.min_updates", "rounds.merge_every"), _PAIRS),
    "world.success": ("open",),
    **dict.fromkeys(("world.utility", "world.training"), _STUDIES),
    **dict.fromkeys(("world.visible", "world.churn"), _PAIRS),
    **dict.fromkeys(("world.radio", "world.change"), ("radio",)),
    **dict.fromkeys(("world.work", "world.repriced"), _DRAWN),
    "world.exchange": ("exchange",),
    "world.traces": ("traces",),
    **dict.fromkeys(("world.liars", "world.speeds", "world.bad_edge.slower"), _LINKED),
    **dict.fromkeys(
        (f"world.{key}" for key in ("late", "dying", "flips", "correlated", "cold", "missing")),
        _PAIRS,
    ),
    "world.bad_edge.fails": _PAIRS,
    "world.chances": ("chances",),
    "world.attackers": _STUDIES,
    "world.streaming": ("bas",),
}
"""Keys and sections that only these worlds use; the others are for all."""


def load_recipe(recipe: str | Path, sets: Iterable[str] = ()) -> TestbedRecipe:
    """Read a recipe by the name of one of ours, or from a file, with overrides ``key.path=value``.

    Nothing after the sign is the empty text. An override that changes the world leaves out what
    the recipe has for its own only.

    Raises:
        RecipeError: There is none, or a key is unknown, missing, out of range, or not used
            by the recipe's world.
    """
    table = _table(recipe)
    own_world, changes = _kind(table), list(sets)
    for assignment in changes:
        key, equals, value = assignment.partition("=")
        table = override(table, assignment if value.strip() or not equals else f'{key}=""')
    _check_policies(table)
    world = _converted(table).world.kind
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
    return _used(table, _kind(table), _kind(base), list(_leaves(mine)))


def _kind(table: Table) -> str:
    world = table.get("world", {})
    return str(world.get("kind", "radio")) if isinstance(world, Mapping) else "radio"


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
        known = [name for name, _ in fields_of(TestbedRecipe)]
        same = [name for name in known if name.count(".") == why.key.count(".")]
        near = nearest_key(why.key, same) or nearest_key(why.key, known)
        hint = f"did you mean {near}?" if near else hint
    return RecipeError(why.key, why.reason, hint)


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


def _leaves(table: Table, inside: str = "") -> Iterator[str]:
    """Yield every key by its dotted name; parameters of a policy, or any others, are one."""
    for name, value in table.items():
        key = f"{inside}{name}"
        if isinstance(value, Mapping) and (not inside or inside == "world."):
            yield from _leaves(value, f"{key}.")
        else:
            yield key


def _unused(key: str, world: str, table: Table) -> RecipeError | None:
    section, _, leaf = key.partition(".")
    if section == "policies":
        own = table[section]
        assert isinstance(own, Mapping)  # as are the policies' in it, by `_check_policies`
        base = leaf if world == "bas" else str(own[leaf].get("base", leaf))
        return _unknown_policy(leaf, base, world)
    worlds = next((_WORLDS[one] for one in (key, key.rpartition(".")[0]) if one in _WORLDS), None)
    if worlds is None or world in worlds:
        return None
    hint = f"leave it out, it is for {' and '.join(worlds)}"
    return RecipeError(_show_key(key), f"is not used by world {world}", hint)


def _unknown_policy(name: str, base: str, world: str) -> RecipeError | None:
    bas = world == "bas"
    known = (*iterations.names(), *placement.names()) if bas else oracles.names()
    if base in known:
        return None
    near = difflib.get_close_matches(base, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return RecipeError(_show_key(f"policies.{name}"), f"is no policy of world {world}", hint)


def _without(table: Table, path: list[str]) -> dict[str, object]:
    head, *rest = path
    inner = table[head]
    if not rest or not isinstance(inner, Mapping):
        return {key: value for key, value in table.items() if key != head}
    # A policy's name may have a point.
    names = [".".join(rest)] if head == "policies" else rest
    return {**table, head: _without(inner, names)}


def _show_key(key: str) -> str:
    return show(key)[1:-1]
