"""A device that dies without a word is seen to be away soon, and chosen for nothing."""

import json
import time
from pathlib import Path

import pytest

from fedagent_edge.core.sessions import ANSWER_S, FRESH_S

from .support import BROKERS, labels, new_field, start_small
from .test_joining import cli

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("broker", BROKERS)
def test_a_device_that_is_killed_is_away_and_comes_back(tmp_path: Path, broker: str) -> None:
    sets = (
        "policy.name=cheapest",
        "budget.per_edge=1000",
        "rounds.every_s=0.5",
        "rounds.deadline_s=5",
    )
    with new_field(tmp_path) as field:
        coordinator = start_small(field, rounds=10_000, agents=3, broker=broker, sets=sets)
        coordinator.wait("round", used=3)
        edge, victim = field.processes["edge-0"], field.processes["agent-0"]
        ident = str(victim.wait("ready")["id"])
        killed = time.monotonic()
        victim.kill()
        edge.wait("agent_away", agent=ident, timeout_s=FRESH_S)
        assert ANSWER_S - 1.0 < time.monotonic() - killed < FRESH_S / 2
        there = len(coordinator.all("round"))
        while len(coordinator.all("round")) < there + 4:
            time.sleep(0.1)
        assert coordinator.all("round")[-1]["ordered"] == 2
        where = ("--data-dir", str(coordinator.config["data_dir"]), "--json")
        told = json.loads(cli("devices", *where).splitlines()[-1])["devices"]
        assert [one["agent"] for one in told if not one["online"]] == [ident]
        field.agent("agent-0", labels(0))
        there, give_up = len(coordinator.all("round")), time.monotonic() + 60
        while not any(one["ordered"] == 3 for one in coordinator.all("round")[there:]):
            assert time.monotonic() < give_up, "it is not chosen again"
            time.sleep(0.1)
