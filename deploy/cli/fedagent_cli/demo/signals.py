"""Signals that end a demo are remembered, so that its clean-up is never interrupted."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def remembered() -> Iterator[Callable[[], int]]:
    """Take the signals of `ENDING`; yield what returns the first one, 0 before it."""
    seen: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    before = {number: signal.signal(number, remember) for number in ENDING}
    try:
        yield lambda: seen[0] if seen else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
