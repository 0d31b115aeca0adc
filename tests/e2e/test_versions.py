"""A peer of protocol 2 is refused with one line on both sides, and never misread."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from fedagent_node.broker import Broker, BrokerSpec
from fedagent_node.effects import Emit
from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction
from fedagent_testbed.local import RoleProcess
from tests.fakes.coordinator_site import Site, recipe, toy_edges
from tests.fakes.links import Peer, peer
from tests.fakes.played_edge import wait_for

GOLDEN = Path(__file__).parents[1] / "protocol" / "golden" / "2"
SITE = "old-and-new"
Start = Callable[..., RoleProcess]
LINE = "speaks protocol 2, the {} 3: install the same release of fedagent on both"


def old(name: str) -> bytes:
    return (GOLDEN / f"{name}.msgpack").read_bytes()


async def logged(log: Path, text: str) -> None:
    await asyncio.to_thread(wait_for, lambda: text in log.read_text())


def test_an_agent_refuses_an_edge_of_protocol_2_and_the_edge_hears_of_it(tmp_path: Path) -> None:
    beacon = f"fedagent/2/{SITE}/e/edge-1/beacon"

    async def scene(start: Start, one: Peer) -> None:
        device = start("agent", stream="digits", edges=[str(one.link.address)], discovery="off")
        async with asyncio.timeout(30):
            while not one.messages:
                one.link.publish(beacon, old("edge-to-agent.edge-beacon"))
                await asyncio.sleep(0.2)
        await logged(device.log, f"edge edge-1 {LINE.format('agent')}")
        for _ in range(3):
            one.link.publish(beacon, old("edge-to-agent.edge-beacon"))
        await asyncio.sleep(0.5)
        ((topic, hello),) = one.messages
        assert isinstance(hello, m.Hello)
        assert (hello.protocol, topic.split("/")[1]) == (3, "2"), "that the edge logs it, too"
        assert device.log.read_text().count("speaks protocol") == 1

    run(tmp_path, (f"fedagent/2/{SITE}/a/+/up/edge-1/#",), Direction.AGENT_TO_EDGE, scene)


def test_an_edge_refuses_old_agents_and_an_old_coordinator(tmp_path: Path) -> None:
    beacon = f"fedagent/2/{SITE}/c/coordinator-1/beacon"

    async def scene(start: Start, one: Peer) -> None:
        edge = start("edge", broker=str(one.link.address), discovery="off")
        ready = await asyncio.to_thread(lambda: edge.wait("ready", timeout_s=30.0))
        async with asyncio.timeout(30):
            while not one.messages:
                one.link.publish(beacon, old("coordinator-to-edge.coordinator-beacon"))
                await asyncio.sleep(0.2)
        await logged(edge.log, f"coordinator coordinator-1 {LINE.format('edge')}")
        ((_, hello),) = one.messages
        assert isinstance(hello, m.EdgeHello)
        assert hello.protocol == 3
        up = f"fedagent/2/{SITE}/a/agent-1/up/{ready['id']}"
        for name in ("hello", "hello"):
            one.link.publish(f"{up}/{name}", old(f"agent-to-edge.{name}"))
        await logged(edge.log, f"agent-1: hello: it {LINE.format('edge')}")
        await asyncio.sleep(0.5)
        assert edge.log.read_text().count("agent-1") == 1

    run(tmp_path, (f"fedagent/2/{SITE}/e/+/up/#",), Direction.EDGE_TO_COORDINATOR, scene)


def test_a_coordinator_refuses_an_edge_of_protocol_2_once(tmp_path: Path) -> None:
    site = Site(tmp_path, recipe(), toy_edges(recipe()))
    site.open()
    driver, direction = site.driver, Direction.EDGE_TO_COORDINATOR
    assert driver is not None
    for name in ("edge-hello", "edge-hello"):
        topic = f"fedagent/2/default/e/edge-1/up/{name}"
        driver.arrived("edges", direction, topic, old(f"edge-to-coordinator.{name}"), at=0.0)
    counters = site.engine.counters
    site.close()
    refused = {"edge": "edge-1", "reason": LINE.format("coordinator")}
    assert site.events == [Emit("edge_refused", refused)], "one line, and no answer"
    assert not site.sent
    assert counters["protocol_version"] == 2


def run(
    directory: Path,
    filters: tuple[str, ...],
    reads: Direction,
    scene: Callable[[Start, Peer], Awaitable[None]],
) -> None:
    async def all_of_it() -> None:
        broker = Broker(BrokerSpec(data_dir=directory / "broker", kind="embedded"))
        address = await broker.start()
        started: list[RoleProcess] = []

        def start(role: str, **config: object) -> RoleProcess:
            full = {"data_dir": str(directory / role), "site": SITE, "json_events": True}
            full |= {"watch_parent": True, **config}
            log = directory / f"{role}.log"
            started.append(RoleProcess(name=role, role=role, config=full, log=log))
            return started[-1]

        try:
            async with peer(address, "old", *filters, reads=reads) as one:
                await scene(start, one)
        finally:
            for process in started:
                await asyncio.to_thread(process.stop)
            await broker.stop()

    asyncio.run(all_of_it())
