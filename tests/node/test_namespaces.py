"""Discovery between network namespaces, as between devices on two LANs of one box."""

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

BOX = """
import asyncio, sys
from fedagent_node.discovery.announcing import Advert, Discovery
from fedagent_node.address import BrokerAddress
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
from fedagent_node.discovery.announcing import Discovery
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
    """Three empty namespaces."""
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
            space: json.loads(look.communicate(timeout=600)[0]) for space, look in looks.items()
        }
        announcer.stdin.close()
        announcer.wait(60)
    assert told == seen


def _cable(one: str, address: str, other: str, other_address: str, names: tuple[str, str]) -> None:
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
