"""Run the demo's fleet and show it, however the demo ends."""

import os
import sqlite3
import sys
import threading
import time
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size

import psutil

from fedagent_cli.extras import optional
from fedagent_cli.output import echo, emit, number_text
from fedagent_cli.read.look import Look, look_at
from fedagent_cli.read.runs import open_run
from fedagent_cli.read.watching import EVERY_S
from fedagent_coordinator.books.queries import Queries
from fedagent_protocol.errors import FedagentError, credits_text
from fedagent_task.scoring.measures import ACCURACY, BY_KEY, Measure
from fedagent_testbed.local import Event
from fedagent_testbed.local_fleet import LocalFleet

from .plan import Demo

WIDE = 72
"""Columns that the picture takes."""


@dataclass(slots=True)
class Heard:
    """What the coordinator of a fleet said, as far as it is told, and how a demo ended.

    Its seconds count from typing the command; the signal is 0 for none.
    """

    wanted: int  # rounds
    broker: str = ""
    run: str = ""
    page: str = ""  # address of the live page, empty for none
    round: int = 0
    conclusion: str = ""
    killed: str = ""
    signal: int = 0
    seconds: float = 0.0
    seconds_to_first_round: float | None = None
    _measure: Measure = ACCURACY
    _figure: str = "-"

    def take(self, name: str, event: Event) -> str:
        """Take in one event of a process; return a line of what people are told."""
        kind = event.get("event")
        if kind == "exited":
            return f"{name} ended with exit code {event['code']}, see {name}.log"
        if kind == "progress":
            return str(event["text"])
        if name != "coordinator":
            return ""
        if kind == "ready":
            own = str(event.get("broker_kind", ""))
            self.broker = own if own in ("mosquitto", "embedded") else str(event.get("broker"))
            self.run, self.page = str(event.get("run", "")), str(event.get("web", ""))
            self._measure = BY_KEY.get(str(event.get("primary_metric")), ACCURACY)
        elif kind == "end":
            self.conclusion = str(event.get("conclusion", ""))
        elif kind in ("round", "model"):
            self.round = int(str(event["round"]))
            numbers = {key: value for key, value in event.items() if isinstance(value, int | float)}
            if (value := self._measure.of(numbers)) is not None:
                self._figure = number_text(value)
        if kind != "round":
            return ""
        spent = credits_text(int(str(event["total_spent_micro"])))
        return (
            f"round {self.round}/{self.wanted}  in time {event['in_time']} of {event['ordered']}  "
            f"{self._measure.word} {self._figure}  spent {spent}"
        )


class Screen:
    """Shows a demo: a picture on a terminal, else a line a round, or every event as JSON."""

    def __init__(self, books: Path, *, as_json: bool) -> None:
        self._books, self._json, self._drawn = books, as_json, None
        if not as_json and sys.stdout.isatty() and get_terminal_size().columns >= WIDE:
            drawn = optional("fedagent_cli.read.drawn", "rich", "coordinator")
            self._drawn = drawn.Drawn(transient=True)
        self._look: Look | None = None
        self._due = 0.0
        self._notes: list[str] = []

    def say(self, text: str) -> None:
        """Say what happens; the last five lines stay below a picture."""
        self._notes = [*self._notes[-4:], text]
        if self._json:
            emit({"from": "demo", "event": "note", "text": text})
        elif self._drawn is None:
            echo(text)
            sys.stdout.flush()

    def event(self, name: str, event: Event, line: str) -> None:
        """Show one event; `line` is what there is to be said of it."""
        if event.get("event") in ("exited", "progress"):
            self.say(line)
        elif self._json:
            emit({"from": name, **{key: value for key, value in event.items() if key != "at"}})
        elif self._drawn is not None or name != "coordinator":
            return
        elif line:
            self.say(line)
        elif event.get("event") in ("edge_joined", "agent_joined"):
            self.say(f"{event.get('name') or event.get('edge')} found the coordinator")

    def refresh(self) -> None:
        """Draw the picture again, where there is one."""
        now = time.monotonic()
        if self._drawn is None or now < self._due:
            return
        try:
            with open_run(Queries, self._books) as (reader, run):
                self._look = look_at(reader, run, watched=True)
        except (FedagentError, sqlite3.Error):
            pass  # there is no run yet
        self._due = time.monotonic() + max(EVERY_S, 5 * (time.monotonic() - now))
        how = "Ctrl-C ends it cleanly and still writes the report."
        self._drawn.show(self._look, *self._notes, how)

    def close(self) -> None:
        """Give the terminal back."""
        if self._drawn is not None:
            self._drawn.close()


def run_demo(demo: Demo, *, caught: Callable[[], int], as_json: bool) -> Heard:
    """Start everything at once and watch until the run ends, or `caught` returns a signal.

    Raises:
        FleetError: A process failed, or nothing happened for too long.
    """
    typed_at = time.monotonic() - (time.time() - psutil.Process().create_time())
    heard, screen = Heard(demo.rounds), Screen(demo.directory / "coordinator", as_json=as_json)
    with LocalFleet(demo, stopped=caught) as fleet:
        try:
            if not caught():
                devices, edges = len(demo.agents), len(demo.edges)
                screen.say(
                    f"starting {devices} device{'s' * (devices != 1)}, {edges} "
                    f"edge{'s' * (edges != 1)} and a coordinator..."
                )
                fleet.start_all()
                for came in fleet.watch():
                    screen.refresh()
                    if came is not None:
                        _take(*came, heard, screen)
                        _kill_half_way(demo, heard, screen, fleet)
                screen.say("ending all processes and writing the report...")
        finally:
            screen.close()
    heard.signal, heard.seconds = caught(), time.monotonic() - typed_at
    if fleet.first_round_at is not None:
        heard.seconds_to_first_round = fleet.first_round_at - typed_at
    return heard


def _take(name: str, event: Event, heard: Heard, screen: Screen) -> None:
    shown = heard.page
    screen.event(name, event, heard.take(name, event))
    if heard.page and not shown:
        screen.say(f"live page: {heard.page}")
        if sys.platform == "darwin" or os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
            threading.Thread(target=webbrowser.open, args=(heard.page,), daemon=True).start()


def _kill_half_way(demo: Demo, heard: Heard, screen: Screen, fleet: LocalFleet) -> None:
    victim, half_way = demo.plan.victim, heard.round >= max(1, demo.rounds // 2)
    if half_way and victim and not heard.killed and fleet.kill(victim):
        heard.killed = victim
        screen.say(f"killed {victim} with SIGKILL in round {heard.round + 1}")
