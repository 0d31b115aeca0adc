"""How large the house is: ``python -m bench size [--json]``.

Product folders count lines, files and tokens of Python (the tokenizer's, without comments,
docstrings, newlines and indents). Circles are groups of modules that import each other, with
imports inside functions and without those for type checkers. Leaves are commands of
``fedagent`` that have none below them.
"""

import ast
import io
import json
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from fedagent_cli.main import app

from .rows import ROOT, Row, Rows

PRODUCT = ("protocol", "agent", "edge_aggregator", "coordinator", "deploy")
SIDE_BY_SIDE = 16
TICKS = {"tick", "next_due", "due"}
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
Graph = dict[str, set[str]]


def lines(files: list[Path]) -> int:
    """Return how many lines some files have."""
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def python(folder: str) -> list[Path]:
    """Return the Python files below a folder of the repository."""
    return sorted((ROOT / folder).rglob("*.py"))


def tokens(source: str) -> int:
    """Return the tokens of a source."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
    }
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(
        token.type not in SILENT
        and (token.type != tokenize.STRING or token.start not in docstrings)
        for token in found
    )


def imports(tree: ast.AST, package: str) -> Iterator[tuple[str, bool]]:
    """Yield the modules that a tree imports, and whether a function does; none for types only."""

    def visit(node: ast.AST, inside: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from ((name.name, inside) for name in child.names)
            elif isinstance(child, ast.ImportFrom):
                above = package.split(".")[: package.count(".") + 2 - child.level]
                base = ".".join([*(above if child.level else []), *filter(None, [child.module])])
                yield base, inside
                yield from ((f"{base}.{name.name}", inside) for name in child.names)
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from visit(child, inside or function)

    return visit(tree, inside=False)


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of modules that reach each other, by names in order."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        ahead = [start]
        while ahead:
            ahead += (new := graph[ahead.pop()] - found)
            found |= new
        return found

    reach = {name: reached(name) for name in graph}
    groups = {
        tuple(sorted(other for other in reach[name] if name in reach[other]))
        for name in graph
        if name in reach[name]
    }
    return sorted(map(list, groups))


def modules() -> dict[str, tuple[Path, str]]:
    """Return the product's modules by name: file, and the package that its dots count from."""
    found = {}
    for file in (file for folder in PRODUCT for file in python(folder)):
        top = file.parent
        while (top / "__init__.py").exists():
            top = top.parent
        parts = file.relative_to(top).with_suffix("").parts
        package = ".".join(parts[:-1])
        found[package if parts[-1] == "__init__" else ".".join(parts)] = (file, package)
    return found


def structure() -> dict[str, object]:
    """Return crowded folders, imports inside functions, and circles."""
    inner = 0
    kinds: Counter[str] = Counter()
    graph: Graph = {}
    known = modules()
    for name, (file, package) in known.items():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        inner += sum(
            isinstance(inside, ast.Import | ast.ImportFrom)
            for inside in {
                inside
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                for inside in ast.walk(node)
            }
        )
        for node in ast.walk(tree):
            name_of = getattr(node, "name", "") or ""
            kinds["errors"] += isinstance(node, ast.ClassDef) and name_of.endswith("Error")
            kinds["ticks"] += isinstance(node, ast.FunctionDef) and name_of.lstrip("_") in TICKS
            if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
                # What is signed in bytes of its own begins so.
                kinds["statements"] += node.value.startswith(b"fedagent/")
        # A package's own file stands above its modules: naming it imports nothing of theirs.
        graph[name] = {
            one for one, _ in imports(tree, package) if one in known and not name.startswith(one)
        }
    crowd = Counter(str(file.parent.relative_to(ROOT)) for file, _ in known.values())
    return {
        "crowded_folders": {name: n for name, n in crowd.most_common() if n > SIDE_BY_SIDE},
        "imports_in_functions": inner,
        "circles": circles(graph),
        "error_classes": kinds["errors"],
        "tick_functions": kinds["ticks"],
        "own_statements": kinds["statements"],
    }


def leaves(command: click.Command, context: click.Context) -> int:
    """Return how many commands stand at the end of the tree, hidden ones left out."""
    if command.hidden:
        return 0
    if not isinstance(command, click.Group):
        return 1
    below = [command.get_command(context, name) for name in command.list_commands(context)]
    return sum(leaves(one, click.Context(one, parent=context)) for one in below if one)


def size() -> Row:
    """Count everything."""
    folders = {
        folder: {
            "lines": lines(files := python(folder)),
            "files": len(files),
            "tokens": sum(tokens(file.read_text(encoding="utf-8")) for file in files),
        }
        for folder in PRODUCT
    }
    return {
        "bench": "size",
        "folders": folders,
        "product": {
            key: sum(one[key] for one in folders.values()) for key in ("lines", "files", "tokens")
        },
        "tests_lines": lines(python("tests")),
        "bench_lines": lines(python("bench")),
        "docs_lines": lines(sorted((ROOT / "docs").rglob("*.md"))),
        **structure(),
        "leaf_commands": leaves(app, click.Context(app)),
    }


def rows() -> Rows:
    yield size()


def main() -> int:
    """Print the count, for people or as one line of JSON."""
    row = size()
    if "--json" in sys.argv:
        print(json.dumps(row))
        return 0
    for key, value in row.items():
        if isinstance(value, dict):
            print(key)
            for name, one in value.items():
                print(f"  {name:24} {one}")
        elif isinstance(value, list):
            print(f"{key:26} {len(value)}")
            print(*(f"  {' '.join(one)}" for one in value), sep="\n")
        else:
            print(f"{key:26} {value}")
    return 0
