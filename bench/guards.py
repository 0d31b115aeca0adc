"""How well the tests guard the product: ``python -m bench.guards {mutants,sabotages}``.

A *mutant* is the product with one expression or statement changed at random (seeded). It is
killed when a test of its component fails. A *sabotage* is one of the named defects of
``sabotages.toml``, each against a promise: every one of them must be caught.

Each is tried in a copy of the tracked files, with the tests that the table ``TESTS`` names for the
changed file, then with ``tests/world``; no test changes your checkout. Several processes may share
one file of results (``--out``): what stands in it is not tried again.

    python -m bench.guards mutants --count 200 --seed 7 --out mutants.jsonl
    python -m bench.guards sabotages --only pay
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SABOTAGES = Path(__file__).with_name("sabotages.toml")
HANG_S = 900
"""A run of tests that takes longer hangs: the change is caught."""
PYTHON_PATH = (
    "agent",
    "coordinator",
    "edge_aggregator",
    "protocol",
    "deploy/testbed",
    "deploy/cli",
    "deploy/python",
)
C, A, E = (
    "coordinator/fedagent_coordinator",
    "agent/fedagent_agent",
    "edge_aggregator/fedagent_edge",
)
# The code that is changed, and the tests that are to notice, nearest first.
TESTS = {
    f"{A}/core": ("tests/agent",),
    f"{E}/core": ("tests/edge_aggregator",),
    f"{E}/store.py": ("tests/edge_aggregator",),
    f"{E}/at_work.py": ("tests/edge_aggregator",),
    f"{E}/models.py": ("tests/edge_aggregator",),
    f"{E}/spool.py": ("tests/edge_aggregator",),
    f"{C}/core": ("tests/coordinator/core", "tests/coordinator"),
    f"{C}/books": ("tests/coordinator/books", "tests/coordinator"),
    f"{C}/policies": ("tests/coordinator/policies", "tests/checks"),
}
ALSO = {
    "protocol/fedagent_protocol": ("tests/protocol", "tests/coordinator/core"),
    "protocol/fedagent_task/aggregation": ("tests/task", "tests/checks", "tests/edge_aggregator"),
    "protocol/fedagent_node": ("tests/node", "tests/agent"),
    f"{C}": ("tests/coordinator",),
    f"{A}": ("tests/agent",),
}
"""Where sabotages are found besides, and their tests."""
COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
COMPARED |= {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
COMPARED |= {ast.In: ast.NotIn, ast.NotIn: ast.In}
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult}


@dataclass(frozen=True, kw_only=True)
class Change:
    """One changed file: its name, what was done, and its new text."""

    name: str
    file: str
    text: str


def mutated(node: ast.AST) -> ast.AST | None:
    """Return what a node becomes; None for one that stays."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[kind, *_]) if type(kind) in COMPARED:
            changed.ops[0] = COMPARED[type(kind)]()
        case ast.BinOp(op=kind) if type(kind) in ARITHMETIC:
            changed.op = ARITHMETIC[type(kind)]()
        case ast.BoolOp(op=kind):
            changed.op = ast.Or() if isinstance(kind, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            changed.value = not value
        case ast.Constant(value=int(value)):
            changed.value = value + 1
        case ast.If(test=test) | ast.IfExp(test=test):
            changed.test = ast.UnaryOp(ast.Not(), test)
        case ast.Expr(value=ast.Call()):
            return ast.Pass()
        case ast.Return(value=ast.expr()):
            return ast.Return(ast.Constant(None))
        case _:
            return None
    return changed


def changeable(tree: ast.AST) -> list[ast.AST]:
    """Return the nodes inside functions that a mutant may change, in the order of the walk."""
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in function.body
        for node in ast.walk(line)
    }
    nodes = (node for node in ast.walk(tree) if id(node) in inside)
    return [node for node in nodes if mutated(node) is not None]


def mutants(count: int, seed: int) -> Iterator[Change]:
    """Return seeded mutants; each place of the code is as likely as any other."""
    places = []
    for part in TESTS:
        found = ROOT / part
        for path in sorted(found.rglob("*.py")) if found.is_dir() else [found]:
            places += [(path, at) for at in range(len(changeable(ast.parse(path.read_text()))))]
    for path, at in random.Random(seed).sample(places, count):
        yield mutant(path, at)


def mutant(path: Path, at: int) -> Change:
    """Return the mutant of one place."""
    tree = ast.parse(path.read_text())
    old = changeable(tree)[at]
    new = mutated(old)
    assert new is not None

    class Swap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return new if node is old else self.generic_visit(node)

    was = ast.unparse(old).splitlines()[0]
    text = ast.unparse(ast.fix_missing_locations(Swap().visit(tree)))
    file = str(path.relative_to(ROOT))
    line = getattr(old, "lineno", 0)
    return Change(name=f"{file}:{line} {was} -> {ast.unparse(new)[:60]!r}", file=file, text=text)


def sabotages() -> Iterator[Change]:
    """Return the named defects; one whose place has moved is an error of the list."""
    for name, row in tomllib.loads(SABOTAGES.read_text()).items():
        text = (ROOT / row["file"]).read_text()
        if text.count(row["old"]) != 1:
            sys.exit(f"guards: sabotage {name}: its text is not in {row['file']} once; edit it")
        changed = text.replace(row["old"], row["new"])
        yield Change(name=name, file=row["file"], text=changed)


def caught(change: Change, folder: Path) -> str:
    """Try a change in a copy of the checkout; return the test that failed, empty if none did."""
    target = folder / change.file
    before = target.read_text()
    target.write_text(change.text)
    paths = os.pathsep.join(str(folder / part) for part in (*PYTHON_PATH, "."))
    table = {**TESTS, **ALSO}
    tests = next(found for part, found in table.items() if change.file.startswith(part))
    world = ("tests/world",) if (folder / "tests/world").is_dir() else ()
    try:
        return next(
            filter(None, (failed(chosen, folder, paths) for chosen in (*tests, *world))), ""
        )
    finally:
        target.write_text(before)


def failed(tests: str, folder: Path, paths: str) -> str:
    """Run some tests of the copy, as `make test` does; return the first that failed."""
    command = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", tests]
    command += ["-m", "not nightly", "--ignore=tests/checks/test_sabotages.py"]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths, "CI": "1"},
            capture_output=True,
            check=False,
            timeout=HANG_S,
        )
    except subprocess.TimeoutExpired:
        return f"{tests}: hangs"
    if done.returncode in {0, 5}:
        return ""
    lines = done.stdout.decode().splitlines()
    return next((line for line in lines if line.startswith(("FAILED", "ERROR"))), tests)


def main() -> int:
    """Try the changes that are asked for; one line of JSON each, and the sum at the end."""
    parser = argparse.ArgumentParser(prog="bench.guards", description=__doc__)
    parser.add_argument("kind", choices=("mutants", "sabotages"))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only names with this text")
    parser.add_argument("--out", type=Path, help="results so far, one line of JSON each")
    args = parser.parse_args()
    known = set()
    if args.out and args.out.exists():
        known = {json.loads(line)["name"] for line in args.out.read_text().splitlines()}
    changes = mutants(args.count, args.seed) if args.kind == "mutants" else sabotages()
    tried = survived = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True)
        for file in listed.stdout.decode().splitlines():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, folder / file)
        for change in changes:
            if change.name in known or args.only not in change.name:
                continue
            by = caught(change, folder)
            tried, survived = tried + 1, survived + (not by)
            line = json.dumps({"name": change.name, "caught": bool(by), "by": by})
            print(line, flush=True)
            if args.out:
                with args.out.open("a") as results:
                    results.write(line + "\n")
    print(json.dumps({"bench": f"guards {args.kind}", "tried": tried, "survived": survived}))
    return 1 if survived and args.kind == "sabotages" else 0


if __name__ == "__main__":
    sys.exit(main())
