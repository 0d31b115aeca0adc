"""How far a reader of one round walks: the functions that docs/round.md names, step by step.

The page is read, not traced: a step's functions are those that decide, change, keep or pass on
the round's data, from where it comes in to where it goes out. ``unseen`` finds the names that no
process of a field really entered.
"""

import ast
import itertools
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "round.md"

Function = tuple[str, str]
"""A file below the root, and the qualified name of a function in it."""


def steps(page: str) -> dict[str, list[Function]]:
    """Return the functions of each step, in the order of the page."""
    found: dict[str, list[Function]] = {}
    for line in page.splitlines():
        if line.startswith("## "):
            step = found.setdefault(line[3:], [])
        elif row := re.match(r"- `([\w/]+\.py)`: (.*)", line):
            step += [(row[1], name) for name in re.findall(r"`([\w.<>]+)`", row[2])]
    return {step: functions for step, functions in found.items() if functions}


@cache
def spans(file: str) -> dict[str, int]:
    """Return how many lines each function of a file has, by qualified name."""
    found = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + child.name] = (child.end_lineno or child.lineno) - child.lineno + 1
                visit(child, f"{prefix}{child.name}.<locals>.")

    visit(ast.parse((ROOT / file).read_text(encoding="utf-8")), "")
    return found


def route() -> dict[str, object]:
    """Return functions, lines, files and changes of file, summed over the steps."""
    read = steps(PAGE.read_text(encoding="utf-8"))
    return {
        "bench": "house-route",
        "functions": sum(map(len, read.values())),
        "lines": sum(spans(file)[name] for step in read.values() for file, name in step),
        "files": len({file for step in read.values() for file, _ in step}),
        "file_changes": sum(
            a != b for step in read.values() for (a, _), (b, _) in itertools.pairwise(step)
        ),
    }


def unseen(entered: set[Function]) -> list[Function]:
    """Return the functions of the page that were not entered."""
    read = steps(PAGE.read_text(encoding="utf-8"))
    return sorted({one for step in read.values() for one in step} - entered)
