"""Every setting and every option of a command is set by some test to what it is not by itself.

Read off the sources of the tests: a struct made with the field, a dotted key, a table of TOML, a
dict, an option. A name that several settings have counts only where it is said whose it is.
"""

import ast
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct, structs

from fedagent_agent.config import AgentConfig
from fedagent_coordinator.config import CoordinatorConfig
from fedagent_edge.config import EdgeConfig
from fedagent_node.settings import PASSWORD_VARIABLE
from fedagent_task.spec import Recipe

from .docs.test_docs import commands
from .documents import test_every_line  # noqa: F401 - it reads the pages
from .documents.pages import Page

ROOT = Path(__file__).parents[1]
ABOUT_ALL = {"test_options.py", "test_docs.py", "test_settings.py"}
"""They name options without setting them."""
UNKNOWN = object()
"""A value that is only known when the test runs."""
Setting = tuple[str, str, object]
"""The class that has it, its dotted name, its default."""


def struct_in(hint: Any) -> type[Struct] | None:
    if get_origin(hint) in (Annotated, Union, UnionType):
        return next(filter(None, map(struct_in, get_args(hint))), None)
    return hint if isinstance(hint, type) and issubclass(hint, Struct) else None


def settings(kind: type[Struct], *tables: str) -> Iterator[Setting]:
    hints = get_type_hints(kind, include_extras=True)
    for field in structs.fields(kind):
        path = (*tables, field.name)
        if inner := struct_in(hints[field.name]):
            yield from settings(inner, *path)
        else:
            made = getattr(field, "default_factory", None)
            default = made() if callable(made) else field.default
            yield kind.__name__, ".".join(path), default


KINDS = (Recipe, AgentConfig, EdgeConfig, CoordinatorConfig)
ALL = [one for kind in KINDS for one in settings(kind)]
SHARED = Counter(name.rpartition(".")[2] for name in {name for _, name, _ in ALL})


def value_of(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return UNKNOWN


def flat(table: dict[str, Any], *path: str) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        yield ".".join((*path, str(key))), value
        if isinstance(value, dict):
            yield from flat(value, *path, str(key))


@cache
def found() -> tuple[dict[str, list[object]], str]:
    """Return what the tests set, by `Class.field`, dotted key or bare name; and all their words."""
    said: dict[str, list[object]] = defaultdict(list)
    words = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.toml")]
    for page in Page.known.values():
        words += [line for line in page.commands if line not in page.skipped]
    for path in (ROOT / "tests").rglob("*.py"):
        if path.name in ABOUT_ALL:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func).rpartition(".")[2]
                for keyword in node.keywords:
                    value = value_of(keyword.value)
                    said[f"{called}.{keyword.arg}"].append(value)
                    said[str(keyword.arg)].append(value)
            elif isinstance(node, ast.Dict):
                for key, given in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant):
                        said[str(key.value)].append(value_of(given))
                table = value_of(node)
                for dotted, held in flat(table) if isinstance(table, dict) else ():
                    said[dotted].append(held)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.append(node.value)
    for text in words:
        try:
            table = tomllib.loads(text) if "=" in text else {}
        except tomllib.TOMLDecodeError:
            continue
        for dotted, held in flat(table):
            said[dotted].append(held)
    return said, "\n".join(words)


def read(text: str) -> object:
    """Return what is written behind a key; an f-string's own text ends there."""
    try:
        return tomllib.loads(f"x = {text}")["x"] if text else UNKNOWN
    except tomllib.TOMLDecodeError:
        return text


@pytest.mark.parametrize(("owner", "name", "default"), ALL, ids=lambda part: str(part)[:40])
def test_a_setting_is_set_by_a_test(owner: str, name: str, default: object) -> None:
    said, words = found()
    leaf = name.rpartition(".")[2]
    names = [f"{owner}.{leaf}", *([name] if "." in name else [])]
    names += [leaf] if SHARED[leaf] == 1 else []
    values = [value for key in names for value in said[key]]
    if "." in name:
        values += map(read, re.findall(rf"\b{re.escape(name)} ?= ?([^\s\"']*)", words))
    else:
        values += re.findall(rf"(?<![\w-])--{leaf.replace('_', '-')}(?![\w-])", words)
    assert any(value != default for value in values), (
        f"no test sets {name} of {owner}: write one that reads what it does"
    )


OWN = [
    (path, option)
    for path, options in commands()
    for option in options
    if path.removeprefix("fedagent ") not in {"start", "edge start", "coordinator start"}
]
"""Options of a role are its settings, read by one function (test_start.py)."""


@pytest.mark.parametrize(("path", "option"), OWN)
def test_an_option_is_given_by_a_test(path: str, option: str) -> None:
    given = re.search(rf"(?<![\w-]){option}(?![\w-])", found()[1])
    assert given, f"no test gives {option}, as to `{path}`"


def test_every_variable_is_set_by_a_test() -> None:
    folders = ("agent", "coordinator", "edge_aggregator", "protocol", "deploy", "tests")
    *code, tests = (
        "".join(
            path.read_text(encoding="utf-8")
            for path in (ROOT / folder).rglob("*.py")
            if path != Path(__file__)
        )
        for folder in folders
    )
    named = set(re.findall(r"\bFEDAGENT_[A-Z_]*[A-Z]\b", "".join(code)))
    unnamed = {name for name in named if name not in tests}
    assert unnamed <= {PASSWORD_VARIABLE}
    assert "PASSWORD_VARIABLE: " in tests  # it is set by its name in the code
