"""What a recipe's keys are, and errors that teach how to fix one."""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args, get_origin

import msgspec

from fedagent_task.errors import RecipeError
from fedagent_task.recipe.spec import Recipe

_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_MAX_SHOWN = 40
MAX_FAULTS = 64
"""Faults of a recipe that are looked for."""
Fault = tuple[str, str, str]
"""A dotted key, what is wrong with it, and the hint."""
Table = dict[str, object]
_HUMAN = {
    "be int": "be a whole number",
    "be float": "be a number",
    "str matching regex": "text matching",
    "be str": "be text",
    "array": "a list",
    "object": "a table",
}


@dataclass(frozen=True, slots=True)
class RecipeKey:
    """One key of a recipe: dotted name, what it holds, an example as TOML text."""

    name: str
    what: str
    example: str

    @property
    def hint(self) -> str:
        """How to write the key."""
        return f"write {self.what}, e.g. {self.name.rpartition('.')[2]} = {self.example}"


def recipe_keys() -> tuple[RecipeKey, ...]:
    """Return every key that a recipe may have, in the order of the reference."""
    keys = []
    for name, item in fields_of(Recipe):
        what, example = _said_of(item.type)
        if what:  # else no key of a person
            example = example or msgspec.json.encode(item.default).decode()
            keys.append(RecipeKey(name, what, example))
    return tuple(keys)


def fields_of(
    struct: type[msgspec.Struct], prefix: str = ""
) -> Iterator[tuple[str, msgspec.structs.FieldInfo]]:
    """Yield every section and key by its dotted name, a section before what is in it."""
    for item in msgspec.structs.fields(struct):
        name = prefix + item.encode_name
        yield name, item
        if isinstance(item.type, type) and issubclass(item.type, msgspec.Struct):
            yield from fields_of(item.type, name + ".")


def nearest_key(name: str, known: Sequence[str]) -> str:
    """Return the known key most like this one, by its last part if by nothing else; or ``""``."""
    if found := difflib.get_close_matches(name, known, n=1):
        return found[0]
    by_leaf = {key.rpartition(".")[2]: key for key in known}
    close = difflib.get_close_matches(name.rpartition(".")[2], list(by_leaf), n=1)
    return by_leaf[close[0]] if close else ""


def hint_of(name: str) -> str:
    """Return how to write this key or section."""
    if name in _KEYS:
        return _KEYS[name].hint
    return f"add a section [{name}]" if name and name in _SECTIONS else "see docs/recipe.md"


def refuse(faults: Sequence[Fault]) -> None:
    """Raise one `RecipeError` of all that is wrong; its key and reason are those of the first."""
    if faults:
        (key, reason, hint), *rest = faults
        more = (f"{key}: {reason}; {hint}" for key, reason, hint in rest)
        raise RecipeError(key, reason, " | ".join([hint, *more]))


def converted(plain: Table, given: Mapping[str, object]) -> tuple[Recipe | None, list[Fault]]:
    """Return a table as a recipe, and what is wrong with its keys, which then have their defaults.

    None where one that has no default is missing or wrong; `given` is the table as it was written.
    """
    faults: dict[str, Fault] = {}
    whole = True
    for _ in range(MAX_FAULTS):
        try:
            recipe = msgspec.convert(plain, Recipe)
            return recipe if whole else None, list(faults.values())
        except msgspec.ValidationError as error:
            fault = explain(error, given)
        key = fault[0]
        faults.setdefault(key, fault)
        if not _drop(plain, key.split(".")):
            whole = False
            _fill(plain, key)
    return None, list(faults.values())


def _drop(table: Table, path: Sequence[str]) -> bool:
    """Take a key out of a table; False if it is not there."""
    below = table.get(path[0])
    if len(path) == 1:
        return table.pop(path[0], table) is not table
    return isinstance(below, dict) and _drop(below, path[1:])


def _fill(table: Table, key: str) -> None:
    """Put examples in the place of a missing key, or of all that a section must have."""
    for name, item in fields_of(Recipe):
        if item.required and f"{name}.".startswith(f"{key}.") and name in _KEYS:
            section, _, leaf = name.rpartition(".")
            below = table.setdefault(section, {}) if section else table
            example = tomllib.loads(f"v = {_KEYS[name].example}")["v"]
            if isinstance(below, dict):
                below[leaf] = 1 if section == "budget" else example  # in micro-credits


def explain(error: msgspec.ValidationError, table: Mapping[str, object]) -> Fault:
    """Turn msgspec's error into one that names the key and the hint."""
    text = str(error)
    at = _PATH.search(text)
    path = at.group(1) if at else ""
    key = re.sub(r"\[.*", "", path)
    if unknown := _UNKNOWN.search(text):
        name = f"{key}.{unknown.group(1)}".lstrip(".")
        near = nearest_key(name, [*_KEYS, *_SECTIONS])
        return name, "unknown key", f"did you mean {near}?" if near else "see docs/recipe.md"
    if missing := _MISSING.search(text):
        name = f"{key}.{missing.group(1)}".lstrip(".")
        return name, "is missing", hint_of(name)
    return key or "recipe", _reason(text, key, table), hint_of(key)


def show(value: object) -> str:
    """Return a value for an error line, on one line and not too long."""
    text = "".join(c if c.isprintable() else "?" for c in _written(value))
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def _written(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return repr(value) if isinstance(value, str) else str(value)


def _reason(text: str, key: str, table: Mapping[str, object]) -> str:
    wanted = _PATH.sub("", text).replace("`", "")
    wanted = re.sub(r", got .*$", "", wanted)
    wanted = re.sub(r"^Expected (\S+ (?=[<>]))?", "must be ", wanted)
    if wanted.startswith("Invalid enum value"):
        wanted = "is not one of the allowed values"
    for machine, human in _HUMAN.items():
        wanted = wanted.replace(machine, human)
    return f"{wanted} (got {show(_value_at(table, key))})"


def _value_at(table: Mapping[str, object], key: str) -> object:
    value: object = table
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return "nothing"
        value = value[part]
    return "a table" if isinstance(value, Mapping) else value


def _said_of(annotation: object) -> tuple[str, str]:
    """Return what a key holds, and an example as TOML, empty if its default is one."""
    if annotation is bool:
        return "true or false", ""
    if get_origin(annotation) is Literal:
        names = list(filter(None, get_args(annotation)))
        return f"one of {', '.join(names)}", f'"{names[0]}"'
    for meta in reversed(get_args(annotation)):
        if isinstance(meta, msgspec.Meta) and meta.description:
            return meta.description, str((meta.examples or [""])[0])
    found = (_said_of(part) for part in get_args(annotation) if not isinstance(part, str))
    return next((said for said in found if said[0]), ("", ""))


_KEYS = {key.name: key for key in recipe_keys()}
_SECTIONS = ("", *dict.fromkeys(name.rpartition(".")[0] for name in _KEYS if "." in name))
