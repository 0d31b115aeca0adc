"""A site from its first minute, as people make it: invite, join, accept."""

import json
import re
from pathlib import Path

import pytest

from fedagent_testbed.local import RoleProcess
from tests.typed import fedagent

from .support import BROKERS, DEMO, PATIENT, check_books, labels, new_field

pytestmark = pytest.mark.slow


def cli(*arguments: str, code: int = 0) -> str:
    done = fedagent(*arguments)
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout.strip() or done.stderr.strip()


def code_shown(role: RoleProcess) -> str:
    return str(role.wait("joining")["code"])


@pytest.mark.parametrize("broker", BROKERS)
def test_a_site_from_its_first_minute(tmp_path: Path, broker: str) -> None:
    with new_field(tmp_path) as field:
        coordinator = field.coordinator(
            DEMO,
            broker=broker,
            secure=True,
            join_port=0,
            wait_agents=3,
            sets=("rounds.count=3", *PATIENT),
        )
        coordinator.wait("ready")
        where = ("--data-dir", str(coordinator.config["data_dir"]))
        # Before there is any edge, without an invitation: a code on both sides.
        bath = field.agent("bath", labels(1))
        code = code_shown(bath)
        told = json.loads(cli("devices", "--json", *where))
        assert code in {one["code"] for one in told["pending"]}
        cli("devices", "accept", code.replace("-", " "), *where)
        bath.wait("joined")
        hall = cli("devices", "invite", "hall", "--role", "edge", *where)
        kitchen = cli("devices", "invite", "kitchen", *where)
        assert re.fullmatch(r"fedagent:[A-Za-z0-9_-]+", kitchen)
        field.edge("hall", broker=broker, secure=True, join=hall).wait("joined")
        field.agent("kitchen", labels(0), join=kitchen).wait("joined")
        # Here through the edge's relay too.
        attic = field.agent("attic", labels(2))
        assert code_shown(attic) in cli("devices", *where)
        assert "give the code that it shows" in cli("devices", "accept", "attic", *where, code=2)
        cli("devices", "accept", code_shown(attic), *where)
        attic.wait("joined")
        second = field.agent("second", labels(0), join=kitchen)
        assert second.wait_exit() == 2
        assert "used by another device" in second.log.read_text()
        coordinator.wait("end")
        assert coordinator.wait_exit() == 0
        told = json.loads(cli("devices", "--json", *where))
        states = {one["name"]: one["enrolment"] for one in told["devices"]}
        assert states == dict.fromkeys(("kitchen", "bath", "attic"), "joined, 30 days")
        assert [one["name"] for one in told["edges"]] == ["hall"]
        # The key never left: what the device signs with is in its own directory alone.
        key = (tmp_path / "kitchen" / "site" / "key.pem").read_bytes()
        others = [path for path in (tmp_path / "coordinator").rglob("*") if path.is_file()]
        assert not any(key in path.read_bytes() for path in others)
        check_books(coordinator)
