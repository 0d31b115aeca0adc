"""What a running coordinator sees and waits for, as a small file for `fedagent status`.

For people only: nothing is decided by it, so it is neither synced nor missed.
"""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

FILE = "situation.json"


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of a run.

    Attributes:
        run: The run's id.
        edges_live: Edges that are heard.
        waiting: Why no round can be decided, in one word; empty while rounds go on.
        detail: More about it, in an agent's words.
    """

    run: str
    edges_live: int = 0
    waiting: str = ""
    detail: str = ""


def write_situation(folder: Path, situation: Situation) -> None:
    """Replace the file; a disk that refuses is not this file's business."""
    fresh = folder / f".{FILE}"
    with suppress(OSError):
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(situation))
        fresh.replace(folder / FILE)


def read_situation(folder: Path) -> Situation | None:
    """Return what was written last; None if there is nothing to read."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Situation)
    except (OSError, msgspec.DecodeError):
        return None
