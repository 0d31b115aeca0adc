"""The page on security names for each threat the tests that cover it, and they are there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ROWS = {
    row[0].strip(): row
    for line in PAGE.splitlines()
    if re.match(r"\| [TP][0-9]+ \|", line)
    for row in [line.strip("| ").split(" | ")]
}


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the functions and classes that a file defines."""
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in found if isinstance(node, kinds))


@pytest.mark.parametrize(
    "threat", [*(f"P{n}" for n in range(1, 11)), *(f"T{n}" for n in range(1, 26))]
)
def test_each_promise_and_threat_has_a_row_with_tests_or_a_reason(threat: str) -> None:
    row = " | ".join(ROWS[threat])
    assert re.search(r"`tests/|not covered:", row), row


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 25
    for path, name in named:
        assert (ROOT / path).exists(), path
        assert not name or name in names_in(ROOT / path), f"{path}::{name}"


BANNED_MODULES = {"pickle", "cPickle", "dill", "marshal", "shelve", "yaml"}
BANNED_CALLS = {"eval", "exec", "os.system", "torch.load", "os.popen"}


def uses(path: Path) -> set[str]:
    """Return what of the banned a file imports or calls."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found |= {one.name.partition(".")[0] for one in names} & BANNED_MODULES
            case ast.ImportFrom(module=str(module)):
                found |= {module.partition(".")[0]} & BANNED_MODULES
            case ast.Call(func=func, keywords=keywords):
                found |= {ast.unparse(func)} & BANNED_CALLS
                found |= {
                    f"{one.arg}=True"
                    for one in keywords
                    if one.arg in ("shell", "allow_pickle")
                    and isinstance(one.value, ast.Constant)
                    and one.value.value is True
                }
    return found


def test_the_product_runs_no_code_that_data_brings() -> None:
    roots = ("agent", "edge_aggregator", "coordinator", "protocol", "deploy")
    files = [file for root in roots for file in (ROOT / root).rglob("*.py")]
    assert len(files) > 300
    assert {str(file.relative_to(ROOT)): found for file in files if (found := uses(file))} == {}


def test_the_ban_sees_what_it_bans(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import pickle\nfrom yaml import load\neval('1')\nrun('x', shell=True)\n")
    assert uses(bad) == {"pickle", "yaml", "eval", "shell=True"}
