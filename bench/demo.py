"""The demo as a newcomer runs it: time to the first round, and from a fresh clone to its end."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .rows import ROOT, Rows


def _demo(*arguments: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="fedagent-bench-") as folder:
        command = [sys.executable, "-m", "fedagent_cli", "demo", "--json", "--dir", folder]
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=400, check=True
        )
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def first_round(repeats: int = 5) -> dict[str, object]:
    """Seconds from typing `fedagent demo` to the end of the first round."""
    seconds = [float(str(_demo("--rounds", "1")["seconds_to_first_round"])) for _ in range(repeats)]
    median = statistics.median(seconds)
    return {
        "bench": "first-round",
        "seconds": seconds,
        "median": median,
        "bar": 8,
        "met": median <= 8,
    }


def fresh() -> dict[str, object]:
    """Clone, `make demo`: seconds to the first round and to the end, set-up included."""
    with tempfile.TemporaryDirectory(prefix="fedagent-bench-") as folder:
        clone = Path(folder) / "fedagent"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        before, began = os.times(), time.monotonic()
        done = subprocess.run(
            ["make", "-s", "demo", "ARGS=--json"],
            cwd=clone,
            capture_output=True,
            text=True,
            timeout=900,
            check=True,
        )
        wall, after = time.monotonic() - began, os.times()
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    result = lines[-1]
    demo_s = float(result["seconds"])
    first = wall - demo_s + float(result["seconds_to_first_round"])
    cpu = after.children_user + after.children_system - before.children_user
    return {
        "bench": "fresh",
        "seconds_to_first_round": round(first, 1),
        "seconds": round(wall, 1),
        "cpu_seconds": round(cpu - before.children_system, 1),
        "rounds_done": result["rounds_done"],
        "accuracy": result["accuracy"],
        "bar": 40,
        "met": first <= 40 and wall <= 150,
    }


def rows() -> Rows:
    yield first_round()
    yield fresh()
