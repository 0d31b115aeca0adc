"""A site from its first minute, as people make it: invite, join, accept, revoke, come back."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedagent_node.site.credentials import load_credentials
from fedagent_testbed.local import LocalField, RoleProcess

from .support import BROKERS, DEMO, PATIENT, check_books, labels, new_field

pytestmark = pytest.mark.slow


def cli(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fedagent_cli", *arguments],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout.strip() or done.stderr.strip()


def site_of(
    field: LocalField, *, rounds: int = 3, agents: int = 3, broker: str = "embedded"
) -> tuple[RoleProcess, str]:
    """Start a coordinator that takes members alone; return it and its data directory."""
    coordinator = field.coordinator(
        DEMO,
        broker=broker,
        secure=True,
        join_port=0,
        wait_agents=agents,
        sets=(f"rounds.count={rounds}", *PATIENT),
    )
    coordinator.wait("ready")
    return coordinator, str(coordinator.config["data_dir"])


def code_shown(role: RoleProcess) -> str:
    return str(role.wait("joining")["code"])


@pytest.mark.parametrize("broker", BROKERS)
def test_a_site_from_its_first_minute(tmp_path: Path, broker: str) -> None:
    with new_field(tmp_path) as field:
        coordinator, home = site_of(field, broker=broker)
        hall = cli("devices", "invite", "hall", "--role", "edge", "--data-dir", home)
        kitchen = cli("devices", "invite", "kitchen", "--data-dir", home)
        assert re.fullmatch(r"fedagent:[A-Za-z0-9_-]+", kitchen)
        edge = field.edge("hall", broker=broker, secure=True, join=hall)
        edge.wait("joined")
        field.agent("kitchen", labels(0), join=kitchen).wait("joined")
        # Without an invitation: a code on both sides, here through the edge's relay too.
        bath, attic = (field.agent(name, labels(i)) for i, name in enumerate(("bath", "attic")))
        code = code_shown(bath)
        told = json.loads(cli("devices", "--json", "--data-dir", home))
        assert code in {one["code"] for one in told["pending"]}
        cli("devices", "accept", code.replace("-", " "), "--data-dir", home)
        bath.wait("joined")
        assert code_shown(attic) in cli("devices", "--data-dir", home)
        assert "give the code" in cli("devices", "accept", "attic", "--data-dir", home, code=2)
        cli("devices", "accept", "attic", "--yes", "--data-dir", home)
        attic.wait("joined")
        coordinator.wait("end")
        assert coordinator.wait_exit() == 0
        told = json.loads(cli("devices", "--json", "--data-dir", home))
        states = {one["name"]: one["enrolment"] for one in told["devices"]}
        assert states == dict.fromkeys(("kitchen", "bath", "attic"), "joined, 30 days")
        assert [one["name"] for one in told["edges"]] == ["hall"]
        assert "joined, 30 days" in cli("devices", "--data-dir", home)
        # The key never left: what the device signs with is in its own directory alone.
        key = (tmp_path / "kitchen" / "site" / "key.pem").read_bytes()
        others = [path for path in Path(home).rglob("*") if path.is_file()]
        assert not any(key in path.read_bytes() for path in others)
        check_books(coordinator)


def test_a_device_joins_before_there_is_any_edge(tmp_path: Path) -> None:
    with new_field(tmp_path) as field:
        coordinator, home = site_of(field, agents=1)
        hall = cli("devices", "invite", "hall", "--role", "edge", "--data-dir", home)
        kitchen = field.agent("kitchen", labels(0))
        cli("devices", "accept", code_shown(kitchen), "--data-dir", home)
        kitchen.wait("joined")
        field.edge("hall", secure=True, join=hall)
        coordinator.wait("end")
        assert "is not used" not in kitchen.log.read_text()


def ends(field: LocalField, name: str, join: str, *, code: int = 2) -> str:
    """Return the line with which an agent ends."""
    role = field.agent(name, labels(0), join=join)
    assert role.wait_exit() == code, role.log.read_text()
    return role.log.read_text().strip().splitlines()[-1]


def test_a_newcomer_is_told_what_is_wrong(tmp_path: Path) -> None:
    with new_field(tmp_path) as field:
        _, home = site_of(field)
        edge_invitation = cli("devices", "invite", "hall", "--role", "edge", "--data-dir", home)
        line = ends(field, "role", edge_invitation)
        assert "is for an edge, but this is an agent" in line
        assert "devices invite NAME --role agent" in line
        kitchen = cli("devices", "invite", "kitchen", "--data-dir", home)
        assert "whole string" in ends(field, "cut", kitchen[:-3])
        device = field.agent("kitchen", labels(0), join=kitchen)
        device.wait("joined")
        assert "used by another device" in ends(field, "second", kitchen)
        device.stop()
        # Somebody else's site: it belongs to this one already.
        with new_field(tmp_path / "other") as other:
            other.site = field.site
            _, elsewhere = site_of(other)
            foreign = cli("devices", "invite", "kitchen", "--data-dir", elsewhere)
        assert "already" in ends(field, "kitchen", foreign)
        cli("devices", "revoke", "kitchen", "--data-dir", home)
        assert "revoked" in cli("devices", "--data-dir", home)
        site = tmp_path / "kitchen" / "site"
        for path in site.iterdir():
            path.unlink()
        again = cli("devices", "invite", "kitchen", "--data-dir", home)
        line = ends(field, "kitchen", again)
        assert "revoked" in line
        assert "choose another --data-dir" in line
        assert load_credentials(tmp_path / "kitchen") is None
