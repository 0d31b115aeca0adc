"""Who is revoked is cut while connected, at an edge and at the coordinator; the field goes on."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedagent_coordinator.books.reader import open_reader
from fedagent_node.site.credentials import load_credentials

from .support import BROKERS, DEMO, OPEN_SITE, PATIENT, check_books, labels, new_field
from .test_joining import cli

pytestmark = pytest.mark.slow
CUT_S = 600.0
"""The promise is 60 s on a machine that is not busy."""


@pytest.mark.parametrize("broker", BROKERS)
def test_a_revoked_agent_and_a_revoked_edge_are_cut_while_connected(
    tmp_path: Path, broker: str
) -> None:
    with new_field(tmp_path) as field:
        coordinator = field.coordinator(
            DEMO,
            broker=broker,
            **OPEN_SITE,
            wait_edges=2,
            wait_agents=4,
            sets=("rounds.count=500", "rounds.every_s=0.5", *PATIENT),
        )
        home = str(coordinator.config["data_dir"])
        for name in ("hall", "porch"):
            field.edge(name, broker=broker, secure=True)
        agents = [field.agent(f"agent-{i}", labels(i)) for i in range(4)]
        coordinator.wait("round")
        thief = agents[0]
        ident = str(thief.wait("ready")["id"])
        cli("devices", "revoke", "agent-0", "--data-dir", home)
        at = time.monotonic()
        edges = [field.processes[name] for name in ("hall", "porch")]
        while not any(
            ident in str(e.get("agent")) for edge in edges for e in edge.all("agent_lost")
        ):
            assert time.monotonic() - at < CUT_S
            time.sleep(0.05)
        while "it was revoked; to join as a new device" not in thief.log.read_text():
            assert time.monotonic() - at < CUT_S
            time.sleep(0.05)
        print(f"agent cut and told after {time.monotonic() - at:.1f} s")
        before = coordinator.all("round")[-1]["round"]
        gone = str(edges[1].wait("ready")["id"])
        cli("devices", "revoke", "porch", "--data-dir", home)
        at = time.monotonic()
        coordinator.wait("edge_lost")
        assert coordinator.all("edge_lost")[-1]["edge"] == gone
        while "it was revoked; to join as a new device" not in edges[1].log.read_text():
            assert time.monotonic() - at < CUT_S
            time.sleep(0.05)
        print(f"edge cut and told after {time.monotonic() - at:.1f} s")
        while not all(
            gone in {str(one["edge"]) for one in agent.all("edge_lost")} for agent in agents[1:]
        ):
            assert time.monotonic() - at < CUT_S
            time.sleep(0.05)
        for i in (1, 2, 3):
            held = load_credentials(tmp_path / f"agent-{i}")
            assert held is not None
            assert len(held.revocations().serials) == 2
            log = agents[i].log.read_text()
            assert "revocation list 2 is in use" in log
        print(f"agents left it after {time.monotonic() - at:.1f} s")
        while int(str(coordinator.all("round")[-1]["round"])) < int(str(before)) + 4:
            assert time.monotonic() - at < 600
            time.sleep(0.05)
        coordinator.stop()
    for one in (coordinator, *edges):
        assert "broker ended" not in one.log.read_text(), "a reload is enough"
    check_books(coordinator, still_open=1)
    with open_reader(Path(home)) as read:
        assert read.ledger.verify().balanced


@pytest.mark.nightly
def test_after_a_loss_of_the_disk_who_was_revoked_stays_out_and_others_can_be(
    tmp_path: Path,
) -> None:
    """The backup knows neither the first revocation nor the last device."""
    with new_field(tmp_path) as field:
        config = {
            "recipe": str(DEMO),
            "broker": "embedded",
            "wait_agents": 2,
            "sets": ["rounds.count=500", "rounds.every_s=0.5", *PATIENT],
            "accept_lost_history": True,
            **OPEN_SITE,
        }
        coordinator = field.start("coordinator", "coordinator", config)
        home, copy = tmp_path / "coordinator", tmp_path / "copy"
        edge = field.edge("hall", broker="embedded", secure=True)
        agents = [field.agent(f"agent-{i}", labels(i)) for i in range(2)]
        coordinator.wait("round")
        cli("backup", str(copy), "--data-dir", str(home))
        agents.append(field.agent("agent-2", labels(2)))
        ids = [str(agent.wait("ready")["id"]) for agent in agents]
        agents[2].wait("edge_joined")
        cli("devices", "revoke", "agent-0", "--data-dir", str(home))
        until(lambda: revoked_at(tmp_path / "hall") == {ids[0]})
        coordinator.kill()
        coordinator.wait_exit()
        shutil.rmtree(home)
        cli("restore", str(copy), "--data-dir", str(home))
        again = field.start("coordinator", "coordinator", config)
        until(lambda: "is taken over: 1 ids and certificates" in again.log.read_text())
        cli("devices", "revoke", ids[2], "--data-dir", str(home))
        for held in ("hall", "agent-1"):
            until(lambda held=held: revoked_at(tmp_path / held) == {ids[0], ids[2]})  # type: ignore[misc]  # a bound default
        until(lambda: any(ids[2] in str(one.get("agent")) for one in edge.all("agent_lost")))
        again.wait("round")
        again.stop()


def revoked_at(folder: Path) -> frozenset[str]:
    """Return whom a member knows to be revoked."""
    held = load_credentials(folder)
    return frozenset() if held is None else held.revocations().ids


def until(condition: Callable[[], bool]) -> None:
    """Wait for what nobody announces; the limit is for what never comes."""
    patience = time.monotonic() + 600
    while not condition():
        if time.monotonic() > patience:
            pytest.fail("it never came")
        time.sleep(0.05)
