"""A whole round as bytes that real roles sent: how it is recorded, and what of it is read back.

``python -m tests.fakes.recorded_round`` records the round of this release anew, in some seconds.
"""

import asyncio
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fedagent_node.broker import Broker, BrokerSpec
from fedagent_node.data_dir import IDENTITY_FILE, Identity, write_private
from fedagent_node.link import Arrival, Link
from fedagent_protocol import SOFTWARE, topics
from fedagent_protocol.topics import Topic
from fedagent_testbed.local import LocalField

from .voices import identity

FOLDER = Path(__file__).parents[1] / "protocol" / "recorded"
HERE = FOLDER / SOFTWARE.split()[-1]
SITE = "recorded"
AGENTS = ("agent-0", "agent-1")
PRICE = 0.1
RECIPE = """\
name = "recorded"
seed = 7
[model]
kind = "softmax"
features = 64
classes = 10
[learner]
name = "minibatch"
[rounds]
count = 1
deadline_s = 20
max_wait_s = 30
min_updates = 2
[budget]
per_edge = 1.0
[policy]
name = "all"
"""
_FILE, _RECIPE = "round.msgpack.z", "recipe.toml"


@dataclass(frozen=True, slots=True)
class Said:
    """One message: seconds since the first, its topic, and its payload with the envelope."""

    at: float
    topic: str
    payload: bytes

    @property
    def where(self) -> Topic:
        return topics.parse(self.topic)


def member(name: str) -> Identity:
    """Return who a role of the recordings is: its signatures can be made again."""
    return identity(f"recorded/{name}")


def recorded(folder: Path) -> tuple[str, list[Said]]:
    """Return the recipe of a recorded round, and all that was said."""
    data = zlib.decompress((folder / _FILE).read_bytes())
    said = msgspec.msgpack.decode(data, type=list[Said])
    return (folder / _RECIPE).read_text(), said


async def _record(folder: Path) -> list[Said]:
    broker = Broker(BrokerSpec(data_dir=folder / "broker", kind="embedded"))
    address = await broker.start()
    said: list[Said] = []
    begin = time.monotonic()

    def note(arrivals: list[Arrival]) -> None:
        said.extend(Said(round(a.at - begin, 3), a.topic, a.payload) for a in arrivals)

    link = Link(address, client_id="recorder", on_arrivals=note, on_state=lambda _: None)
    await link.start()
    await link.subscribe("fedagent/#")
    try:
        await asyncio.to_thread(_play, folder, str(address))
    finally:
        await link.stop()
        await broker.stop()
    return said


def _play(folder: Path, address: str) -> None:
    """Have real processes with seeded keys do a round, all at one broker."""
    names = ("coordinator", "edge", *AGENTS)
    for name in names:
        who = member(name)
        stored = {"id": who.id, "public": who.public_bytes, "private": who._private_bytes}
        write_private(folder / name / IDENTITY_FILE, msgspec.json.encode(stored))
    recipe = folder / _RECIPE
    recipe.write_text(RECIPE)
    with LocalField(folder, SITE, defaults={"broker": address, "discovery": "off"}) as field:
        coordinator = field.coordinator(recipe, wait_edges=1, wait_agents=len(AGENTS), linger_s=1.0)
        coordinator.wait("ready")
        field.edge("edge")
        for name in AGENTS:
            field.agent(name, "digits:rate=2000", price={"base": PRICE, "per_compute": 0.0})
        coordinator.wait("end", updates_used=len(AGENTS))
        coordinator.wait_exit()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        said = asyncio.run(_record(Path(folder)))
    HERE.mkdir(parents=True, exist_ok=True)
    (HERE / _FILE).write_bytes(zlib.compress(msgspec.msgpack.encode(said), 9))
    (HERE / _RECIPE).write_text(RECIPE)
    sys.stdout.write(f"{len(said)} messages, {sum(len(one.payload) for one in said)} bytes\n")


if __name__ == "__main__":
    main()
