"""Seconds per round over real brokers, with no training: the cost of the wire itself.

One edge, N agents as processes, a model of 22 KB, 2.34 MB or 25 MB. Prints one JSON
object per case: medians over the rounds after the warm-up, processor time of an agent
per round, the broker used.

    python -m bench.rounds                       # every case of the table
    python -m bench.rounds --case 22KB --agents 4 --broker mosquitto
    python -m bench.rounds --case 22KB --agents 10 --broker mosquitto --robust multi-krum
"""

import argparse
import secrets
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from fedagent_testbed.local import LocalField, RoleProcess
from tests.fakes.site import Members

from .rows import Rows, show

RECIPE = Path(__file__).parent / "wire.toml"
SHAPES = {"22KB": (549, 10), "2.34MB": (58_499, 10), "25MB": (624_999, 10)}
ROUNDS = {"22KB": 120, "2.34MB": 40, "25MB": 8}
BARS = {
    ("mosquitto", 10): {"22KB": 0.03, "2.34MB": 0.3, "25MB": 4.0},
    ("embedded", 10): {"22KB": 0.06, "2.34MB": 0.6, "25MB": 8.0},
    ("mosquitto", 4): {"22KB": 0.02},
}


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    size: str
    agents: int
    broker: str
    secure: bool = False
    """With TLS between members of a site."""
    robust: str = "auto"
    """The rule in place of the mean."""

    @property
    def bar(self) -> float | None:
        """Seconds per round to stay under, where the table names a bar."""
        return BARS.get((self.broker, self.agents), {}).get(self.size)


ALL = [
    Case("22KB", 10, "mosquitto"),
    Case("22KB", 4, "mosquitto"),
    Case("2.34MB", 10, "mosquitto"),
    Case("25MB", 10, "mosquitto"),
    Case("22KB", 10, "embedded"),
    Case("2.34MB", 10, "embedded"),
    Case("25MB", 10, "embedded"),
]


@contextmanager
def wire_field(case: Case, *, rounds: int) -> Iterator[tuple[LocalField, RoleProcess]]:
    """Start a coordinator, one edge and the agents of a case."""
    features, classes = SHAPES[case.size]
    sets = (
        f"model.features={features}",
        f"model.classes={classes}",
        f"rounds.count={rounds}",
        f"aggregation.robust={case.robust}",
    )
    with tempfile.TemporaryDirectory(prefix="fedagent-bench-") as folder:
        field = LocalField(Path(folder), f"bench-{secrets.token_hex(4)}")
        field.defaults = {"log_level": "warning"}
        cover: dict[str, Any] = {}
        if case.secure:
            cover = {"secure": True}
            members = Members.of_coordinator(Path(folder), "coordinator", field.site)
            members.member("edge-1", "edge")
            for i in range(case.agents):
                members.member(f"agent-{i}", "agent")
        with field:
            coordinator = field.coordinator(
                RECIPE,
                broker=case.broker,
                sets=sets,
                wait_edges=1,
                wait_agents=case.agents,
                **cover,
            )
            # As services run: only the coordinator, which is listened to, tells events.
            field.edge("edge-1", json_events=False, **cover)
            for i in range(case.agents):
                field.agent(f"agent-{i}", "digits:rate=1", json_events=False)
            yield field, coordinator


def _processor_s(field: LocalField) -> float:
    """Return the processor time of all roles and their brokers so far."""
    total = 0.0
    for role in field.processes.values():
        own = psutil.Process(role.pid)
        for process in (own, *own.children(recursive=True)):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def measure(case: Case) -> dict[str, object]:
    """Run one case and return its figures."""
    rounds = ROUNDS[case.size]
    warm = max(2, rounds // 5)
    with wire_field(case, rounds=rounds) as (field, coordinator):
        coordinator.wait("round", round=warm, timeout_s=120)
        agents = [p for p in field.processes.values() if p.role == "agent"]
        edge = field.processes["edge-1"]
        before, whole = {p.name: p.cpu_seconds() for p in (*agents, edge)}, _processor_s(field)
        coordinator.wait("round", round=rounds - 2, timeout_s=300)
        played = rounds - 2 - warm
        spent = [(p.cpu_seconds() - before[p.name]) / played for p in agents]
        at_edge = (edge.cpu_seconds() - before[edge.name]) / played
        whole = (_processor_s(field) - whole) / played
        coordinator.wait("round", round=rounds, timeout_s=300)
        events = [e for e in coordinator.all("round") if int(str(e["round"])) > warm]
        seconds = sorted(float(str(e["seconds"])) for e in events)
        gaps = [float(str(e["at"])) for e in events]
        used = {int(str(e["used"])) for e in events}
    median = statistics.median(seconds)
    return {
        "bench": "rounds",
        "size": case.size,
        "agents": case.agents,
        "broker": case.broker,
        "secure": case.secure,
        "rounds": len(seconds),
        "seconds_per_round": round(median, 5),
        "p90": round(seconds[int(0.9 * len(seconds))], 5),
        "wall_per_round": round((gaps[-1] - gaps[0]) / max(1, len(gaps) - 1), 5),
        "cpu_ms_per_round": round(1000 * whole, 1),
        "robust": case.robust,
        "edge_cpu_ms_per_round": round(1000 * at_edge, 1),
        "agent_cpu_ms_per_round": round(1000 * statistics.median(spent), 3),
        "updates_used": sorted(used),
        "bar": case.bar,
        "met": case.bar is None or median <= case.bar,
    }


def rows() -> Rows:
    return (measure(case) for case in ALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=list(SHAPES))
    parser.add_argument("--agents", type=int)
    parser.add_argument("--broker", choices=["mosquitto", "embedded"])
    parser.add_argument("--secure", action="store_true", help="with TLS between members")
    parser.add_argument("--robust", default="auto", help="the rule in place of the mean")
    chosen = parser.parse_args()
    for case in ALL:
        wanted = (chosen.case or case.size, chosen.agents or case.agents)
        if wanted == (case.size, case.agents) and chosen.broker in (None, case.broker):
            show([measure(replace(case, secure=chosen.secure, robust=chosen.robust))])


if __name__ == "__main__":
    main()
