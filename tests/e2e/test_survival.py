"""Real processes die at the worst moments; the books balance and the run goes on.

All places and many seeds are in virtual time: `tests/world/test_kills.py`.
"""

import os
import random
import time
from pathlib import Path

import psutil
import pytest

from fedagent_coordinator.books.read import open_reader
from fedagent_testbed.local import LocalField, RoleProcess

from .support import DEMO, check_books, labels, new_field, start_small

pytestmark = pytest.mark.slow
SLOW = ("rounds.deadline_s=4", "rounds.max_wait_s=6")


def dies(field: LocalField, role: str, name: str, config: dict[str, object], point: str) -> None:
    """Start a process that dies where it comes by, and wait until it has."""
    dying = {**os.environ, "FEDAGENT_FAILPOINT": f"{role}.{point}"}
    assert field.start(role, name, config, environment=dying).wait_exit() == -9


def test_every_role_is_killed_and_comes_back(tmp_path: Path) -> None:
    sets = ("aggregation.name=fedyogi", "rounds.merge_every=1", "rounds.count=6", *SLOW)
    config: dict[str, object] = {
        "recipe": str(DEMO),
        "broker": "embedded",
        "wait_agents": 3,
        "sets": list(sets),
    }
    device: dict[str, object] = {"stream": labels(2), "price": {"base": 1.0, "per_compute": 0.0}}
    with new_field(tmp_path) as field:
        coordinator = field.start("coordinator", "coordinator", config)
        for i in range(2):
            field.agent(f"agent-{i}", labels(i))
        field.edge("edge-0", broker="embedded").wait("ready")
        dies(field, "agent", "agent-2", device, "books.put:kill")
        field.start("agent", "agent-2", device)
        coordinator.wait("round", round=2)
        field.processes["edge-0"].kill()
        dies(field, "edge", "edge-0", {"broker": "embedded"}, "complete:kill")
        field.edge("edge-0", broker="embedded")
        coordinator.kill()
        for point in ("orders.half:kill", "model.committed:kill"):
            dies(field, "coordinator", "coordinator", config, point)
        last = field.start("coordinator", "coordinator", config)
        assert last.wait("ready")["resumed"] is True
        end = last.wait("end")
        assert (end["rounds_done"], end["ledger_balanced"]) == (6, True)
    check_books(last)
    with open_reader(Path(str(last.config["data_dir"]))) as read:
        assert len(read.runs()) == 1


def test_a_broker_is_killed_again_and_again_and_what_is_accepted_is_paid(tmp_path: Path) -> None:
    # Rounds of about a second, and less grace than an edge's longest pause was.
    sets = ("rounds.deadline_s=2", "rounds.max_wait_s=3", "learner.steps=3", "learner.step_s=0.3")
    rng, agents = random.Random(7), 3
    with new_field(tmp_path) as field:
        coordinator = start_small(field, rounds=5, agents=agents, sets=sets)
        coordinator.wait("round")
        for _ in range(6):
            _kill_broker(coordinator)
            time.sleep(rng.uniform(0.3, 1.5))
        coordinator.wait("end")
        with open_reader(Path(str(coordinator.config["data_dir"]))) as read:
            rows = read.outcomes(read.run().run_id)
        paid = {(row.round, row.agent) for row in rows if row.status in ("arrived", "late")}
        told: set[tuple[object, object]] = set()
        for i in range(agents):
            process = field.processes[f"agent-{i}"]
            me = process.wait("ready")["id"]
            for number in (number for number, agent in paid if agent == me):
                process.wait("receipt", round=number)  # those of the last round come at the end
            for event in process.all("receipt"):
                if event["status"] in ("accepted", "late"):
                    told.add((event["round"], me))
                elif event["status"] == "void":
                    told.discard((event["round"], me))
    check_books(coordinator)
    assert len(paid) >= 9
    assert told == paid


def _kill_broker(role: RoleProcess) -> None:
    for child in psutil.Process(role.pid).children():
        child.kill()
