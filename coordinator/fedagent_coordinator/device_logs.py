"""The newest events of devices, asked for and kept in small files beside the database.

The command line asks, the coordinator that runs on the folder hands the request on; see
`fedagent_protocol.messages.LogNeed`.
"""

import asyncio
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fedagent_protocol.errors import TopicError
from fedagent_protocol.messages import LogTail
from fedagent_protocol.messages.session import MAX_LOG_ENTRIES
from fedagent_protocol.topics import check_id

from .core.effects import AskLog
from .status_files import write_beside

if TYPE_CHECKING:
    from fedagent_node.shell import Shell

FOLDER = "device_logs"
LOOK_S = 0.5
"""How often the folder is looked at."""
KEPT_S = 60.0
"""How long an answer waits for who asked."""
MOST_FILES = 64
"""Files that are looked at in one go: rounds wait meanwhile."""
_MAX_BYTES = 4096


class _Asked(msgspec.Struct, frozen=True):
    agent: str
    last: int


def ask_log(folder: Path, agent: str, last: int) -> int:
    """Ask the coordinator of a data directory for a device's log; return the request's number.

    Raises:
        OSError: Nothing can be written there.
    """
    number = secrets.randbelow(2**53)
    place = folder / FOLDER
    place.mkdir(mode=0o700, exist_ok=True)
    asked = _Asked(agent, max(1, min(last, MAX_LOG_ENTRIES)))
    fresh = place / f".{number}"
    fresh.write_bytes(msgspec.json.encode(asked))
    fresh.replace(place / f"{number}.ask")
    return number


def kept_log(folder: Path, agent: str, number: int) -> LogTail | None:
    """Return the answer of a device to a request, and forget it; None while there is none."""
    path = folder / FOLDER / f"{number}.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=LogTail)
    except (OSError, msgspec.DecodeError):
        return None
    path.unlink(missing_ok=True)
    return found if (found.agent, found.number) == (agent, number) else None


def keep_log(folder: Path, tail: LogTail) -> None:
    """Keep what a device told, for who asked."""
    write_beside(folder / FOLDER / f"{tail.number}.json", msgspec.json.encode(tail))


async def watch_asked(shell: "Shell") -> None:
    """Hand requests to the core."""
    place = shell.directory / FOLDER
    while True:
        for asked in _taken(place):
            shell.receive(asked)
        await asyncio.sleep(LOOK_S)


def _taken(place: Path) -> list[AskLog]:
    """Take what was asked, and throw away what nobody has fetched."""
    found, now = [], time.time()
    for path in sorted(place.glob("*"))[:MOST_FILES]:
        # It may be none of ours, or gone again.
        with suppress(OSError, ValueError, msgspec.DecodeError, TopicError):
            facts = path.lstat()
            if path.suffix != ".ask" or not stat.S_ISREG(facts.st_mode):
                if now - facts.st_mtime > KEPT_S:
                    path.unlink()
                continue
            data = path.read_bytes() if facts.st_size < _MAX_BYTES else b""
            path.unlink()
            asked = msgspec.json.decode(data, type=_Asked)
            found.append(AskLog(check_id(asked.agent), int(path.stem), asked.last))
    return found
