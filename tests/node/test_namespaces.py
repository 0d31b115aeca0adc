"""Discovery between two network namespaces, as between two devices on one LAN."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
from fedagent_node.broker import Broker, BrokerSpec
from fedagent_node.discovery import Advert, Discovery
from fedagent_node.link import BrokerAddress
async def main():
    spec = BrokerSpec(kind="embedded", data_dir=Path(sys.argv[1]), listen="0.0.0.0",
                      port=1883, insecure=True)
    broker = Broker(spec); await broker.start()
    discovery = Discovery("field", scope="lan"); await discovery.start()
    await discovery.advertise(Advert("edge", "aa", "field", broker.address, 1), listen="0.0.0.0")
    print("up", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await discovery.stop(); await broker.stop()
asyncio.run(main())
"""

AGENT = """
import asyncio, json, sys
from fedagent_node.discovery import Discovery
from fedagent_node.link import BrokerAddress, Link
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
                insecure=True,
                on_arrivals=lambda _: None, on_state=lambda _: up.set())
    await link.start()
    await asyncio.wait_for(up.wait(), 60)
    await link.stop(); await discovery.stop()
    print(json.dumps(hosts))
asyncio.run(main())
"""

BOX = """
import asyncio, sys
from fedagent_node.discovery import Advert, Discovery
from fedagent_node.link import BrokerAddress
async def main():
    said = []
    for ident, listen in (("here", "127.0.0.1"), ("one", "10.98.7.1"), ("all", "0.0.0.0")):
        discovery = Discovery("field", scope="lan"); await discovery.start()
        advert = Advert("edge", ident, "field", BrokerAddress(listen, 1883), 1)
        await discovery.advertise(advert, listen=listen)
        said.append(discovery)
    print("up", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for discovery in said:
        await discovery.stop()
asyncio.run(main())
"""

LOOK = """
import asyncio, json, sys
from fedagent_node.discovery import Discovery
async def main():
    discovery = Discovery("field", scope="lan"); await discovery.start()
    seen, found = {}, asyncio.Event()
    def change(adverts):
        seen.update({a.id: a.address.host for a in adverts})
        if len(seen) == int(sys.argv[1]):
            found.set()
    discovery.browse("edge", change)
    await asyncio.wait_for(found.wait(), 60)
    await asyncio.sleep(1.5)  # for what must not come
    await discovery.stop()
    print(json.dumps(seen))
asyncio.run(main())
"""


@pytest.fixture
def spaces() -> Iterator[tuple[str, str, str]]:
    """Three empty namespaces: an edge's, an agent's and a router's."""
    tag = f"fa{os.getpid() % 100000}"
    names = (f"{tag}e", f"{tag}a", f"{tag}r")
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def test_discovery_across_a_cable(spaces: tuple[str, str, str], tmp_path: Path) -> None:
    here, there, _ = spaces
    _cable(here, "10.98.7.1/24", there, "10.98.7.2/24")
    assert _found_by_agent(here, there, tmp_path, patience_s=60) == ["10.98.7.1"]


def test_mdns_stops_at_a_router_and_a_typed_address_works(
    spaces: tuple[str, str, str], tmp_path: Path
) -> None:
    here, there, router = spaces
    _cable(here, "10.98.7.1/24", router, "10.98.7.254/24", names=("e0", "e0"))
    _cable(there, "10.98.8.2/24", router, "10.98.8.254/24", names=("e0", "e1"))
    _ip("-n", here, "route", "add", "default", "via", "10.98.7.254")
    _ip("-n", there, "route", "add", "default", "via", "10.98.8.254")
    forward = "open('/proc/sys/net/ipv4/ip_forward', 'w').write('1')"
    _ip("netns", "exec", router, sys.executable, "-c", forward)
    assert _found_by_agent(here, there, tmp_path, patience_s=2) == []


def test_an_edge_is_announced_where_it_can_be_reached_and_nowhere_else(
    spaces: tuple[str, str, str],
) -> None:
    one, two, box = spaces
    _cable(box, "10.98.7.1/24", one, "10.98.7.2/24", names=("e0", "e0"))
    _cable(box, "10.98.8.1/24", two, "10.98.8.2/24", names=("e1", "e0"))
    seen = {
        box: {"here": "127.0.0.1", "one": "10.98.7.1", "all": "10.98.7.1"},
        one: {"one": "10.98.7.1", "all": "10.98.7.1"},
        two: {"all": "10.98.8.1"},
    }
    with _in(box, BOX) as announcer:
        assert announcer.stdin is not None
        assert announcer.stdout is not None
        assert announcer.stdout.readline() == "up\n"
        looks = {space: _in(space, LOOK, str(len(expected))) for space, expected in seen.items()}
        told = {
            space: json.loads(look.communicate(timeout=150)[0]) for space, look in looks.items()
        }
        announcer.stdin.close()
        announcer.wait(60)
    assert told == seen


def _found_by_agent(here: str, there: str, folder: Path, *, patience_s: float) -> list[str]:
    """Run an edge here and an agent there, which must connect; return what it found."""
    with _in(here, EDGE, str(folder)) as edge:
        assert edge.stdin is not None
        assert edge.stdout is not None
        assert edge.stdout.readline() == "up\n"
        with _in(there, AGENT, "10.98.7.1", str(patience_s)) as agent:
            out, _ = agent.communicate(timeout=150)
        edge.stdin.close()
        edge.wait(60)
    assert agent.returncode == 0
    found: list[str] = json.loads(out)
    return found


def _cable(
    one: str, address: str, other: str, other_address: str, names: tuple[str, str] = ("e0", "e0")
) -> None:
    a, b = names
    _ip("link", "add", a, "netns", one, "type", "veth", "peer", b, "netns", other)
    for space, device, own in ((one, a, address), (other, b, other_address)):
        _ip("-n", space, "addr", "add", own, "dev", device)
        _ip("-n", space, "link", "set", device, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _in(namespace: str, code: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
