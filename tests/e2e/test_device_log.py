"""The events of a device, asked for by typing the command, over the brokers of a field with TLS."""

import json
import time
from pathlib import Path

import pytest

from tests.typed import fedagent

from .support import BROKERS, DEMO, OPEN_SITE, PATIENT, labels, new_field

pytestmark = pytest.mark.slow


def _log(home: str, device: str, *more: str, code: int = 0) -> str:
    done = fedagent("devices", "log", device, *more, "--data-dir", home)
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout.strip() or done.stderr.strip()


@pytest.mark.parametrize("broker", BROKERS)
def test_a_device_tells_its_events_when_asked(tmp_path: Path, broker: str) -> None:
    with new_field(tmp_path) as field:
        coordinator = field.coordinator(
            DEMO,
            broker=broker,
            **OPEN_SITE,
            wait_edges=2,
            wait_agents=3,
            sets=("rounds.count=5000", *PATIENT),
        )
        home = str(coordinator.config["data_dir"])
        for name in ("hall", "porch"):
            field.edge(name, broker=broker, secure=True)
        for i in range(2):
            field.agent(f"agent-{i}", labels(i))
        field.agent("agent-2", labels(2), private_log=True)
        coordinator.wait("round", round=5)

        told = json.loads(_log(home, "agent-0", "--json"))
        ident = str(field.processes["agent-0"].wait("ready")["id"])
        assert (told["device"], told["name"]) == (ident, "agent-0")
        ordered = [one for one in told["events"] if one["event"] == "ordered"]
        assert ordered
        assert ordered[-1]["round"] >= 1
        assert told["counters"]["receipt_accepted"] >= 1
        times = [one["at"] for one in told["events"]]
        assert times == sorted(times)
        assert time.time() - 60 < times[-1] <= time.time()

        soon = _log(home, "agent-0", code=43)
        assert "agent-0 refused: asked again within 10 s; wait and try again" in soon
        keeps = _log(home, "agent-2", code=43)
        assert "its owner does not share its log (private_log)" in keeps
        lines = _log(home, "agent-1", "--last", "5").splitlines()
        assert len(lines) == 1 + 5
        assert lines[0].split() == ["at", "event", "what"]
        coordinator.stop()
        gone = _log(home, "agent-0", code=40)
        assert "no coordinator is running on" in gone
