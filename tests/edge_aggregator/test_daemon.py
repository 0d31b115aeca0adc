"""The edge as a process: its broker, its end, its exit codes, and which coordinator it takes."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fedagent_edge.config import EdgeConfig
from fedagent_edge.daemon import EdgeDaemon
from fedagent_node.address import BrokerAddress
from fedagent_node.broker.process import Broker, BrokerSpec
from fedagent_node.data_dir import write_private
from fedagent_node.discovery.advert import Advert
from fedagent_node.effects import Emit
from fedagent_node.site.credentials import Joined
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import Direction
from fedagent_testbed.local import RoleProcess
from tests.e2e.support import BROKERS
from tests.fakes.links import peer
from tests.fakes.site import Members
from tests.fakes.voices import voice

SITE = "edge-test"


async def said(process: RoleProcess, event: str) -> dict[str, object]:
    return await asyncio.to_thread(lambda: process.wait(event, timeout_s=600.0))


@contextmanager
def edge(directory: Path, **facts: object) -> Iterator[RoleProcess]:
    config = {
        "data_dir": str(directory),
        "site": SITE,
        "discovery": "off",
        "json_events": True,
        "log_level": "warning",
        **facts,
    }
    directory.mkdir(exist_ok=True)
    process = RoleProcess(name="edge", role="edge", config=config, log=directory / "log")
    try:
        yield process
    finally:
        process.kill()
        process.close()


@pytest.mark.parametrize("kind", BROKERS)
async def test_it_runs_its_own_broker_and_leaves_no_orphan(tmp_path: Path, kind: str) -> None:
    with edge(tmp_path, broker=kind) as process:
        ready = await said(process, "ready")
        address, me = BrokerAddress.parse(str(ready["broker"])), voice("a0")
        assert ready["broker_kind"] == kind
        filters = topics.agent_filters(SITE, me.id)
        async with peer(address, me.id, *filters, reads=Direction.EDGE_TO_AGENT) as one:
            await one.message(m.EdgeBeacon)
            topic = topics.agent_up(SITE, me.id, str(ready["id"]), "hello")
            assert one.link.publish(topic, me.seal(topic, m.Hello()))
            await one.message(m.Welcome)
            assert (await said(process, "agent_joined"))["agent"] == me.id
        assert await asyncio.to_thread(process.stop) == 0
        with pytest.raises(OSError, match=r"refused|Connect"):
            await asyncio.open_connection(address.host, address.port)


def test_exit_codes_of_what_cannot_start(tmp_path: Path) -> None:
    def code(name: str, **facts: object) -> int:
        with edge(tmp_path / name, **facts) as process:
            return process.wait_exit()

    assert code("x", borker="auto") == 2
    away: dict[str, object] = {"broker": "embedded", "listen": "203.0.113.1"}
    assert code("x", **away) == 2, "it wants certificates"
    assert code("x", **away, insecure=True) == 20
    with edge(tmp_path / "x", broker="embedded") as process:
        process.wait("ready")
        assert code("x", broker="embedded") == 75, "another process is on the directory"
    (tmp_path / "x" / "spool" / "journal").write_bytes(b"\xc1" * 99)
    assert code("x", broker="embedded") == 21


def test_coordinators_are_tried_in_turn_last_of_all_where_the_edge_joined(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = EdgeDaemon(EdgeConfig(name="hall", data_dir=str(tmp_path / "hall")))
    lan = BrokerAddress("127.0.0.1", 1)
    daemon._shell._broker = Broker(BrokerSpec(data_dir=tmp_path))
    daemon._shell.membership = Members(tmp_path).member("hall", "edge")
    joined = Joined(site="home", fingerprint="", services=("10.9.0.1:8871",), broker_port=7000)
    write_private(tmp_path / "hall" / "site" / "joined.json", msgspec.json.encode(joined))
    assert daemon._candidates(lan) == [BrokerAddress("10.9.0.1", 7000, "mqtts")]
    adverts = [
        Advert("coordinator", name, "default", BrokerAddress(host, 1883, "mqtts"), 1)
        for name, host in (("aa", "10.0.0.9"), ("bb", "10.0.0.1"))
    ]
    daemon._on_adverts(frozenset([replace(adverts[0], refused=True), adverts[1]]))
    assert [one.address.host for one in daemon._adverts] == ["10.0.0.1", "10.0.0.9"]
    assert [one.host for one in daemon._candidates(lan)] == ["10.0.0.1", "10.0.0.9", "10.9.0.1"]
    caplog.set_level("INFO")
    daemon._show(Emit("run_ended", {"reason": "rounds"}))
    assert caplog.messages[-1].endswith(": run ended: reason rounds")
