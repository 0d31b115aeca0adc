"""A field of members: TLS everywhere, and who is no member or was revoked gets nowhere."""

import shutil
import time
from pathlib import Path

import pytest

from tests.fakes.site import Members
from tests.typed import fedagent

from .support import BROKERS, check_books, labels, new_field, start_small

pytestmark = pytest.mark.slow
FAKETIME = shutil.which("faketime")


@pytest.mark.parametrize("broker", BROKERS)
def test_members_run_their_rounds_over_tls_and_a_stranger_learns_nothing(
    tmp_path: Path, broker: str
) -> None:
    with new_field(tmp_path) as field:
        members = Members.of_coordinator(tmp_path, "coordinator", field.site)
        for i in range(2):
            members.member(f"edge-{i}", "edge")
        for i in range(4):
            members.member(f"agent-{i}", "agent")
        coordinator = start_small(field, rounds=3, edges=2, agents=4, broker=broker, secure=True)
        stranger = field.agent("stranger", labels(5))
        for name in ("edge-0", "edge-1"):
            ready = field.processes[name].wait("ready")
            assert str(ready["broker"]).startswith("mqtts://")
        assert coordinator.wait("end")["rounds_done"] == 3
        ident = str(stranger.wait("ready")["id"])
        assert not stranger.all("edge_joined")
        for name in ("edge-0", "edge-1"):
            assert ident not in {
                str(one["agent"]) for one in field.processes[name].all("agent_joined")
            }
    check_books(coordinator)


def test_a_stolen_key_in_use_twice_raises_an_alarm_and_neither_is_paid(tmp_path: Path) -> None:
    with new_field(tmp_path) as field:
        members = Members.of_coordinator(tmp_path, "coordinator", field.site)
        members.member("edge-0", "edge")
        for i in range(3):
            members.member(f"agent-{i}", "agent")
        shutil.copytree(tmp_path / "agent-0", tmp_path / "clone")
        coordinator = start_small(field, rounds=10_000, agents=3, secure=True)
        ident = str(field.processes["agent-0"].wait("ready")["id"])
        field.agent("clone", labels(0))
        edge = field.processes["edge-0"]
        edge.wait("agent_lost")
        assert {str(one["agent"]) for one in edge.all("agent_lost")} == {ident}
        until = time.monotonic() + 600  # it may have been lost once before it was known for a clone
        while "two devices use one identity" not in (log := edge.log.read_text()):
            assert time.monotonic() < until, log
            time.sleep(0.2)
        assert f"a/{ident}: connected a second time while connected" in log
        where = ("--data-dir", str(tmp_path / "coordinator"))
        # It is in the edge's next status.
        while "cloned" not in (listed := fedagent("devices", *where).stdout):
            assert time.monotonic() < until, listed
        coordinator.stop()
    check_books(coordinator, still_open=1)


@pytest.mark.skipif(FAKETIME is None, reason="faketime is not installed")
def test_a_device_whose_clock_begins_in_1970_joins_and_checks_all_but_the_times(
    tmp_path: Path,
) -> None:
    past = [str(FAKETIME), "-f", "@1970-01-02 00:00:00"]
    env = {"FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with new_field(tmp_path) as field:
        members = Members.of_coordinator(tmp_path, "coordinator", field.site)
        members.member("edge-0", "edge")
        members.member("agent-0", "agent")
        foreign = Members(tmp_path / "elsewhere", field.site)
        foreign.member("stranger", "agent")
        coordinator = start_small(field, rounds=2, agents=0, wait_agents=1, secure=True)
        device = {"stream": labels(0), "price": {"base": 0.0, "per_compute": 0.0}}
        field.start("agent", "agent-0", device, prefix=past, environment=env)
        there = {"data_dir": str(tmp_path / "elsewhere" / "stranger"), **device}
        stranger = field.start("agent", "stranger", there, prefix=past, environment=env)
        assert coordinator.wait("end")["rounds_done"] == 2
        give_up = time.monotonic() + 600
        while "this site's authority did not issue it" not in stranger.log.read_text():
            assert time.monotonic() < give_up
            time.sleep(0.1)
        assert not stranger.all("edge_joined")
    check_books(coordinator)
