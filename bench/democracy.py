"""Twenty agents decide who trains, through a real broker and a relay: seconds and bytes.

python -m bench democracy

One process holds all agents, so that they share one core: each is the real runtime with its
disk and a connection of its own. The relay is what an edge does with `PeerSend`. Time runs
from the call, with every opinion ready, to the last decision; bytes are the payloads of
`PeerSend` of the agent that sent most: envelopes, padding, seals and cards, until
nothing more is sent about the slot.
"""

import asyncio
import functools
import secrets
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from fedagent_agent.config import AgentConfig
from fedagent_agent.core.agent import AgentCore
from fedagent_agent.store import open_agent
from fedagent_coordinator.policies.sets.neighbours import k_nearest
from fedagent_node.address import BrokerAddress
from fedagent_node.broker.process import Broker, BrokerSpec
from fedagent_node.data_dir import load_or_create
from fedagent_node.driver import Driver, Job
from fedagent_node.effects import Connect, Input, Received, Send
from fedagent_node.link import Arrival, Link
from fedagent_protocol import topics
from fedagent_protocol.codec import Direction, decode, encode
from fedagent_protocol.messages import (
    EdgeBeacon,
    EdgeToAgent,
    Neighbours,
    OpinionCall,
    OpinionMode,
    PeerDeliver,
    PeerSend,
    Volunteer,
    Welcome,
    kind,
)
from fedagent_task.spec import PeersSpec

AGENTS, BEST, NEAREST = 20, 5, 4
SLOTS = 6
SITE, EDGE = "bench", "relay"
RUN, TASK, MODEL = "ab" * 16, "cd" * 32, "ef" * 32
SETTLE_S = 3.0
LIMIT_S = 20.0
BAR_S, BAR_BYTES = 1.0, 20_000


def rows() -> Iterator[dict[str, object]]:
    kinds: list[Literal["mosquitto", "embedded"]] = ["embedded"]
    if shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto"):
        kinds.insert(0, "mosquitto")
    for each in kinds:
        with tempfile.TemporaryDirectory() as folder:
            yield asyncio.run(_measure(Path(folder), each))


@dataclass
class _Sends:
    """Connections that only send."""

    out: Callable[[Send], None]

    def send(self, send: Send) -> bool:
        self.out(send)
        return True

    def change(self, effect: Connect) -> None:
        """Change nothing."""


class _NoJobs:
    def submit(self, job: Job) -> Input | None:
        raise AssertionError(job)


@dataclass
class _Agent:
    """One agent, its connection and its timer."""

    link: Link
    core: AgentCore
    driver: Driver
    timer: asyncio.TimerHandle | None = None


@dataclass
class _Field:
    """Everybody, and what is measured."""

    folder: Path
    agents: dict[str, _Agent] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    decided: dict[str, float] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)
    number: int = 0
    relay: Link | None = None

    async def start(self, address: BrokerAddress) -> None:
        self.relay = Link(
            address, client_id="relay", on_arrivals=self._relayed, on_state=lambda _: None
        )
        await self.relay.start()
        await self.relay.subscribe(*topics.edge_lan_filters(SITE, EDGE))
        for n in range(AGENTS):
            await self._start_agent(self.folder / str(n), address)

    async def _start_agent(self, folder: Path, address: BrokerAddress) -> None:
        identity = load_or_create(folder)
        config = AgentConfig(data_dir=str(folder), site=SITE, stream="digits", seed=1)
        me = identity.id
        core, store = open_agent(
            config, me, submit=lambda _: None, pending=lambda _: 0, identity=identity
        )
        link = Link(
            address,
            client_id=identity.id,
            on_arrivals=functools.partial(self._arrived, identity.id),
            on_state=lambda _: None,
        )
        driver = Driver(
            core,
            store,
            links=_Sends(functools.partial(self._send, me)),
            jobs=_NoJobs(),
            clock=time.monotonic,
            emit=lambda _: None,
            warn=lambda _: None,
            me=me,
        )
        self.agents[me] = _Agent(link, core, driver)
        await link.start()
        await link.subscribe(*topics.agent_filters(SITE, identity.id))
        for message in (EdgeBeacon(edge=EDGE, period_ms=60_000), Welcome(edge=EDGE)):
            driver.receive(Received(EDGE, message, "l", time.monotonic()))
        core.peers.task(TASK, PeersSpec(best=BEST))

    async def stop(self) -> None:
        for agent in self.agents.values():
            if agent.timer is not None:
                agent.timer.cancel()
            await agent.link.stop()
            agent.driver.store.close()
        if self.relay is not None:
            await self.relay.stop()

    # ------------------------------------------------------------------ agents

    def _arrived(self, me: str, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            message = decode(Direction.EDGE_TO_AGENT, arrival.payload)
            self.agents[me].driver.receive(Received(EDGE, message, "l", arrival.at))
        self.look(me)

    def _send(self, me: str, send: Send) -> None:
        message, payload = send.message, encode(send.message)
        if isinstance(message, PeerSend):
            self.sent[me] += len(payload)
        elif isinstance(message, Volunteer):
            self.words.add(me)
        qos = 0 if isinstance(message, PeerSend) else 1
        topic = topics.agent_up(SITE, me, send.to, kind(message))
        self.agents[me].link.publish(topic, payload, qos=qos)

    def look(self, me: str) -> None:
        """Note a decision, and set the timer anew."""
        agent = self.agents[me]
        self._note_decision(me)
        if agent.timer is not None:
            agent.timer.cancel()
        due = agent.driver.next_due()
        if due is not None:
            agent.timer = asyncio.get_running_loop().call_at(due, self._tick, me)

    def _tick(self, me: str) -> None:
        self.agents[me].driver.tick()
        self.look(me)

    def _note_decision(self, me: str) -> None:
        slot = self.agents[me].core.peers._slot  # noqa: SLF001 - the watch
        if slot is not None and slot.call.round == self.number and me not in self.decided:
            record = slot.record
            if record is not None and record.chosen is not None:
                self.decided[me] = time.monotonic()

    # ------------------------------------------------------------------- relay

    def tell(self, me: str, message: EdgeToAgent) -> None:
        assert self.relay is not None
        qos = 0 if isinstance(message, PeerDeliver) else 1
        self.relay.publish(
            topics.agent_down(SITE, me, EDGE, kind(message)), encode(message), qos=qos
        )

    def _relayed(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            message = decode(Direction.AGENT_TO_EDGE, arrival.payload)
            if isinstance(message, PeerSend):
                sender = topics.parse(arrival.topic).agent
                self.tell(message.to, PeerDeliver(sender=sender, body=message.body))

    async def slot(self, number: int, opinions: dict[str, float]) -> dict[str, float]:
        """Call everybody; return seconds, bytes and volunteers of a slot."""
        self.number = number
        self.sent.clear()
        self.words.clear()
        self.decided.clear()
        call = OpinionCall(
            run=RUN,
            round=number,
            task=TASK,
            model=MODEL,
            size=1,
            chunk_bytes=1024,
            until_ms=5000,
            mode=OpinionMode.PEERS,
            slot=number + 1,
        )
        begun, used = time.monotonic(), time.process_time()
        for me, agent in self.agents.items():
            begin = functools.partial(agent.core.peers.begin, call, EDGE, opinions[me])
            agent.driver._handle(begin)  # noqa: SLF001
            self.look(me)
        while len(self.decided) < AGENTS and time.monotonic() < begun + LIMIT_S:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        seconds = max(self.decided.values()) - begun
        await asyncio.sleep(SETTLE_S)
        return {
            "seconds": seconds,
            "cpu": time.process_time() - used,
            "bytes": float(max(self.sent.values())),
            "mean_bytes": statistics.mean(self.sent.values()),
            "undecided": float(len(self.agents) - len(self.decided)),
            "volunteers": float(len(self.words)),
        }


async def _measure(folder: Path, each: Literal["mosquitto", "embedded"]) -> dict[str, object]:
    broker = Broker(BrokerSpec(data_dir=folder, kind=each, name=secrets.token_hex(4)))
    address = await broker.start()
    rng = np.random.default_rng(1)
    graph = k_nearest("bench", rng.random((AGENTS, 2)), NEAREST)
    here = _Field(folder)
    try:
        await here.start(address)
        ids = sorted(here.agents)
        around: dict[str, dict[str, float]] = {me: {} for me in ids}
        for a, b, d in zip(graph.left, graph.right, graph.distance, strict=True):
            around[ids[a]][ids[b]] = around[ids[b]][ids[a]] = float(d)
        for me, peers in around.items():
            here.tell(me, Neighbours(peers=peers))
        await asyncio.sleep(1.0)
        slots = []
        for number in range(SLOTS):
            opinion = np.clip(rng.normal(0.7, 0.1, AGENTS), 0, 1).tolist()
            slots.append(await here.slot(number, dict(zip(ids, opinion, strict=True))))
    finally:
        await here.stop()
        await broker.stop()
    seconds = [slot["seconds"] for slot in slots]
    most = max(slot["bytes"] for slot in slots)
    agreed = sum(slot["volunteers"] == BEST for slot in slots)
    whole = not any(slot["undecided"] for slot in slots)
    return {
        "bench": "democracy",
        "broker": each,
        "agents": AGENTS,
        "slots": SLOTS,
        "neighbours_most": max(map(len, around.values())),
        "decided_s": round(statistics.median(seconds), 3),
        "decided_s_most": round(max(seconds), 3),
        "agents_and_relay_cpu_s": round(statistics.median(slot["cpu"] for slot in slots), 3),
        "sent_bytes_most": int(most),
        "sent_bytes_mean": int(statistics.mean(slot["mean_bytes"] for slot in slots)),
        "slots_with_k_volunteers": agreed,
        "bar": f"{BAR_S:g} s, {BAR_BYTES} bytes",
        "met": statistics.median(seconds) <= BAR_S and most <= BAR_BYTES and whole,
    }
