"""Floods against an edge's broker while honest rounds go on: memory of broker and role.

``python -m bench.floods [mosquitto|embedded ...]``, in a network of its own. Attackers of TLS are
enrolled agents; those of the plain broker are anybody. Memory is the resident set of the edge and
what it started, above that of quiet rounds before the first flood.
"""

import asyncio
import logging
import os
import secrets
import ssl
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from fedagent_coordinator.books.read import open_reader
from fedagent_node.broker.mosquitto import connect_packet
from fedagent_node.data_dir import Identity, load_or_create
from fedagent_node.envelope import Gate
from fedagent_node.network import free_port
from fedagent_protocol import topics
from fedagent_protocol.codec import encode
from fedagent_protocol.messages import Hello
from fedagent_testbed.local import LocalField, RoleProcess
from tests.fakes.site import Members
from tests.fakes.voices import Voice
from tests.fakes.voices import identity as identity_named

from .rows import Rows, show

RECIPE = Path(__file__).parent / "wire.toml"
SETS = ("rounds.count=0", "rounds.every_s=1", "rounds.deadline_s=4", "rounds.max_wait_s=6")
AGENTS, ATTACKERS = 5, 20
FLOOD_S, QUIET_S = 6.0, 3.0
BAR_MB = 128.0
BLOCK = os.urandom(200_000)


@dataclass
class Attack:
    """What is attacked, and with which identities."""

    port: int
    edge: str
    site: str
    contexts: list[ssl.SSLContext | None]
    keys: list[Identity]
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def ids(self) -> list[str]:
        """Their ids."""
        return [key.id for key in self.keys]

    async def connected(self, i: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection of the i-th attacker."""
        i %= len(self.ids)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.contexts[i], limit=1 << 16
        )
        writer.write(connect_packet(self.ids[i] if self.contexts[i] is None else "x"))
        await reader.readexactly(4)
        return reader, writer

    def up(self, i: int) -> str:
        """Return a topic that the i-th may write to."""
        return topics.agent_up(self.site, self.ids[i % len(self.ids)], self.edge, "hello")


async def sent(writer: asyncio.StreamWriter, packet: bytes) -> None:
    """Write, unless the broker has closed the connection."""
    if writer.transport.is_closing():
        raise ConnectionResetError
    writer.write(packet)
    await writer.drain()
    await asyncio.sleep(0)


def publish(topic: str, body: bytes) -> bytes:
    """Return a PUBLISH at QoS 0."""
    name = topic.encode()
    rest = len(name).to_bytes(2, "big") + name + body
    return b"\x30" + _length(len(rest)) + rest


def subscribe(*filters: str) -> bytes:
    """Return a SUBSCRIBE."""
    rest = b"\0\1" + b"".join(len(f).to_bytes(2, "big") + f.encode() + b"\1" for f in filters)
    return b"\x82" + _length(len(rest)) + rest


def _length(n: int) -> bytes:
    out = b""
    while True:
        n, low = divmod(n, 128)
        out += bytes([low | (0x80 if n else 0)])
        if not n:
            return out


async def stalled(a: Attack, i: int) -> None:
    """Subscribe to everything and all of one's own, make traffic, and never read."""
    _, writer = await a.connected(i)
    mine = topics.agent_filters(a.site, a.ids[i % len(a.ids)])
    writer.write(subscribe("#", "$SYS/#", *mine))
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a socket
    _, other = await a.connected(i + 1)
    while True:
        await sent(other, publish(a.up(i + 1), BLOCK))
        a.counts["messages"] += 1


async def half_open(a: Attack, _: int) -> None:
    """Hold connections that say nothing, or the first byte of something."""
    held = [await asyncio.open_connection("127.0.0.1", a.port) for _ in range(150)]
    for n, (_reader, writer) in enumerate(held):
        writer.write(b"\x16" * (n % 2))
        a.counts["connections"] += 1
    await asyncio.sleep(FLOOD_S)


async def connects(a: Attack, i: int) -> None:
    """Come and go as fast as can be."""
    while True:
        _, writer = await a.connected(i)
        writer.close()
        a.counts["connections"] += 1


async def published(a: Attack, i: int) -> None:
    """Send where one may, as fast as can be."""
    _, writer = await a.connected(i)
    while True:
        await sent(writer, publish(a.up(i), BLOCK))
        a.counts["messages"] += 1


async def signed(a: Attack, i: int) -> None:
    """Sign 3 000 messages a second with one stolen key."""
    _, writer = await a.connected(0)
    gate = Gate(a.keys[0], starts=int(time.time()), clock=time.monotonic)
    while i == 0:
        for _ in range(15):
            await sent(writer, publish(a.up(0), gate.seal(a.up(0), encode(Hello()), kind="hello")))
            a.counts["messages"] += 1
        await asyncio.sleep(0.005)
    await asyncio.sleep(FLOOD_S)


async def invented(a: Attack, i: int) -> None:
    """Say hello in 20 000 names, each with a key of its own."""
    _, writer = await a.connected(i)
    for n in range(20_000 // ATTACKERS):
        voice = Voice(f"invented-{i}-{n}")
        topic = topics.agent_up(a.site, voice.id, a.edge, "hello")
        await sent(writer, publish(topic, voice.seal(topic, Hello())))
        a.counts["names"] += 1


FLOODS: dict[str, Callable[[Attack, int], Awaitable[None]]] = {
    "stalled subscribers": stalled,
    "half-open": half_open,
    "connects": connects,
    "publishes": published,
    "signed": signed,
    "invented ids": invented,
}


async def _flood(how: Callable[[Attack, int], Awaitable[None]], attack: Attack) -> None:
    async def one(i: int) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await how(attack, i)
            await asyncio.sleep(0.05)

    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with suppress(TimeoutError):
        async with asyncio.timeout(FLOOD_S):
            await asyncio.gather(*(one(i) for i in range(ATTACKERS)))


def _memory(edge: RoleProcess) -> float:
    """Return the resident megabytes of the edge and its children."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        own = psutil.Process(edge.pid)
        for one in (own, *own.children(recursive=True)):
            total += one.memory_info().rss
    return total / 1e6


def _rounds(coordinator: RoleProcess) -> int:
    with open_reader(Path(str(coordinator.config["data_dir"]))) as read:
        return sum(one.state == "done" for one in read.rounds(read.run().run_id))


def measure(broker: str, *, secure: bool) -> Rows:
    """Run every flood against one edge."""
    with tempfile.TemporaryDirectory(prefix="fedagent-floods-") as folder:
        home, site = Path(folder), f"floods-{secrets.token_hex(4)}"
        with LocalField(home, site, defaults={"log_level": "error"}) as here:
            cover: dict[str, Any] = {"secure": True} if secure else {}
            join: dict[str, Any] = {"join_port": free_port("127.0.0.1")} if secure else {}
            contexts: list[ssl.SSLContext | None] = [None] * ATTACKERS
            keys = [identity_named(f"attacker-{i}") for i in range(ATTACKERS)]
            if secure:
                members = Members.of_coordinator(home, "coordinator", site)
                members.member("edge-0", "edge")
                for i in range(AGENTS):
                    members.member(f"agent-{i}", "agent")
                found = [members.member(f"attacker-{i}", "agent") for i in range(ATTACKERS)]
                contexts = [one.client_context() for one in found]
                keys = [load_or_create(home / f"attacker-{i}") for i in range(ATTACKERS)]
            coordinator = here.coordinator(
                RECIPE, broker=broker, sets=SETS, wait_agents=AGENTS, **cover, **join
            )
            edge = here.edge("edge-0", broker=broker, **cover)
            for i in range(AGENTS):
                here.agent(f"agent-{i}", "digits:rate=5", json_events=False)
            ready = edge.wait("ready")
            attack = Attack(int(str(ready["port"])), str(ready["id"]), site, contexts, keys)
            time.sleep(8.0)
            first = _memory(edge)
            for name, how in FLOODS.items():
                row = _one(name, how, attack, coordinator, edge, first)
                yield {"broker": broker, "link": "tls" if secure else "plain", **row}


def _one(
    name: str,
    how: Callable[[Attack, int], Awaitable[None]],
    attack: Attack,
    coordinator: RoleProcess,
    edge: RoleProcess,
    idle: float,
) -> dict[str, object]:
    time.sleep(QUIET_S)
    before, began = _rounds(coordinator), time.monotonic()
    attack.counts.clear()
    flood = threading.Thread(target=lambda: asyncio.run(_flood(how, attack)))
    flood.start()
    peak = 0.0
    while flood.is_alive():
        peak = max(peak, _memory(edge))
        time.sleep(0.1)
    during, took = _rounds(coordinator) - before, time.monotonic() - began
    time.sleep(QUIET_S)
    after = _rounds(coordinator) - before - during
    met = peak - idle <= BAR_MB and during > 0 and after > 0 and edge.popen.poll() is None
    return {
        "bench": "floods",
        "flood": name,
        **attack.counts,
        "idle_mb": round(idle, 1),
        "beyond_mb": round(peak - idle, 1),
        "after_mb": round(_memory(edge) - idle, 1),
        "rounds_during": during,
        "seconds": round(took, 1),
        "rounds_after": after,
        "met": met,
    }


def rows(brokers: tuple[str, ...] = ("mosquitto", "embedded")) -> Rows:
    """Return every flood on every kind of broker, with and without certificates."""
    for broker in brokers:
        for secure in (True, False):
            yield from measure(broker, secure=secure)


if __name__ == "__main__":
    sys.exit(not show(rows(tuple(sys.argv[1:]) or ("mosquitto", "embedded"))))
