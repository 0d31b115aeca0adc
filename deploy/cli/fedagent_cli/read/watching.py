"""`fedagent status --watch`: a run as it goes on, drawn in place, or as one line for each event."""

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fedagent_cli.extras import optional
from fedagent_cli.output import echo, emit, number_text
from fedagent_cli.places import shortest
from fedagent_coordinator.books.queries import Queries
from fedagent_protocol.errors import credits_text

from .look import WAITING, Look, look_at
from .runs import open_run

EVERY_S = 1.0
SHARE = 5
"""Times as long as a look takes is waited for the next: a large run must not fill a core."""
Event = Mapping[str, Any]


@dataclass(slots=True)
class Watched:
    """What was said of a run; `events` says what is new."""

    round: int = 0
    alarms: set[tuple[str, str]] = field(default_factory=set)
    waiting: str = ""
    begun: bool = False

    def events(self, look: Look) -> Iterator[Event]:
        """Yield what has happened since the last look, as records; takes note of it."""
        record = look.record()
        if not self.begun:
            self.begun = True
            self.round = max((row.round for row in look.rounds[:-1]), default=0)
            yield {"event": "run", **record}
        for row in look.rounds:
            if row.round > self.round and row.state != "open":
                self.round = row.round
                yield {"event": "round", **asdict(row)}
        waiting = record["waiting"] or ""
        if waiting != self.waiting:
            self.waiting = waiting
            wanted = {"found": record["found"], "wanted": record["wanted"]}
            yield {"event": "waiting", "reason": waiting, **wanted}
        current = {(one.kind, one.subject): one for one in look.alarms}
        for key in [key for key in current if key not in self.alarms]:
            yield {"event": "alarm", **msgspec.to_builtins(current[key])}
        for kind, subject in sorted(self.alarms - set(current)):
            yield {"event": "alarm_over", "kind": kind, "subject": subject}
        self.alarms = set(current)
        if record["ended"]:
            yield {"event": "end", "reason": record["reason"], "rounds_done": record["rounds_done"]}


def watch_run(data_dir: Path | None, run: str | None, *, as_json: bool) -> None:
    """Show a run until it ends, or until Ctrl-C."""
    drawn = not as_json and sys.stdout.isatty()
    if drawn:
        view = optional("fedagent_cli.read.drawn", "rich", "coordinator").Drawn()
    watched, ended = Watched(), False
    while not ended:
        began = time.monotonic()
        with open_run(Queries, data_dir, run) as (reader, chosen):
            # Who reads JSON may be elsewhere.
            folder = "" if as_json else shortest(reader.folder)
            look, run = look_at(reader, chosen, watched=True, folder=folder), chosen.run_id
        for event in watched.events(look):
            ended |= event["event"] == "end"
            if not drawn:
                emit(event) if as_json else echo(line_of(event))
        if drawn:
            view.show(look)
        sys.stdout.flush()
        if not ended:
            time.sleep(max(EVERY_S, SHARE * (time.monotonic() - began)))
    if drawn:
        view.close()
    elif as_json:
        emit(look.record())


def line_of(event: Event) -> str:
    """Return an event in one line for people."""
    match event["event"]:
        case "run":
            return f"run {event['run'][:12]}: {event['rounds_done']} rounds done"
        case "round":
            known = [key for key in ("accuracy", "loss") if key in event["metrics"]]
            good = "".join(f", {key} {number_text(event['metrics'][key])}" for key in known)
            why = f" ({event['reason']})" if event["reason"] else ""
            done = f"{event['in_time']} of {event['ordered']} in time"
            paid = f"{credits_text(event['paid_micro'])} credits"
            return f"round {event['round']} {event['state']}: {done}, {paid}{good}{why}"
        case "waiting":
            reason = event["reason"]
            return f"waiting {WAITING.get(reason, reason)}" if reason else "no longer waiting"
        case "alarm":
            return f"alarm: {event['text']}; {event['hint']}"
        case "alarm_over":
            return f"alarm over: {event['kind']} of {event['subject']}"
        case _:
            return f"ended after {event['rounds_done']} rounds: {event['reason']}"
