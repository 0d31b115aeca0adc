"""`fedagent status --watch`: a run as it goes on, drawn in place, or as one line for each event."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedagent_cli.output import credits_text, echo, emit, number_text, sparkline
from fedagent_cli.places import shortest
from fedagent_cli.read.runs import open_run
from fedagent_cli.read.status import WAITING, Standing, standing

if TYPE_CHECKING:
    from rich.console import Group

    from fedagent_coordinator.books.reader import Reader
    from fedagent_coordinator.books.rows import RoundRow
    from fedagent_coordinator.picture.alarms import Alarm

EVERY_S = 1.0
SHARE = 5
"""Times as long as a look takes is waited for the next: a large run must not fill a core."""
LAST = 200
"""Rounds that are read at a time, and whose measure is drawn."""
SHOWN = 8
NARROW = 48
"""Columns of a terminal that has no place for a round's seconds."""
Event = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A run at one moment."""

    standing: Standing
    rounds: "list[RoundRow]"
    alarms: "list[Alarm]"


@dataclass(slots=True)
class Watched:
    """What has been told of a run; `events` says what is new in a look at it."""

    round: int = 0
    alarms: set[tuple[str, str]] = field(default_factory=set)
    waiting: str = ""
    begun: bool = False

    def events(self, look: Look) -> Iterator[Event]:
        """Yield what has happened since the last look, as records; takes note of it."""
        record = look.standing.record
        if not self.begun:
            self.begun = True
            self.round = max((row.round for row in look.rounds[:-1]), default=0)
            yield {"event": "run", **record}
        for row in look.rounds:
            if row.round > self.round and row.state != "open":
                self.round = row.round
                yield {"event": "round", **asdict(row)}
        waiting = str(record["waiting"] or "")
        if waiting != self.waiting:
            self.waiting = waiting
            wanted = {"found": record["found"], "wanted": record["wanted"]}
            yield {"event": "waiting", "reason": waiting, **wanted}
        current = {(one.kind, one.subject): one for one in look.alarms}
        for key in [key for key in current if key not in self.alarms]:
            one = current[key]
            yield {
                "event": "alarm",
                **{name: getattr(one, name) for name in one.__struct_fields__},
            }
        for kind, subject in sorted(self.alarms - set(current)):
            yield {"event": "alarm_over", "kind": kind, "subject": subject}
        self.alarms = set(current)
        if record["ended"]:
            yield {"event": "end", "reason": record["reason"], "rounds_done": record["rounds_done"]}


def watch_run(
    data_dir: Path | None,
    run: str | None,
    *,
    as_json: bool,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Show a run until it ends, or until Ctrl-C."""
    watched, chosen = Watched(), run
    if not as_json and sys.stdout.isatty():
        _draw(data_dir, chosen, wait)
        return
    while True:
        began = time.monotonic()
        look = _look(data_dir, chosen, as_json=as_json)
        chosen = look.standing.run.run_id
        ended = False
        for event in watched.events(look):
            ended |= event["event"] == "end"
            if as_json:
                emit(event)
            else:
                echo(line_of(event))
        sys.stdout.flush()
        if ended:
            if as_json:
                emit(look.standing.record)
            return
        wait(_pause(began))


def _pause(began: float) -> float:
    return max(EVERY_S, SHARE * (time.monotonic() - began))


def line_of(event: Event) -> str:
    """Return an event in one line for people."""
    match event["event"]:
        case "run":
            return f"run {str(event['run'])[:12]}: {event['rounds_done']} rounds done"
        case "round":
            metrics = event["metrics"]
            assert isinstance(metrics, dict)
            good = "".join(
                f", {key} {number_text(metrics[key])}"
                for key in ("accuracy", "loss")
                if key in metrics
            )
            why = f" ({event['reason']})" if event["reason"] else ""
            return (
                f"round {event['round']} {event['state']}: {event['in_time']} of "
                f"{event['ordered']} in time, {credits_text(int(str(event['paid_micro'])))} "
                f"credits{good}{why}"
            )
        case "waiting":
            reason = str(event["reason"])
            return f"waiting {WAITING.get(reason, reason)}" if reason else "no longer waiting"
        case "alarm":
            return f"alarm: {event['text']}; {event['hint']}"
        case "alarm_over":
            return f"alarm over: {event['kind']} of {event['subject']}"
        case _:
            return f"ended after {event['rounds_done']} rounds: {event['reason']}"


def _look(data_dir: Path | None, run: str | None, *, as_json: bool = False) -> Look:
    with open_run(data_dir, run) as (reader, chosen):
        # Who reads JSON may be elsewhere.
        folder = "" if as_json else shortest(reader.folder)
        return look_at(reader, standing(reader, chosen), time.time(), folder=folder)


def look_at(reader: "Reader", found: Standing, now: float, *, folder: str = "") -> Look:
    """Return what there is to be shown of a run; hints name its folder, else from the root."""
    from fedagent_coordinator.picture.alarms import alarms  # noqa: PLC0415 - heavy imports

    run = found.run.run_id
    return Look(
        standing=found,
        rounds=reader.rounds(run, last=LAST),
        alarms=alarms(reader, found.now, now, run_id=run, folder=folder),
    )


def _draw(data_dir: Path | None, run: str | None, wait: Callable[[float], None]) -> None:
    """Draw the run in place."""
    from rich.live import Live  # noqa: PLC0415 - of a coordinator's extra

    with Live(auto_refresh=False) as live:
        while True:
            began = time.monotonic()
            look = _look(data_dir, run)
            run = look.standing.run.run_id
            live.update(picture(look, live.console.width), refresh=True)
            if look.standing.record["ended"]:
                return
            wait(_pause(began))


def picture(look: Look, width: int = 80) -> "Group":
    """Return a look as it is drawn: the run, its measure over the rounds, the newest, alarms.

    `width` is in columns; in few of them the table has only what fits.
    """
    from rich.console import Group  # noqa: PLC0415 - of a coordinator's extra
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    parts: list[Text | Table] = [Text("\n".join(look.standing.lines))]
    key = str(look.standing.record["primary_metric"] or "")
    values = [row.metrics[key] for row in look.rounds if key in row.metrics]
    if len(values) > 1:
        line = sparkline(values, width=max(8, min(60, width - 11)))
        parts.append(Text(f"{key[:9]:10}{line}", style="cyan"))
    table = Table(box=None, pad_edge=False, header_style="dim")
    narrow = width < NARROW
    for name in ("round", "state", "in time", "spent", *(() if narrow else ("seconds",))):
        table.add_column(name, justify="left" if name == "state" else "right")
    for row in look.rounds[-SHOWN:]:
        counts = (f"{row.in_time} of {row.ordered}", credits_text(row.paid_micro))
        seconds = () if narrow else (f"{row.seconds:.2f}",)
        table.add_row(str(row.round), row.state, *counts, *seconds)
    parts += [Text(), table]
    for one in look.alarms[:SHOWN]:
        parts.append(Text(f"! {one.text}", style="bold yellow"))
        parts.append(Text(f"  {one.hint}", style="dim"))
    return Group(*parts)
