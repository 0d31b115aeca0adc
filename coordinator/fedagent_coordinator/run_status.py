"""What a running coordinator sees and waits for, as a small file for `fedagent status`.

It is neither synced nor missed. The one thing that is decided by it is when a coordinator
that was started again begins a scheduled round: in the same boot the file is there however
the process ended, and in another its monotonic time would mean nothing.
"""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

FILE = "run_status.json"


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of a run.

    Attributes:
        run: The run's id.
        edges_live: Edges that are heard.
        waiting: Why no round can be decided, in one word; empty while rounds go on.
        detail: More about it, in an agent's words.
        found, wanted: How many edges or agents are there of those that are waited for; 0 and
            0 where it is no number.
        others: Other coordinators that are announced at this site, each with its address.
        next_at: No round begins before, by the monotonic clock of `boot`; 0 for at once.
    """

    run: str
    edges_live: int = 0
    waiting: str = ""
    detail: str = ""
    found: int = 0
    wanted: int = 0
    next_at: float = 0.0
    boot: str = ""
    others: tuple[str, ...] = ()


def write_run_status(folder: Path, run_status: RunStatus) -> None:
    """Replace the file."""
    write_beside(folder / FILE, msgspec.json.encode(run_status))


def write_beside(path: Path, data: bytes) -> None:
    """Replace a file for people; a disk that refuses is not its business."""
    fresh = path.with_name(f".{path.name}")
    with suppress(OSError):
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        fresh.replace(path)


def read_run_status(folder: Path) -> RunStatus | None:
    """Return what was written last; None if there is nothing to read."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=RunStatus)
    except (OSError, msgspec.DecodeError):
        return None


def next_round_at(folder: Path, run: str, boot: str) -> float:
    """Return when the next round of a run may begin by this boot's clock; 0 for at once."""
    found = read_run_status(folder)
    return found.next_at if found is not None and (found.run, found.boot) == (run, boot) else 0.0
