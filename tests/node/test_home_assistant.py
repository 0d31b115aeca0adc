"""The run as a device of Home Assistant: a script beside the run, at a broker with a password."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from fedagent_node.address import BrokerAddress
from fedagent_node.link import Arrival, Link
from tests.e2e.support import NEEDS_PASSWORDS, guarded

SCRIPT = Path(__file__).parents[2] / "deploy/observe/home_assistant.py"
USER, PASSWORD = "home", "a pass:word@"
RUN = {
    "event": "run",
    "rounds_done": 2,
    "primary_metric": "accuracy",
    "metrics": {"accuracy": 0.5},
    "spent_micro": 1_000_000,
    "budget_total_micro": 3_000_000,
}
ROUND = {
    "event": "round",
    "round": 3,
    "in_time": 2,
    "metrics": {"accuracy": 0.75},
    "paid_micro": 500_000,
    "rent_micro": 0,
}
ALARM = {"event": "alarm", "kind": "edge", "subject": "e", "text": "away", "hint": "look"}
pytestmark = NEEDS_PASSWORDS


def retained(port: int) -> dict[str, bytes]:
    """Return what the broker has for who comes now."""
    heard: dict[str, bytes] = {}

    def note(arrivals: list[Arrival]) -> None:
        heard.update({one.topic: one.payload for one in arrivals})

    async def listen() -> None:
        address = replace(BrokerAddress.parse(f"mqtt://{USER}@127.0.0.1:{port}"), password=PASSWORD)
        link = Link(address, client_id="test", on_arrivals=note, on_state=lambda _: None)
        await link.start()
        await link.subscribe("#")
        await asyncio.sleep(0.5)
        await link.stop()

    asyncio.run(listen())
    return heard


def test_a_run_is_shown_while_it_is_watched_and_taken_back_then(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    with guarded(tmp_path / "broker", USER, PASSWORD) as port:
        command = (f"mqtt://{USER}@127.0.0.1:{port}", str(tmp_path / "password"))
        with subprocess.Popen(
            [sys.executable, str(SCRIPT), *command], stdin=subprocess.PIPE, text=True
        ) as shown:
            assert shown.stdin is not None
            for event in (RUN, ROUND, ALARM):
                shown.stdin.write(json.dumps(event) + "\n")
            shown.stdin.flush()
            for _ in range(20):
                found = retained(port)
                if json.loads(found.get("fedagent/state", b"{}")).get("alarms"):
                    break
            assert json.loads(found["fedagent/state"]) == {
                "round": 3,
                "quality": 0.75,
                "in_time": 2,
                "budget": 1.5,
                "alarms": 1,
            }
            assert found["fedagent/available"] == b"online"
            parts = json.loads(found["homeassistant/device/fedagent/config"])["components"]
            assert len({one["unique_id"] for one in parts.values()}) == len(parts)
            shown.stdin.close()
            assert shown.wait(20) == 0
        assert retained(port) == {}
