"""How large the house is, and how far one round walks through it: ``python -m bench house``.

Sizes count the lines of Python files under the product's folders and the tests. The walk
counts the named functions of ours that the processes of a field (one coordinator, one edge,
one device and its trainer) enter between the end of one round and the end of the next; the
files these stand in; and how often the file changes from one function to the next, in the
order in which each process first enters them. The route is the same round as docs/round.md
reads it, without what runs beside it (``bench.route``); its names must be among those entered.
"""

import itertools
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from . import route

ROOT = Path(__file__).parents[1]
PRODUCT = (
    "protocol",
    "agent",
    "edge_aggregator",
    "coordinator",
    "deploy/testbed",
    "deploy/cli",
    "deploy/python",
)
ROUNDS = 14
FIRST = 8
"""The first round that is looked at: by then everything that happens once has happened."""

SPY = """
import os, sys, struct, threading, time
root, out = os.environ["HOUSE_ROOT"], os.environ["HOUSE_OUT"]
log = open(os.path.join(out, f"{os.getpid()}.calls"), "ab", buffering=0)
names = open(os.path.join(out, f"{os.getpid()}.names"), "a", buffering=1)
known = {}
def spy(frame, event, arg):
    if event != "call":
        return
    code = frame.f_code
    number = known.get(code)
    if number is None:
        file = code.co_filename
        ours = file.startswith(root) and "site-packages" not in file and code.co_name[0] != "<"
        number = known[code] = len(known) + 1 if ours else 0
        if ours:
            file = code.co_filename[len(root) + 1:]
            names.write(f"{number}\\t{file}\\t{code.co_qualname}\\n")
    if number:
        log.write(struct.pack("<dI", time.monotonic(), number))
threading.setprofile(spy)
sys.setprofile(spy)
"""


def sizes() -> dict[str, object]:
    """Return lines and files of the product and of its tests."""

    def count(*folders: str) -> tuple[int, int]:
        files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
        return sum(len(file.read_text().splitlines()) for file in files), len(files)

    lines, files = count(*PRODUCT)
    tests, test_files = count("tests")
    return {
        "bench": "house",
        "product_lines": lines,
        "product_files": files,
        "test_lines": tests,
        "test_files": test_files,
    }


def walk() -> dict[str, object]:
    """Return what a round enters; medians over the rounds of one run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ends = _play(folder)
        calls = [_calls(file) for file in folder.glob("*.calls")]
    rounds = [_round(calls, ends[n - 1], ends[n]) for n in range(FIRST, ROUNDS)]
    entered = {(file, name) for process in calls for _, file, name in process}
    functions, files, changes = (statistics.median(row[i] for row in rounds) for i in range(3))
    return {
        "bench": "house-walk",
        "functions": functions,
        "files": files,
        "file_changes": changes,
        "rounds": len(rounds),
        "route_unseen": [f"{file}:{name}" for file, name in route.unseen(entered)],
    }


def _play(folder: Path) -> dict[int, float]:
    """Run a field under the spy; return when each round ended."""
    spy = folder / "spy"
    spy.mkdir()
    (spy / "sitecustomize.py").write_text(SPY)
    environment = {
        **os.environ,
        "PYTHONPATH": str(spy),
        "HOUSE_ROOT": str(ROOT),
        "HOUSE_OUT": str(folder),
    }

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fedagent_cli", *words, "--discovery", "loopback"]
        return subprocess.Popen(
            [*command, "--data-dir", str(folder / words[0]), "--site", "house", "--json"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    recipe = folder / "house.toml"
    lines = (ROOT / "deploy/recipes/digits.toml").read_text().replace("60", str(ROUNDS))
    # Back to back: what a round does, and little that happens beside it.
    recipe.write_text("\n".join(row for row in lines.splitlines() if "every_s" not in row))
    coordinator = start("coordinator", "start", "--recipe", str(recipe))
    others = [start("edge", "start"), start("start", "--stream", "digits")]
    ends: dict[int, float] = {}
    assert coordinator.stdout is not None
    for line in coordinator.stdout:
        event = msgspec.json.decode(line)
        if event["event"] == "round":
            ends[event["round"]] = time.monotonic()
        if len(ends) == ROUNDS:
            break
    for process in (*others, coordinator):
        process.terminate()
        process.communicate()
    return ends


def _calls(file: Path) -> list[tuple[float, str, str]]:
    """Return (when, file, function) of each call, from what the spy wrote."""
    rows = (row.split("\t") for row in file.with_suffix(".names").read_text().splitlines())
    names = {int(number): (where, function) for number, where, function in rows}
    data = file.read_bytes()
    whole = len(data) - len(data) % 12
    return [(at, *names[number]) for at, number in struct.iter_unpack("<dI", data[:whole])]


def _round(
    calls: list[list[tuple[float, str, str]]], start: float, end: float
) -> tuple[int, int, int]:
    functions: set[tuple[str, str]] = set()
    changes = 0
    for process in calls:
        entered = dict.fromkeys((file, name) for at, file, name in process if start < at <= end)
        functions |= entered.keys()
        files = [file for file, _ in entered]
        changes += sum(a != b for a, b in itertools.pairwise(files))
    return len(functions), len({file for file, _ in functions}), changes


def rows() -> Iterator[dict[str, object]]:
    yield sizes()
    yield route.route()
    yield walk()
