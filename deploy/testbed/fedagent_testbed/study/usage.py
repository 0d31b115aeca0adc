"""Which world uses which key of a testbed recipe; what is not used is refused, not ignored."""

import difflib
from collections.abc import Collection, Iterator, Mapping

from fedagent_task.errors import RecipeError
from fedagent_task.explain import show

Table = Mapping[str, object]
_LINKED = ("radio", "traces")
_STUDIES = ("radio", "traces", "exchange", "open")
_WORLDS: dict[str, tuple[str, ...]] = {
    "success": ("open",),
    "utility": _STUDIES,
    "rounds.deadline_s": (*_LINKED, "open"),
    "rounds.max_wait_s": _LINKED,
    "rounds.min_updates": _LINKED,
    "rounds.merge_every": _LINKED,
    "budget": _STUDIES,
    "links": _LINKED,
    "radio": ("radio",),
    "work": _LINKED,
    "exchange": ("exchange",),
    "traces": ("traces",),
    "churn": _LINKED,
    "liars": _LINKED,
    "change": ("radio",),
    "training": _STUDIES,
    "streaming": ("bas",),
}
"""Keys and sections that only these worlds use; the others are for all."""


def used(table: Table, world: str, own_world: str, sets: Collection[str]) -> dict[str, object]:
    """Return a table without the keys of another world.

    Args:
        table: The recipe, overrides included.
        world: What it says, with them.
        own_world: What it says without them: keys that were there for that world may go.
        sets: The dotted keys of the overrides.

    Raises:
        RecipeError: A key is not used by the world that it was written for.
    """
    for key in _leaves(table):
        if error := _unused(key, world):
            overridden = any(key == one or key.startswith(f"{one}.") for one in sets)
            if world == own_world or overridden:
                raise error
            table = _without(table, key.split("."))
    return dict(table)


def check_policies(table: Table) -> None:
    """Check that parameters are given policy by policy.

    Raises:
        RecipeError: The section, or one in it, is a value.
    """
    section = table.get("policies", {})
    if not isinstance(section, Mapping):
        raise RecipeError(
            "policies", f"must be a table (got {show(section)})", "write policies.NAME.KEY=VALUE"
        )
    for name, params in section.items():
        if not isinstance(params, Mapping):
            key = f"policies.{name}"
            reason = f"must be a table (got {show(params)})"
            raise RecipeError(show_key(key), reason, f"write {show_key(key)}.KEY=VALUE")


def show_key(key: str) -> str:
    """Return a key for an error line."""
    return show(key)[1:-1]


def _leaves(table: Table) -> Iterator[str]:
    """Yield every key that a section or a policy is given; a whole policy is one."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{key}" for key in value)
        else:
            yield name


def _unused(key: str, world: str) -> RecipeError | None:
    section, _, leaf = key.partition(".")
    if section == "policies":
        return _unknown_policy(leaf, world)
    worlds = _WORLDS.get(key) or _WORLDS.get(section)
    if worlds is None or world in worlds:
        return None
    hint = f"leave it out, it is for {' and '.join(worlds)}"
    return RecipeError(show_key(key), f"is not used by world {world}", hint)


def _unknown_policy(name: str, world: str) -> RecipeError | None:
    from fedagent_coordinator import placement, policies  # noqa: PLC0415 - heavy imports
    from fedagent_coordinator.core import iterations  # noqa: PLC0415

    bas = world == "bas"
    known = (*iterations.names(), *placement.names()) if bas else policies.names()
    if name in known:
        return None
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return RecipeError(show_key(f"policies.{name}"), f"is no policy of world {world}", hint)


def _without(table: Table, path: list[str]) -> dict[str, object]:
    head, *rest = path
    if not rest:
        return {key: value for key, value in table.items() if key != head}
    inner = table[head]
    assert isinstance(inner, Mapping), "a leaf was found in it"
    return {**table, head: _without(inner, [".".join(rest)])}
