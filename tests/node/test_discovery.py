"""Real zeroconf on loopback, between processes' worth of sockets."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from zeroconf import ServiceStateChange
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from fedagent_node.address import BrokerAddress
from fedagent_node.discovery import announcing as discovery
from fedagent_node.discovery import watch
from fedagent_node.discovery.advert import Advert
from fedagent_node.discovery.announcing import Discovery
from tests.fakes.links import PATIENCE_S, eventually

RUN = secrets.token_hex(4)
"""Tests that run beside this one share the loopback: sites and ids are this run's."""
HOME, WORK, SITE = (f"{name}-{RUN}" for name in ("home", "work", "site"))
EDGE = "_fedagent-edge._tcp.local."


def edge(ident: str, site: str, port: int = 1883) -> Advert:
    return Advert("edge", f"{ident}-{RUN}", site, BrokerAddress("127.0.0.1", port), 1)


class Watcher:
    """What one browser was last told."""

    def __init__(self, discovery: Discovery, *, needed: bool = False) -> None:
        self.now: frozenset[Advert] = frozenset()
        self.told = 0
        self._changed = asyncio.Event()
        discovery.browse("edge", self._change, needed=needed)

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


async def test_sites_do_not_mix_and_adverts_come_and_go() -> None:
    async with AsyncExitStack() as stack:
        homes = [await opened(stack, HOME) for _ in range(3)]
        works = [await opened(stack, WORK) for _ in range(2)]
        at_home, at_work = Watcher(homes[0]), Watcher(works[0])
        first, second, other = edge("aa", HOME, 1), edge("bb", HOME, 2), edge("cc", WORK)
        await homes[1].advertise(first)
        await homes[2].advertise(second)
        await works[1].advertise(other)
        await at_home.until(lambda now: now == {first, second})
        await at_work.until(lambda now: now == {other})
        await eventually(lambda: bool(homes[0]._watches[0]._elsewhere))
        late = Watcher(homes[2])
        await late.until(lambda now: now == {first, second})
        await homes[1].stop()
        await at_home.until(lambda now: now == {second})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("AGAIN_S", "CLAIMS_S"):
        monkeypatch.setattr(watch, pause, 0.01)
    monkeypatch.setattr(watch, "RETRY_S", 0.2)


async def announce(announcer: AsyncZeroconf, ident: str, port: int) -> AsyncServiceInfo:
    info = AsyncServiceInfo(
        EDGE,
        f"{ident}-{RUN}.{EDGE}",
        port=port,
        properties={"v": "1", "site": SITE, "id": ident, "mqtt": "mqtt"},
        server=f"{ident}-{RUN}.local.",
        parsed_addresses=["127.0.0.1"],
    )
    await (await announcer.async_register_service(info, cooperating_responders=True))
    return info


def ids(adverts: frozenset[Advert]) -> set[str]:
    return {advert.id for advert in adverts}


async def some(stack: AsyncExitStack, dead: set[int]) -> tuple[Discovery, Watcher, AsyncZeroconf]:
    """Return who watches where the ports in `dead` refuse, and who announces."""

    async def judge(advert: Advert) -> str:
        return "Connection refused" if advert.address.port in dead else ""

    listener = Discovery(SITE, judge=judge)
    await listener.start()
    stack.push_async_callback(listener.stop)
    announcer = AsyncZeroconf(interfaces=["127.0.0.1"])
    stack.push_async_callback(announcer.async_close)
    return listener, Watcher(listener), announcer


@pytest.mark.usefixtures("quick")
async def test_who_says_goodbye_while_it_is_looked_up_is_gone_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """zeroconf names it once more while it keeps its records; here its events are given by hand."""
    monkeypatch.setattr(watch, "GONE_S", 1.0)
    asked, answers = asyncio.Event(), asyncio.Event()

    async def judge(_: Advert) -> str:
        asked.set()
        await answers.wait()
        return ""

    async with AsyncExitStack() as stack:
        listener = Discovery(SITE, judge=judge)
        await listener.start()
        stack.push_async_callback(listener.stop)
        announcer = AsyncZeroconf(interfaces=["127.0.0.1"])
        stack.push_async_callback(announcer.async_close)
        watcher = Watcher(listener)
        info = await announce(announcer, "leaves", 1)
        await asked.wait()
        (looks,) = listener._watches
        for change in (ServiceStateChange.Removed, ServiceStateChange.Added):
            looks.changed(announcer.zeroconf, EDGE, info.name, change)
        answers.set()
        await asyncio.sleep(0.5)
        assert watcher.now == frozenset()
        await watcher.until(lambda now: ids(now) == {"leaves"})


@pytest.mark.usefixtures("quick")
async def test_adverts_that_refuse_do_not_hide_one_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "MAX_CANDIDATES", 4)
    async with AsyncExitStack() as stack:
        dead = {1}
        listener, watcher, announcer = await some(stack, dead)
        await announce(announcer, "used", 3)
        await watcher.until(lambda now: ids(now) == {"used"})
        for number in range(5):
            await announce(announcer, f"e{number}", 1)
        await eventually(lambda: bool(listener._watches[0]._waiting()))
        dead.add(3)  # it restarts: it keeps its place
        await announce(announcer, "new", 2)
        await watcher.until(lambda now: "new" in ids(now))
        assert "used" in ids(watcher.now)
        assert (
            len(watcher.now) <= 4
        )  # another program on this loopback may have a place for a moment


async def test_who_finds_no_room_gets_the_place_of_one_that_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "MAX_CANDIDATES", 1)
    async with AsyncExitStack() as stack:
        listener, watcher, announcer = await some(stack, set())
        first = await announce(announcer, "first", 1)
        await watcher.until(lambda now: ids(now) == {"first"})
        await announce(announcer, "second", 2)
        await eventually(lambda: bool(listener._watches[0]._waiting()))
        await announcer.async_unregister_service(first)
        await watcher.until(lambda now: ids(now) == {"second"})


async def test_without_multicast_there_is_one_warning_and_work_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    one = Discovery(SITE)
    monkeypatch.setattr(one, "_interfaces", lambda: ["198.51.100.1"])
    await one.start()
    assert not one.available
    one.browse("edge", lambda _: None)
    await one.advertise(edge("aa", SITE))
    await one.stop()
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "--edge HOST:PORT" in caplog.text


async def test_multicast_that_comes_late_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        announcer, listener = Discovery(SITE), Discovery(SITE)
        monkeypatch.setattr(discovery, "FOLLOW_S", 0.05)
        for one in (announcer, listener):
            stack.push_async_callback(one.stop)
            monkeypatch.setattr(one, "_interfaces", lambda: ["198.51.100.1"])
            await one.start()
            assert not one.available
        watcher = Watcher(listener)
        await announcer.advertise(edge("aa", SITE))
        for one in (announcer, listener):
            monkeypatch.setattr(one, "_interfaces", lambda: ["127.0.0.1"])
        await watcher.until(lambda now: now == {edge("aa", SITE)})


async def test_where_nobody_is_announced_the_hint_and_other_sites_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with AsyncExitStack() as stack:
        lonely, other = await opened(stack, HOME), await opened(stack, WORK)
        await other.advertise(edge("aa", WORK))
        Watcher(lonely)
        await eventually(lambda: bool(lonely._watches[0]._elsewhere))
        assert "announced here" not in caplog.text
        monkeypatch.setattr(watch, "QUIET_S", 1.0)
        lonely.browse("edge", lambda _: None, needed=True)
        await eventually(lambda: "announced here" in caplog.text)
        # Of one that was there, and has ended, no advice follows.
        near = await opened(stack, WORK)
        await Watcher(near, needed=True).until(lambda now: now == {edge("aa", WORK)})
        quiet = near._watches[-1]._quiet
        assert quiet is not None
        assert quiet.cancelled()
    (said,) = [one.getMessage() for one in caplog.records if "announced here" in one.getMessage()]
    assert f"no edge of site {HOME} is announced here" in said
    assert WORK in said
    assert "--listen 0.0.0.0" in said
    assert "--edge HOST:PORT" in said
