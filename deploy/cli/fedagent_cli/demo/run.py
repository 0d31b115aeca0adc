"""Run the demo's fleet and show it, however the demo ends."""

import os
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
from fedagent_testbed.local_fleet import START_S, Fleet, FleetError, LocalFleet

from .plan import LABELS, Plan
from .state import DOOMED, AgentState, DemoState, EdgeState, Event
from .view import View


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What the demo was asked for."""

    recipe: Path
    sets: tuple[str, ...]  # recipe overrides, ``key.path=value``
    rounds: int
    policy: str | None
    seed: int
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


def run_demo(
    settings: DemoSettings,
    plan: Plan,
    view: View,
    *,
    caught: Callable[[], int],
    broker: str = "auto",
) -> Finish:
    """Start everything at once and watch until the run ends or a signal comes.

    Args:
        settings: What was asked for.
        plan: The fleet.
        view: Shows it.
        caught: Returns the signal that is to end it, 0 before there is one.
        broker: As of `Fleet`.

    Raises:
        DemoError: A process failed, or nothing happened for too long.
    """
    typed_at = time.monotonic() - _age_s()
    state = _first_state(plan, settings.rounds)
    with LocalFleet(_fleet(settings, plan, broker), stopped=caught) as fleet:
        try:
            if not caught():
                view.say(_opening(plan))
                fleet.start()
                for heard in fleet.watch():
                    if heard is None:
                        view.refresh(state, time.monotonic() - typed_at)
                    else:
                        _take(*heard, state, plan, view, fleet)
                view.say("ending all processes and writing the report...")
        except FleetError as error:
            raise DemoError(error.problem, error.hint) from error
        finally:
            view.close()
    first = fleet.first_round_at
    return Finish(
        state=state,
        signal=caught(),
        seconds=time.monotonic() - typed_at,
        seconds_to_first_round=None if first is None else first - typed_at,
    )


def _fleet(settings: DemoSettings, plan: Plan, broker: str) -> Fleet:
    agents: dict[str, dict[str, object]] = {}
    for agent in plan.agents:
        agents[agent.name] = own = {
            "stream": agent.stream,
            "price": {"base": agent.price, "per_compute": 0.0},
            "slow_s": agent.slow_s,
        }
        if agent.held_out:
            own["held_out"] = agent.held_out
        if agent.position_km is not None:
            own["position"] = list(agent.position_km)
    rented = zip(plan.edges, plan.rents, strict=True)
    return Fleet(
        recipe=settings.recipe,
        sets=settings.sets,
        seed=settings.seed,
        directory=settings.directory,
        agents=agents,
        edges={name: {"rent": rent} if rent else {} for name, rent in rented},
        max_wait_s=settings.max_wait_s,
        broker=broker,
        web=settings.web,
    )


def _take(
    name: str, event: Event, state: DemoState, plan: Plan, view: View, fleet: LocalFleet
) -> None:
    def note(text: str) -> None:
        state.note(text)
        view.event("demo", {"event": "note", "text": text}, state)

    if event.get("event") == "exited":
        fallen = state.agents.get(name) or state.edges[name]
        fallen.state = "ended"
        note(f"{name} ended with exit code {event['code']}, see {name}.log")
        return
    at, shown = event.get("at"), state.page
    state.apply(name, event, at if isinstance(at, float) else time.monotonic())
    view.event(name, event, state)
    if state.page and not shown:
        note(f"live page: {state.page}")
        open_browser(state.page)
    half_way = event.get("event") == "round" and state.round >= max(1, state.rounds // 2)
    victim = plan.victim
    if half_way and victim and state.agents[victim].state != "killed" and fleet.kill(victim):
        state.killed(victim)
        note(f"killed {victim} with SIGKILL in round {state.round + 1}")


def open_browser(url: str) -> None:
    """Open a page where there is a screen."""
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


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
        note = note or "digits " + " ".join(map(str, agent.labels))
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
