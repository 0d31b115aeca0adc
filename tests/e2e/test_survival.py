"""Real processes die at the worst moments; the books balance and the run goes on.

The same cases run with many seeds in virtual time in `tests/testbed/test_survival.py`.
"""

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from fedagent_coordinator.books.reader import open_reader
from fedagent_task.recipe.text import parse_recipe
from fedagent_testbed.local import RoleProcess
from tests.fakes.strategy_chain import check_chain

from .support import BROKERS, DEMO, check_books, labels, new_field, start_small

SLOW = ("rounds.deadline_s=4", "rounds.max_wait_s=6")


def _kill_when(process: RoleProcess, kind: str, *, nth: int = 1) -> None:
    """Kill a process right after it said something for the nth time."""
    deadline = time.monotonic() + 60
    while len(process.all(kind)) < nth:
        assert time.monotonic() < deadline, f"{process.name} never said {kind} {nth} times"
        time.sleep(0.005)
    process.kill()


def _dying(role: str, checkpoint: str) -> dict[str, str]:
    """Return the environment of a process that dies where it comes by first."""
    return {**os.environ, "FEDAGENT_FAILPOINT": f"{role}.{checkpoint}:kill"}


@pytest.mark.slow
def test_an_agent_is_killed_again_and_again_and_comes_back(tmp_path: Path) -> None:
    with new_field(tmp_path) as field:
        coordinator = start_small(field, rounds=100_000, agents=2, sets=SLOW)
        for moment in ("ready", "ordered", "update", "receipt"):
            _kill_when(field.processes["agent-1"], moment)
            back = field.agent("agent-1", labels(1))
        back.wait("receipt")
        coordinator.popen.send_signal(signal.SIGTERM)
        assert coordinator.wait_exit() == 0
    check_books(coordinator, still_open=1)


@pytest.mark.slow
def test_an_edge_is_killed_in_mid_round(tmp_path: Path) -> None:
    with new_field(tmp_path) as field:
        coordinator = start_small(field, rounds=6, edges=0, agents=3, sets=SLOW)
        for checkpoint in ("spooled", "receipted"):
            edge = field.start(
                "edge", "edge-0", {"broker": "embedded"}, environment=_dying("edge", checkpoint)
            )
            assert edge.wait_exit() == -9
        again = field.edge("edge-0", broker="embedded")
        end = coordinator.wait("end", timeout_s=120)
        assert end["rounds_done"] == 6
        assert again.all("round_closed")
    check_books(coordinator)


@pytest.mark.slow
def test_a_coordinator_is_killed_and_restarted_again_and_again(tmp_path: Path) -> None:
    config: dict[str, object] = {
        "recipe": str(DEMO),
        "broker": "embedded",
        "wait_agents": 3,
        "sets": ["rounds.count=6", *SLOW],
    }
    with new_field(tmp_path) as field:
        field.edge("edge-0", broker="embedded")
        for i in range(3):
            field.agent(f"agent-{i}", labels(i))
        for checkpoint in ("orders.half", "settled"):
            dying = _dying("coordinator", checkpoint)
            process = field.start("coordinator", "coordinator", config, environment=dying)
            assert process.wait_exit() == -9
        last = field.start("coordinator", "coordinator", config)
        assert last.wait("ready")["resumed"] is True
        end = last.wait("end", timeout_s=120)
        assert end["ledger_balanced"] is True
        assert end["rounds_done"] == 6
    check_books(last)
    with open_reader(Path(str(last.config["data_dir"]))) as read:
        assert len(read.runs()) == 1


@pytest.mark.slow
def test_a_server_optimiser_is_killed_around_its_commit(tmp_path: Path) -> None:
    sets = ("aggregation.name=fedyogi", "rounds.merge_every=1", "rounds.count=5", *SLOW)
    config: dict[str, object] = {
        "recipe": str(DEMO),
        "broker": "embedded",
        "wait_agents": 3,
        "sets": list(sets),
    }
    with new_field(tmp_path) as field:
        field.edge("edge-0", broker="embedded")
        for i in range(3):
            field.agent(f"agent-{i}", labels(i))
        # The first commit is of the model that the run begins with.
        for checkpoint in ("merged:kill@2", "model.committed:kill@2", "committed:kill"):
            dying = {**os.environ, "FEDAGENT_FAILPOINT": f"coordinator.{checkpoint}"}
            process = field.start("coordinator", "coordinator", config, environment=dying)
            assert process.wait_exit() == -9
        last = field.start("coordinator", "coordinator", config)
        assert last.wait("ready")["resumed"] is True
        assert last.wait("end", timeout_s=120)["rounds_done"] == 5
    check_books(last)
    models = check_chain(Path(str(last.config["data_dir"])), parse_recipe(DEMO.read_text(), sets))
    assert len(models) >= 4
    assert all(state for _, _, state in models[1:])


@pytest.mark.slow
@pytest.mark.parametrize("broker", BROKERS)
def test_the_coordinators_broker_is_killed_again_and_again_and_what_is_accepted_is_paid(
    tmp_path: Path, broker: str
) -> None:
    # Rounds of about a second, and less grace than an edge's longest pause was.
    sets = ("rounds.deadline_s=2", "rounds.max_wait_s=3", "learner.steps=3", "learner.step_s=0.3")
    rng, agents = random.Random(7), 3
    with new_field(tmp_path) as field:
        coordinator = start_small(field, rounds=5, agents=agents, broker=broker, sets=sets)
        coordinator.wait("round")
        for _ in range(6):
            _kill_broker(coordinator)
            time.sleep(rng.uniform(0.3, 1.5))
        coordinator.wait("end", timeout_s=90)
        told = set()
        for i in range(agents):
            process = field.processes[f"agent-{i}"]
            me = process.wait("ready")["id"]
            fine = (e for e in process.all("receipt") if e["status"] in ("accepted", "late"))
            told |= {(event["round"], me) for event in fine}
    check_books(coordinator)
    with open_reader(Path(str(coordinator.config["data_dir"]))) as read:
        rows = read.outcomes(read.run().run_id)
    paid = {(row.round, row.agent) for row in rows if row.status in ("arrived", "late")}
    assert len(told) >= 9
    assert told == paid


def _kill_broker(role: RoleProcess) -> None:
    for child in psutil.Process(role.pid).children():
        child.kill()
