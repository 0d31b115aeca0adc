"""Real processes die at the worst moments; the books balance and the run goes on.

The same cases run with many seeds in virtual time in `tests/testbed/test_survival.py`.
"""

import os
import time
from pathlib import Path

import pytest

from fedagent_testbed.local import RoleProcess

from .support import check_books, new_field, start_small

SLOW = ("rounds.deadline_s=4", "rounds.max_wait_s=6")


def _kill_when(process: RoleProcess, kind: str, *, nth: int = 1) -> None:
    """Kill a process right after it said something for the nth time."""
    deadline = time.monotonic() + 60
    while len(process.all(kind)) < nth:
        assert time.monotonic() < deadline, f"{process.name} never said {kind} {nth} times"
        time.sleep(0.005)
    process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["ready", "ordered", "update", "receipt"])
def test_an_agent_is_killed_and_comes_back(tmp_path: Path, moment: str) -> None:
    with new_field(tmp_path) as field:
        # Many short rounds: the kill must not come after the last.
        coordinator = start_small(field, rounds=40, agents=3, sets=SLOW)
        victim = field.processes["agent-1"]
        _kill_when(victim, moment)
        field.agent("agent-1", "digits:labels=1+2,rate=40")
        end = coordinator.wait("end", timeout_s=120)
        assert end["rounds_done"] == 40
        back = field.processes["agent-1"]
        assert back.all("receipt"), "the agent came back to work"
    check_books(coordinator)


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", ["spooled", "receipted"])
def test_an_edge_is_killed_in_mid_round(tmp_path: Path, checkpoint: str) -> None:
    environment = {**os.environ, "FEDAGENT_FAILPOINT": f"edge.{checkpoint}:kill"}
    with new_field(tmp_path) as field:
        coordinator = start_small(field, rounds=6, edges=0, agents=3, sets=SLOW)
        edge = field.start("edge", "edge-0", {"broker": "embedded"}, environment=environment)
        assert edge.wait_exit(timeout_s=60) == -9
        again = field.edge("edge-0", broker="embedded")
        end = coordinator.wait("end", timeout_s=120)
        assert end["rounds_done"] == 6
        assert again.all("round_closed")
    check_books(coordinator)


@pytest.mark.slow
@pytest.mark.parametrize(
    "checkpoint", ["reserved", "settle.first-entry", "settled", "orders.half", "reported"]
)
def test_a_coordinator_is_killed_and_restarted(tmp_path: Path, checkpoint: str) -> None:
    environment = {**os.environ, "FEDAGENT_FAILPOINT": f"coordinator.{checkpoint}:kill"}
    with new_field(tmp_path) as field:
        config: dict[str, object] = {
            "recipe": str(Path(__file__).parents[2] / "deploy/recipes/demo.toml"),
            "broker": "embedded",
            "wait_agents": 3,
            "sets": ["rounds.count=6", *SLOW],
        }
        first = field.start("coordinator", "coordinator", config, environment=environment)
        field.edge("edge-0", broker="embedded")
        for i in range(3):
            field.agent(f"agent-{i}", f"digits:labels={i}+{i + 1},rate=40")
        assert first.wait_exit(timeout_s=60) == -9
        second = field.start("coordinator", "coordinator", config)
        assert second.wait("ready")["resumed"] is True
        end = second.wait("end", timeout_s=120)
        assert end["ledger_balanced"] is True
        assert end["rounds_done"] == 6
    check_books(second)
