"""Run the demo's processes, watch them, and end them, however the demo ends."""

import os
import queue
import secrets
import shutil
import sys
import threading
import time
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from fedagent_cli.errors import DemoError
from fedagent_cli.output import credits_text
from fedagent_testbed.local import LocalField, RoleProcess

from .plan import LABELS, Plan
from .state import DOOMED, AgentState, DemoState, EdgeState, Event
from .view import View

START_S = 60.0
STALL_S = 120.0
REFRESH_S = 0.15
QUEUE = 10_000


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What the demo was asked for."""

    recipe: Path
    sets: tuple[str, ...]  # recipe overrides, ``key.path=value``
    rounds: int
    policy: str | None
    seed: int
    broker: str  # ``auto``, ``embedded``, ``mosquitto``, or the URL of a running broker
    directory: Path  # data directories, logs and the report go here
    max_wait_s: float
    web: bool = False  # serve the live page


@dataclass(frozen=True, slots=True)
class Finish:
    """How a demo ended; the seconds count from typing the command, the signal is 0 for none."""

    state: DemoState
    signal: int
    seconds: float
    seconds_to_first_round: float | None


class Demo:
    """One federation on this machine.

    Args:
        settings: What it was asked for.
        plan: The fleet.
        view: Shows it.
        caught: Returns the signal that is to end it, 0 before there is one.
        begun_at: When it was asked for, by our monotonic clock; none: when this process began.
    """

    def __init__(
        self,
        *,
        settings: DemoSettings,
        plan: Plan,
        view: View,
        caught: Callable[[], int],
        begun_at: float | None = None,
    ) -> None:
        self.settings = settings
        self.plan = plan
        self.view = view
        self._caught = caught
        self.site = f"demo-{secrets.token_hex(6)}"
        self.state = _first_state(plan, settings.rounds)
        self._events: queue.Queue[tuple[str, Event]] = queue.Queue(QUEUE)
        self._field = LocalField(settings.directory, self.site, on_event=self._put)
        self._typed_at = time.monotonic() - _age_s() if begun_at is None else begun_at
        self._moved_at = time.monotonic()
        self._seen_exits: set[str] = set()

    def run(self) -> Finish:
        """Start everything at once and watch until the run ends or a signal comes.

        Raises:
            DemoError: The coordinator failed, or nothing happened for too long.
        """
        with self._field:
            try:
                if not self._caught():
                    self.view.say(_opening(self.plan))
                    self._watch_over(self._start())
                    self.view.say("ending all processes and writing the report...")
            finally:
                self.view.close()
        first = self.state.first_round_at
        return Finish(
            state=self.state,
            signal=self._caught(),
            seconds=time.monotonic() - self._typed_at,
            seconds_to_first_round=None if first is None else first - self._typed_at,
        )

    def _watch_over(self, coordinator: RoleProcess) -> None:
        while coordinator.popen.poll() is None and not self._caught():
            self._step()
        if not self._caught():
            self._finish(coordinator)

    def _start(self) -> RoleProcess:
        own = self.settings
        self._field.defaults = {"log_level": "info"}
        coordinator = self._field.coordinator(
            own.recipe,
            broker=own.broker,
            sets=own.sets,
            seed=own.seed,
            wait_edges=len(self.plan.edges),
            wait_agents=len(self.plan.agents),
            no_web=not own.web,
            **({} if own.policy is None else {"policy": own.policy}),
        )
        for name, rent in zip(self.plan.edges, self.plan.rents, strict=True):
            self._field.edge(name, broker=own.broker, **({"rent": rent} if rent else {}))
        shared = {"broker": own.broker} if "://" in own.broker else {}
        # As many devices as cores, or more, would each take all of them.
        threads = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        for index, agent in enumerate(self.plan.agents):
            more: dict[str, object] = {"held_out": agent.held_out} if agent.held_out else {}
            if agent.position_km is not None:
                more["position"] = list(agent.position_km)
            self._field.agent(
                agent.name,
                agent.stream,
                environment=threads,
                price={"base": agent.price, "per_compute": 0.0},
                slow_s=agent.slow_s,
                seed=own.seed * 1000 + index,
                **more,
                **shared,
            )
        return coordinator

    def _put(self, process: RoleProcess, event: Event) -> None:
        self._events.put((process.name, event))

    def _step(self) -> None:
        until = time.monotonic() + REFRESH_S
        while (left := until - time.monotonic()) > 0:
            try:
                name, event = self._events.get(timeout=left)
            except queue.Empty:
                break
            self._take(name, event)
        self._watch()
        self.view.refresh(self.state, time.monotonic() - self._typed_at)

    def _take(self, name: str, event: Event) -> None:
        at = event.get("at")
        now = at if isinstance(at, float) else time.monotonic()
        shown = self.state.page
        self.state.apply(name, event, now)
        self.view.event(name, event, self.state)
        if self.state.page and not shown:
            self._note(f"live page: {self.state.page}")
            open_browser(self.state.page)
        if event.get("event") == "round":
            self._moved_at = now
            self._kill_half_way()

    def _kill_half_way(self) -> None:
        victim = self.plan.victim
        if not victim or self.state.round < max(1, self.state.rounds // 2):
            return
        process = self._field.processes[victim]
        if self.state.agents[victim].state != "killed" and process.popen.poll() is None:
            process.kill()
            self.state.killed(victim)
            self._note(f"killed {victim} with SIGKILL in round {self.state.round + 1}")

    def _watch(self) -> None:
        """Tell of processes that ended by themselves; give up when nothing moves."""
        for process in self._field.processes.values():
            code = process.popen.poll()
            if code is None or process.name in self._seen_exits or process.role == "coordinator":
                continue
            self._seen_exits.add(process.name)
            if not self.state.round:
                raise _fallen(process, code)
            if process.name != self.plan.victim:
                self._note(f"{process.name} ended with exit code {code}, see {process.log.name}")
                fallen = self.state.agents.get(process.name) or self.state.edges.get(process.name)
                if fallen is not None:
                    fallen.state = "ended"
        limit = STALL_S + self.settings.max_wait_s if self.state.round else START_S
        if time.monotonic() - self._moved_at > limit:
            what = "further round" if self.state.round else "first round"
            raise DemoError(
                f"no {what} within {limit:.0f} s",
                f"read the logs in {self.settings.directory}, or run `fedagent doctor`",
            )

    def _note(self, text: str) -> None:
        self.state.note(text)
        self.view.event("demo", {"event": "note", "text": text}, self.state)

    def _finish(self, coordinator: RoleProcess) -> None:
        code = coordinator.close()
        while not self._events.empty():
            self._take(*self._events.get())
        if code != 0:
            raise _fallen(coordinator, code)


def open_browser(url: str) -> None:
    """Open a page where there is a screen."""
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def tidy(directory: Path, plan: Plan) -> None:
    """Remove the data directories of agents and edges; logs and the run's data stay."""
    for name in (*plan.edges, *(agent.name for agent in plan.agents)):
        shutil.rmtree(directory / name, ignore_errors=True)


def _fallen(process: RoleProcess, code: int) -> DemoError:
    tail = process.log.read_text(errors="replace").strip().splitlines()
    return DemoError(
        f"{process.name} ended with exit code {code}: {tail[-1][:300] if tail else 'no log'}",
        f"see {process.log} and docs/exit-codes.md",
    )


def _opening(plan: Plan) -> str:
    devices, edges = len(plan.agents), len(plan.edges)
    return (
        f"starting {devices} device{'s' * (devices != 1)}, {edges} edge{'s' * (edges != 1)} "
        "and a coordinator..."
    )


def _first_state(plan: Plan, rounds: int) -> DemoState:
    agents = {}
    for agent in plan.agents:
        note = agent.kind if len(agent.labels) == LABELS and agent.kind else ""
        note = agent.note or note or "digits " + " ".join(map(str, agent.labels))
        note += f", asks {credits_text(round(agent.price * 1e6))}"
        note += ", slow" if agent.name == plan.slow else ""
        note += DOOMED if agent.name == plan.victim else ""
        agents[agent.name] = AgentState(agent.name, note)
    return DemoState(rounds, agents, {name: EdgeState(name) for name in plan.edges})


def _age_s() -> float:
    """Return how long this process has lived: the time since the command was typed."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        born = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - born
    except (OSError, ValueError, AttributeError):  # not on Linux: to the second only
        age = time.time() - psutil.Process().create_time()
    return age if 0 < age < START_S else 0.0
