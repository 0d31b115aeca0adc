"""Real zeroconf on loopback, between processes' worth of sockets."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from fedagent_protocol.transport.discovery import MAX_CANDIDATES, Advert, Discovery
from fedagent_protocol.transport.mqtt import BrokerAddress

from .peers import PATIENCE_S, eventually

EDGE = "_fedagent-edge._tcp.local."


def edge(ident: str, site: str, port: int = 1883) -> Advert:
    return Advert("edge", ident, site, BrokerAddress("127.0.0.1", port), 1)


class Watcher:
    """What one browser was last told."""

    def __init__(self, discovery: Discovery) -> None:
        self.now: frozenset[Advert] = frozenset()
        self.told = 0
        self._changed = asyncio.Event()
        discovery.browse("edge", self._change)

    def _change(self, adverts: frozenset[Advert]) -> None:
        self.now = adverts
        self.told += 1
        self._changed.set()

    async def until(self, condition: Callable[[frozenset[Advert]], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition(self.now):
                self._changed.clear()
                await self._changed.wait()


async def opened(stack: AsyncExitStack, site: str) -> Discovery:
    one = Discovery(site)
    await one.start()
    assert one.available
    stack.push_async_callback(one.stop)
    return one


def test_sites_do_not_mix_and_adverts_come_and_go() -> None:
    async def go() -> None:
        async with AsyncExitStack() as stack:
            homes = [await opened(stack, "home") for _ in range(3)]
            works = [await opened(stack, "work") for _ in range(2)]
            at_home, at_work = Watcher(homes[0]), Watcher(works[0])
            first, second, other = edge("aa", "home", 1), edge("bb", "home", 2), edge("cc", "work")
            await homes[1].advertise(first)
            await homes[2].advertise(second)
            await works[1].advertise(other)
            await at_home.until(lambda now: now == {first, second})
            await at_work.until(lambda now: now == {other})
            await eventually(lambda: homes[0].counters["ignored_site"] >= 1)
            late = Watcher(homes[2])
            await late.until(lambda now: now == {first, second})
            await homes[1].withdraw()
            await at_home.until(lambda now: now == {second})

    asyncio.run(go())


def test_a_changed_advert_replaces_the_old_one() -> None:
    async def go() -> None:
        async with AsyncExitStack() as stack:
            speaker, listener = await opened(stack, "s"), await opened(stack, "s")
            watcher = Watcher(listener)
            await speaker.advertise(edge("aa", "s", 1))
            await watcher.until(lambda now: now == {edge("aa", "s", 1)})
            shared = Advert("edge", "aa", "s", BrokerAddress("b.example.org", 8883, "mqtts"), 1)
            await speaker.advertise(shared, external=True)
            await watcher.until(lambda now: now == {shared})
            assert watcher.told == 2

    asyncio.run(go())


def test_after_a_kill_the_name_is_taken_back_with_the_new_port() -> None:
    code = (
        "import asyncio\n"
        "from fedagent_protocol.transport.discovery import Advert, Discovery\n"
        "from fedagent_protocol.transport.mqtt import BrokerAddress\n"
        "async def main():\n"
        "    d = Discovery('s'); await d.start()\n"
        "    await d.advertise(Advert('edge', 'aa', 's', BrokerAddress('127.0.0.1', 1), 1))\n"
        "    print('up', flush=True); await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )

    async def go() -> None:
        async with AsyncExitStack() as stack:
            listener, again = await opened(stack, "s"), await opened(stack, "s")
            watcher = Watcher(listener)
            with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
                await watcher.until(lambda now: now == {edge("aa", "s", 1)})
                child.kill()
            await again.advertise(edge("aa", "s", 2))
            await watcher.until(lambda now: now == {edge("aa", "s", 2)})

    asyncio.run(go())


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"v": "1", "site": "s", "id": "../x", "mqtt": "mqtt"},
        {"v": "1", "site": "s", "id": "aa", "mqtt": "ftp://x:1"},
        {"v": "1", "site": "s", "id": "aa", "mqtt": "mqtt", "pad": "x" * 200, "more": "x" * 200},
    ],
)
def test_malformed_adverts_are_ignored_and_counted(properties: dict[str, str]) -> None:
    async def go() -> None:
        async with AsyncExitStack() as stack:
            listener, honest = await opened(stack, "s"), await opened(stack, "s")
            watcher = Watcher(listener)
            rogue = AsyncZeroconf(interfaces=["127.0.0.1"])
            stack.push_async_callback(rogue.async_close)
            info = AsyncServiceInfo(
                EDGE,
                f"rogue.{EDGE}",
                port=1,
                properties=properties,
                server="rogue.local.",
                parsed_addresses=["127.0.0.1"],
            )
            await (await rogue.async_register_service(info, cooperating_responders=True))
            await honest.advertise(edge("bb", "s"))
            await watcher.until(lambda now: now == {edge("bb", "s")})
            await eventually(lambda: listener.counters["ignored_malformed"] >= 1)

    asyncio.run(go())


def test_candidates_are_capped() -> None:
    async def go() -> None:
        async with AsyncExitStack() as stack:
            listener = await opened(stack, "s")
            watcher = Watcher(listener)
            speaker = AsyncZeroconf(interfaces=["127.0.0.1"])
            stack.push_async_callback(speaker.async_close)
            for i in range(MAX_CANDIDATES + 8):
                info = AsyncServiceInfo(
                    EDGE,
                    f"e{i}.{EDGE}",
                    port=1,
                    properties={"v": "1", "site": "s", "id": f"e{i}", "mqtt": "mqtt"},
                    server=f"e{i}.local.",
                    parsed_addresses=["127.0.0.1"],
                )
                await speaker.async_register_service(info, cooperating_responders=True)
            await watcher.until(lambda now: len(now) == MAX_CANDIDATES)
            await eventually(lambda: listener.counters["ignored_full"] >= 1)
            assert len(watcher.now) == MAX_CANDIDATES

    asyncio.run(go())


def test_without_multicast_there_is_one_warning_and_work_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        one = Discovery("s")
        monkeypatch.setattr(one, "_interfaces", lambda: ["198.51.100.1"])
        await one.start()
        assert not one.available
        one.browse("edge", lambda _: None)
        await one.advertise(edge("aa", "s"))
        await one.withdraw()
        await one.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(go())
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "--edge HOST:PORT" in caplog.text
