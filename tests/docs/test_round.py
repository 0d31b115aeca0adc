"""What docs/round.md names exists, so that a reader finds it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "round.md").read_text(encoding="utf-8")
STEPS = re.findall(r"^## (\d+)\. .*\n(.*(?:\n(?!## ).*)*)", PAGE, re.MULTILINE)
ROW = re.compile(r"^- `([\w/]+\.py)`: (`[\w.<>]+`(?:, `[\w.<>]+`)*)$", re.MULTILINE)


def functions(node: ast.AST, prefix: str = "") -> Iterator[str]:
    """The functions of a module by their qualified names."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef(name=name):
                yield from functions(child, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name
                yield from functions(child, f"{prefix}{name}.<locals>.")


def test_there_are_twelve_steps() -> None:
    assert [int(number) for number, _ in STEPS] == list(range(1, 13))


@pytest.mark.parametrize(("number", "step"), STEPS, ids=[number for number, _ in STEPS])
def test_every_function_of_a_step_exists(number: str, step: str) -> None:
    rows = ROW.findall(step)
    assert len(rows) == step.count("\n- "), f"step {number} has a line that is no row"
    assert rows
    for file, names in rows:
        known = set(functions(ast.parse((ROOT / file).read_text(encoding="utf-8"))))
        missing = set(re.findall(r"`(.+?)`", names)) - known
        assert not missing, f"step {number}: {file} has no {sorted(missing)}"
