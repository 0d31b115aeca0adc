"""Who is revoked is cut while connected, at an edge and at the coordinator; the field goes on."""

import time
from pathlib import Path
from typing import Any

import pytest

from fedagent_coordinator.books.read import open_reader
from fedagent_node.site.credentials import load_credentials
from fedagent_testbed.local import RoleProcess

from .support import BROKERS, DEMO, PATIENT, check_books, labels, new_field
from .test_joining import cli

pytestmark = pytest.mark.slow
SITE: dict[str, Any] = {"secure": True, "join_port": 0}
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
            **SITE,
            wait_edges=2,
            wait_agents=4,
            sets=("rounds.count=500", "rounds.every_s=0.5", *PATIENT),
        )
        home = str(coordinator.config["data_dir"])
        for name in ("hall", "porch"):
            field.edge(name, broker=broker, secure=True)
        agents = [field.agent(f"agent-{i}", labels(i)) for i in range(4)]
        let_in(home, field.processes["hall"], field.processes["porch"], *agents)
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


def let_in(home: str | Path, *roles: RoleProcess) -> None:
    """Accept roles that wait, as in a lab."""
    for role in roles:
        role.wait("joining")
    cli("devices", "accept", "--all", "--data-dir", str(home))
