"""The newest events of devices, asked for and kept in small files beside the database.

The command line asks, the coordinator that runs on the folder hands the request on; see
`fedagent_protocol.messages.LogNeed`.
"""

import asyncio
import secrets
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
_MAX_BYTES = 1 << 20


class _Asked(msgspec.Struct, frozen=True):
    number: int
    last: int


def ask_log(folder: Path, agent: str, last: int) -> int:
    """Ask the coordinator of a data directory for a device's log; return the request's number.

    Raises:
        OSError: Nothing can be written there.
    """
    number = secrets.randbelow(2**53)
    place = folder / FOLDER
    place.mkdir(mode=0o700, exist_ok=True)
    asked = _Asked(number, max(1, min(last, MAX_LOG_ENTRIES)))
    fresh = place / f".{agent}.{number}"
    fresh.write_bytes(msgspec.json.encode(asked))
    fresh.replace(place / f"{agent}.ask")
    return number


def kept_log(folder: Path, agent: str, number: int) -> LogTail | None:
    """Return the answer to a request, and forget it; None while there is none."""
    path = folder / FOLDER / f"{agent}.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=LogTail)
    except (OSError, msgspec.DecodeError):
        return None
    if found.number != number:
        return None
    path.unlink(missing_ok=True)
    return found


def keep_log(folder: Path, tail: LogTail) -> None:
    """Keep what a device told, for who asked."""
    write_beside(folder / FOLDER / f"{tail.agent}.json", msgspec.json.encode(tail))


async def watch_asked(shell: "Shell") -> None:
    """Hand requests to the core."""
    place = shell.directory / FOLDER
    while True:
        for asked in _taken(place):
            shell.receive(asked)
        await asyncio.sleep(LOOK_S)


def _taken(place: Path) -> list[AskLog]:
    found = []
    for path in sorted(place.glob("*.ask")):
        # It may be none of ours, or gone again.
        with suppress(OSError, msgspec.DecodeError, TopicError):
            data = path.read_bytes() if path.stat().st_size < _MAX_BYTES else b""
            path.unlink()
            asked = msgspec.json.decode(data, type=_Asked)
            found.append(AskLog(check_id(path.stem), asked.number, asked.last))
    return found
