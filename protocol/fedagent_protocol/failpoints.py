"""Named crash points: what a test can make a process die of, at a chosen step.

``FEDAGENT_FAILPOINT=name:kill`` ends the own process with SIGKILL when it comes
to ``hit("name")``; ``name:kill@3`` does so at the third time. Several points are
separated by commas. Unset, a hit is one call that returns.
"""

import os
import signal
from collections.abc import Callable
from typing import Never

VARIABLE = "FEDAGENT_FAILPOINT"

Checkpoint = Callable[[str], None]
"""What a runtime calls between any two disk effects; `hit` by default."""


def parse(text: str) -> dict[str, int]:
    """Return how many hits each named point survives; raises `ValueError`."""
    points: dict[str, int] = {}
    for item in filter(None, text.split(",")):
        name, _, action = item.strip().partition(":")
        verb, _, count = action.partition("@")
        if not name or verb != "kill" or (count and not count.isdigit()) or count == "0":
            raise ValueError(f"{VARIABLE}={text[:80]!r}: use name:kill or name:kill@N")
        points[name] = int(count or "1") - 1
    return points


def hit(name: str) -> None:
    """Die here if the environment asks for it."""
    if _points:
        _count_down(name)


def _count_down(name: str) -> None:
    left = _points.get(name)
    if left is None:
        return
    if left == 0:
        _die()
    _points[name] = left - 1


def _die() -> Never:
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit(137)  # unreachable after SIGKILL; keeps the type honest


_points = parse(os.environ.get(VARIABLE, ""))
