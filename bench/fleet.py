"""The demo's fleet for benches: whole runs of real processes, with busy processes beside them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .rows import ROOT, Row

RECIPE = ROOT / "deploy" / "recipes" / "demo.toml"
_BUSY = [sys.executable, "-c", "while True: pass"]
TIMEOUT_S = 400


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many processors busy meanwhile."""
    loops = [subprocess.Popen(_BUSY) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_demo(folder: Path, *arguments: str) -> Row:
    """Run the demo in a folder that stays, and return what it says; embedded brokers."""
    command = [sys.executable, "-m", "fedagent_cli", "demo", "--json", "--broker", "embedded"]
    done = subprocess.run(
        [*command, "--dir", str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(done.stderr[-1000:])
    result: Row = json.loads(lines[-1])
    return result


def machine_load() -> float:
    """Return how many processes wanted a processor in the last minute, on average."""
    return float(Path("/proc/loadavg").read_text(encoding="ascii").split()[0])
