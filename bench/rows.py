"""What benches share: rows on standard output, seconds of a piece of work, tests as a row."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

Row = dict[str, object]
Rows = Iterator[Row]


def show(rows: Iterable[Row]) -> bool:
    """Print each row as it comes, one line of JSON; return whether every bar was met."""
    met = True
    for row in rows:
        print(json.dumps(row), flush=True)
        met &= bool(row.get("met", True))
    return met


def seconds_of(
    work: Callable[[], object], *, times: int, clock: Callable[[], float] = time.thread_time
) -> list[float]:
    """Return what some work takes each time, by default of the one thread's processor."""
    took = []
    for _ in range(times):
        began = clock()
        work()
        took.append(clock() - began)
    return took
