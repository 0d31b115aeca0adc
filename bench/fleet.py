"""The demo's fleet for benches: whole runs of real processes, with busy processes beside them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedagent_cli.demo.prepare import prepare
from fedagent_cli.demo.result import summary
from fedagent_cli.demo.run import run_demo as play
from fedagent_cli.demo.view import View
from fedagent_cli.report.run_report import read_run_report

from .rows import ROOT

RECIPE = ROOT / "deploy" / "recipes" / "demo.toml"
_BUSY = [sys.executable, "-c", "while True: pass"]


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


def run_demo(
    folder: Path, *, seed: int, recipe: str = "demo", policy: str | None = None
) -> dict[str, object]:
    """Run the demo's fleet in a folder that stays, and return what it says; embedded brokers."""
    settings, plan = prepare(
        agents=None,
        edges=None,
        rounds=None,
        policy=policy,
        seed=seed,
        recipe=recipe,
        folder=folder,
    )
    finish = play(settings, plan, View(), caught=lambda: 0, broker="embedded")
    run = read_run_report(folder / "coordinator")
    return summary(finish, run, settings=settings, plan=plan, report=None)


def machine_load() -> float:
    """Return how many processes wanted a processor in the last minute, on average."""
    return float(Path("/proc/loadavg").read_text(encoding="ascii").split()[0])
