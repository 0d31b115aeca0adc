"""What a recipe's keys are, and errors that teach how to fix one."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, get_args, get_origin

import msgspec

from fedagent_task.errors import RecipeError
from fedagent_task.recipe.spec import Recipe

_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_MAX_SHOWN = 40
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
    return tuple(
        RecipeKey(name, meta.description or "", str((meta.examples or [""])[0]))
        for name, item in fields_of(Recipe)
        if (meta := next(_metas(item.type), None)) is not None  # else no key of a person
    )


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
    if name in _SECTIONS:
        return f"add a section [{name}]" if name else "see docs/recipe.md"
    return "see docs/recipe.md"


def explain(error: msgspec.ValidationError, table: Mapping[str, object]) -> RecipeError:
    """Turn msgspec's error into one that names the key and the hint."""
    text = str(error)
    at = _PATH.search(text)
    path = at.group(1) if at else ""
    key = re.sub(r"\[.*", "", path)
    if unknown := _UNKNOWN.search(text):
        name = _join(key, unknown.group(1))
        near = nearest_key(name, [*_KEYS, *_SECTIONS])
        return RecipeError(
            _short(name), "unknown key", f"did you mean {near}?" if near else "see docs/recipe.md"
        )
    if missing := _MISSING.search(text):
        name = _join(key, missing.group(1))
        return RecipeError(name, "is missing", hint_of(name))
    return RecipeError(key or "recipe", _reason(text, key, table), hint_of(key))


def show(value: object) -> str:
    """Return a value for an error line, on one line and not too long."""
    return _short(_written(value))


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


def _metas(annotation: object) -> Iterator[msgspec.Meta]:
    if get_origin(annotation) is Annotated:
        inner, *metas = get_args(annotation)
        yield from (m for m in metas if isinstance(m, msgspec.Meta) and m.description)
        yield from _metas(inner)
    else:
        for part in get_args(annotation):
            yield from _metas(part)


def _join(section: str, leaf: str) -> str:
    return f"{section}.{leaf}" if section else leaf


def _short(text: str) -> str:
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


_KEYS = {key.name: key for key in recipe_keys()}
_SECTIONS = ("", *dict.fromkeys(name.rpartition(".")[0] for name in _KEYS if "." in name))
