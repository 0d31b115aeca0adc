"""Discovery between two network namespaces, as between two devices on one LAN."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"
    ),
]

EDGE = """
import asyncio, sys
from pathlib import Path
from fedagent_protocol.transport.broker import Broker, BrokerSpec
from fedagent_protocol.transport.discovery import Advert, Discovery
from fedagent_protocol.transport.mqtt import BrokerAddress
async def main():
    spec = BrokerSpec(kind="embedded", data_dir=Path(sys.argv[1]), listen="0.0.0.0",
                      port=1883, insecure=True)
    broker = Broker(spec); await broker.start()
    discovery = Discovery("field", scope="lan"); await discovery.start()
    await discovery.advertise(Advert("edge", "aa", "field", broker.address, 1))
    print("up", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await discovery.stop(); await broker.stop()
asyncio.run(main())
"""

AGENT = """
import asyncio, json, sys
from fedagent_protocol.transport.discovery import Discovery
from fedagent_protocol.transport.mqtt import BrokerAddress, Link
async def main():
    discovery = Discovery("field", scope="lan"); await discovery.start()
    found = asyncio.Queue()
    discovery.browse("edge", found.put_nowait)
    try:
        adverts = await asyncio.wait_for(found.get(), float(sys.argv[2]))
    except TimeoutError:
        adverts = frozenset()
    hosts = [a.address.host for a in adverts]
    up = asyncio.Event()
    link = Link(BrokerAddress(hosts[0] if hosts else sys.argv[1], 1883), client_id="agent",
                on_arrivals=lambda _: None, on_state=lambda _: up.set())
    await link.start()
    await asyncio.wait_for(up.wait(), 15)
    await link.stop(); await discovery.stop()
    print(json.dumps(hosts))
asyncio.run(main())
"""


@pytest.fixture
def lan() -> Iterator[tuple[str, str]]:
    """Two namespaces joined by a cable: 10.98.7.1 and 10.98.7.2."""
    tag = f"fa{os.getpid() % 100000}"
    names = (f"{tag}a", f"{tag}b")
    try:
        for name in names:
            _ip("netns", "add", name)
        pair = ("e0", "netns", names[0], "type", "veth", "peer", "e0", "netns", names[1])
        _ip("link", "add", *pair)
        for number, name in enumerate(names, 1):
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "addr", "add", f"10.98.7.{number}/24", "dev", "e0")
            _ip("-n", name, "link", "set", "e0", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.mark.parametrize("multicast", [True, False])
def test_discovery_across_a_cable_or_a_typed_address(
    lan: tuple[str, str], tmp_path_factory: pytest.TempPathFactory, *, multicast: bool
) -> None:
    here, there = lan
    if not multicast:
        for name in lan:
            _ip("-n", name, "link", "set", "e0", "multicast", "off")
            _ip("-n", name, "route", "add", "blackhole", "224.0.0.0/4")
    folder = str(tmp_path_factory.mktemp("edge"))
    with _in(here, EDGE, folder) as edge:
        assert edge.stdin is not None
        assert edge.stdout is not None
        assert edge.stdout.readline() == "up\n"
        with _in(there, AGENT, "10.98.7.1", "10" if multicast else "2") as agent:
            out, _ = agent.communicate(timeout=60)
        edge.stdin.close()
        edge.wait(20)
    assert agent.returncode == 0
    assert json.loads(out) == (["10.98.7.1"] if multicast else [])


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _in(namespace: str, code: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
