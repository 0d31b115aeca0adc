"""The run as a device of Home Assistant, at a real broker with a user and a password."""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedagent_coordinator.config import CoordinatorConfig
from fedagent_coordinator.home_assistant import (
    LEFT_FILE,
    PREFIX,
    description,
    left_at,
    place_of,
    topic_of,
)
from fedagent_node.address import BrokerAddress
from fedagent_node.link import Arrival, Link
from fedagent_node.settings import SettingError
from fedagent_testbed.local import LocalField, RoleProcess
from tests.e2e.support import DEMO, NEEDS_PASSWORDS, PATIENT, guarded, labels, new_field

ME = "a" * 32
USER, PASSWORD = "home", "a pass:word@"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with guarded(tmp_path / "broker", USER, PASSWORD) as found:
        yield found


def retained(port: int, *, seconds: float = 1.0) -> dict[str, bytes]:
    """Return what the broker has for who comes now, and what it hears for some time."""
    heard: dict[str, bytes] = {}

    def note(arrivals: list[Arrival]) -> None:
        heard.update({one.topic: one.payload for one in arrivals})

    async def listen() -> None:
        address = replace(BrokerAddress.parse(f"mqtt://{USER}@127.0.0.1:{port}"), password=PASSWORD)
        link = Link(address, client_id="home", on_arrivals=note, on_state=lambda _: None)
        await link.start()
        await link.subscribe("homeassistant/#")
        await asyncio.sleep(seconds)
        await link.stop()

    asyncio.run(listen())
    return heard


def start(field: LocalField, port: int, folder: Path, *, shown: bool = True) -> RoleProcess:
    (folder / "password").write_text(PASSWORD)
    home = {"home_assistant": f"mqtt://{USER}@127.0.0.1:{port}"} if shown else {}
    return field.coordinator(
        DEMO,
        broker="embedded",
        sets=("rounds.count=100000", "rounds.every_s=0.3", *PATIENT),
        password_file=str(folder / "password"),
        **home,
    )


def test_the_description_is_one_device_whose_topics_are_its_own() -> None:
    found = description(ME, "garden")
    assert found["origin"] == {"name": "fedagent", "sw_version": found["device"]["sw_version"]}  # type: ignore[index] # JSON
    parts = found["components"]
    assert isinstance(parts, dict)
    assert {one["platform"] for one in parts.values()} == {"sensor"}
    assert len({one["unique_id"] for one in parts.values()}) == len(parts) == 5
    assert all(one["expire_after"] > 60 for one in parts.values())
    topics = re.findall(rf"{PREFIX}[^\"]*", json.dumps(found))
    assert set(topics) == {topic_of(ME, "state")}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("localhost", "mqtt://localhost:1883"),
        ("mqtt://a%40b:secret@127.0.0.1:99", "mqtt://a%40b@127.0.0.1:99"),
        ("mqtt://[::1]:99", "mqtt://[::1]:99"),
    ],
)
def test_what_is_kept_of_an_address_is_an_address_without_the_password(
    text: str, kept: str, tmp_path: Path
) -> None:
    config = CoordinatorConfig(data_dir=str(tmp_path), recipe="digits", home_assistant=text)
    address = config.home()
    assert address is not None
    assert place_of(address) == kept
    assert place_of(BrokerAddress.parse(kept)) == kept


@pytest.mark.parametrize("text", ["mqtt://10.0.0.9", "mqtts://127.0.0.1", "mqtt://you@127.0.0.1"])
def test_a_broker_that_cannot_be_used_is_refused_at_once(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDAGENT_MQTT_PASSWORD", raising=False)
    with pytest.raises(SettingError, match="home_assistant"):
        CoordinatorConfig(data_dir=str(tmp_path), recipe="digits", home_assistant=text).checked()


class TestAtABroker:
    pytestmark = NEEDS_PASSWORDS

    def test_the_run_is_shown_and_taken_back_at_a_clean_stop(
        self, tmp_path: Path, port: int
    ) -> None:
        with new_field(tmp_path) as field:
            coordinator = start(field, port, tmp_path)
            me = str(coordinator.wait("ready")["id"])
            field.edge("edge-0", broker="embedded")
            field.agent("agent-0", labels(0))
            coordinator.wait("round", round=3, timeout_s=60)
            shown = retained(port, seconds=7.0)
            assert json.loads(shown[topic_of(me, "config")]) == json.loads(
                json.dumps(description(me, field.site))
            )
            state = json.loads(shown[topic_of(me, "state")])
            assert state["round"] >= 3
            assert state["agents"] == 1
            assert state["measure"] == "accuracy"
            assert 0.1 < state["quality"] <= 1
            assert isinstance(state["alarms"], int)
            folder = Path(str(coordinator.config["data_dir"]))
            assert left_at(folder) == f"mqtt://{USER}@127.0.0.1:{port}"
            coordinator.stop()
        assert retained(port) == {}
        assert not left_at(folder)

    def test_what_a_kill_leaves_is_taken_back_when_it_is_switched_off(
        self, tmp_path: Path, port: int
    ) -> None:
        with new_field(tmp_path) as field:
            coordinator = start(field, port, tmp_path)
            me = str(coordinator.wait("ready")["id"])
            folder = Path(str(coordinator.config["data_dir"]))
            until_shown(port, me)
            coordinator.kill()
            assert set(retained(port)) == {topic_of(me, "config")}, "a state is not retained"
            assert PASSWORD not in (folder / LEFT_FILE).read_text()
            start(field, port, tmp_path, shown=False).wait("ready")
            assert retained(port, seconds=3.0).get(topic_of(me, "config"), b"") == b""
            assert retained(port) == {}
            assert not left_at(folder)


def until_shown(port: int, me: str) -> None:
    for _ in range(10):
        if topic_of(me, "config") in retained(port):
            return
    pytest.fail("the coordinator is not shown")
