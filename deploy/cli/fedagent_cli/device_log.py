"""`fedagent devices log`: the newest events of a device, asked for over the field's own broker."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

from . import command_line, options
from .errors import MissingError, NoRunError, UnreadableError
from .opinions import agent_named
from .output import echo, emit, table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fedagent_protocol.messages import LogEntry, LogTail

ANSWER_S = 10.0
_LOOK_S = 0.1
_TOLD_AFTER_S = 1.5
Device = Annotated[
    str, command_line.Argument(metavar="DEVICE", help="Name of the device, or the start of its id.")
]
Last = Annotated[int, command_line.Option("--last", min=1, max=200, help="Number of events.")]


def log(
    device: Device,
    *,
    last: Last = 50,
    data_dir: options.CoordinatorData = None,
    as_json: options.AsJson = False,
) -> None:
    """Ask a device for its newest events: orders, trainings, refusals, receipts, lost edges.

    The device sends only what it has told its edges before, and nothing about its samples; a device
    started with `--private-log` sends nothing.
    """
    from fedagent_coordinator.status_files import read_devices  # noqa: PLC0415 - heavy imports

    from .runs import is_running, open_run  # noqa: PLC0415

    with open_run(data_dir, None) as (reader, chosen):
        folder = reader.folder
        book = read_devices(folder)
        names = {agent: agent[:8] for agent in (book.devices if book is not None else {})}
        names |= {row.agent: row.name for row in reader.devices(chosen.run_id)}
        edges = reader.edges(chosen.run_id)
    agent = agent_named(names, device)
    if not is_running(folder):
        raise NoRunError(
            f"no coordinator is running on {folder}",
            "start it: it forwards the request to the device",
        )
    tail = _asked(folder, agent, last, names[agent])
    if tail.refused:
        raise MissingError(f"{names[agent]} refused: {_clean(tail.refused)}", _mend(tail))
    now = time.time()
    if as_json:
        events = [
            {
                "at": round(now - one.age_ms / 1000, 3),
                "event": _clean(one.name),
                **{_clean(name): _value(value) for name, value in one.fields.items()},
            }
            for one in tail.entries
        ]
        counters = {_clean(name): number for name, number in tail.counters.items()}
        emit({"device": agent, "name": names[agent], "events": events, "counters": counters})
        return
    if not tail.entries:
        echo(f"{names[agent]} has no events since it was started")
    table(("at", "event", "what"), [_row(one, edges, now) for one in tail.entries])


def _asked(folder: "Path", agent: str, last: int, name: str) -> "LogTail":
    from fedagent_coordinator.device_logs import ask_log, kept_log  # noqa: PLC0415

    try:
        number = ask_log(folder, agent, last)
    except OSError as error:
        raise UnreadableError(
            f"{folder} cannot be written: {error.strerror}",
            "run the command as the user of the coordinator",
        ) from error
    began = time.monotonic()
    told = False
    while (passed := time.monotonic() - began) < ANSWER_S:
        if (tail := kept_log(folder, agent, number)) is not None:
            return tail
        if passed > _TOLD_AFTER_S and not told:
            told = True
            sys.stderr.write(f"waiting for {name}, for up to {ANSWER_S:.0f} s\n")
        time.sleep(_LOOK_S)
    raise MissingError(
        f"{name} has not answered for {ANSWER_S:.0f} s",
        "see in `fedagent devices` whether it is online; an earlier release does not answer "
        "this request",
    )


def _mend(tail: "LogTail") -> str:
    if "private_log" in tail.refused:
        return "its owner may start it without --private-log"
    return "wait and try again"


def _row(entry: "LogEntry", edges: "Mapping[str, str]", now: float) -> tuple[str, str, str]:
    """Return an event's cells: edges by their names, runs (of which there is one) by nothing."""
    at = time.strftime("%H:%M:%S", time.localtime(now - entry.age_ms / 1000))
    fields = {name: value for name, value in entry.fields.items() if name != "run"}
    if (edge := fields.get("edge")) in edges:
        fields["edge"] = edges[str(edge)]
    what = ", ".join(f"{_clean(name)} {_value(value)}" for name, value in fields.items())
    return at, _clean(entry.name), what


def _value(value: str | float) -> str | float:
    return _clean(value) if isinstance(value, str) else value


def _clean(text: str) -> str:
    from fedagent_protocol.errors import safe_text  # noqa: PLC0415

    return safe_text(text, limit=200)
