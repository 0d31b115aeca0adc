"""What is announced follows from where the broker listens."""

import asyncio
import errno
import gc
import logging
import os
import ssl
import weakref
from collections import Counter
from contextlib import suppress

import pytest

from fedagent_node.address import BrokerAddress, with_hint
from fedagent_node.discovery.advert import Advert, Reach, reach, reach_of_shared
from fedagent_node.discovery.announcing import answers_there
from fedagent_node.discovery.watch import MAX_HOSTS, Watch, _Name
from fedagent_node.errors import PeerRefusedError, connect_reason
from fedagent_node.network import connected, free_port, is_inner, lan_addresses, refusal

LAN = ("192.168.1.20", "10.0.0.2")
HERE = "127.0.0.1"


@pytest.mark.parametrize(
    ("listen", "lan", "expected"),
    [
        ("127.0.0.1", LAN, Reach((HERE,), (HERE,))),
        ("localhost", LAN, Reach((HERE,), (HERE,))),
        ("127.0.0.9", LAN, Reach(("127.0.0.9",), (HERE,))),
        ("::1", LAN, Reach(("::1",), (HERE,))),
        ("0.0.0.0", LAN, Reach(LAN, (*LAN, HERE))),
        ("", LAN, Reach(LAN, (*LAN, HERE))),
        ("0.0.0.0", (), Reach((HERE,), (HERE,))),
        ("10.0.0.2", LAN, Reach(("10.0.0.2",), ("10.0.0.2", HERE))),
        ("172.17.0.1", LAN, Reach(("172.17.0.1",), ("172.17.0.1", HERE))),
        ("::", LAN, Reach((), ())),
        ("2001:db8::1", LAN, Reach((), ())),
    ],
)
def test_no_more_is_announced_than_can_be_reached(
    listen: str, lan: tuple[str, ...], expected: Reach
) -> None:
    assert reach(listen, lan) == expected


def test_a_shared_broker_on_loopback_is_of_no_use_to_others() -> None:
    assert reach_of_shared("127.0.0.1", LAN).announced_on == (HERE,)
    assert reach_of_shared("broker.lan", LAN).announced_on == (*LAN, HERE)


def test_an_address_of_this_machine_is_not_beyond_it() -> None:
    for own in lan_addresses():
        BrokerAddress(own, 1883).check_cover(insecure=False)


async def test_why_nothing_answers_is_one_line() -> None:
    assert await refusal(HERE, free_port(HERE)) == "Connection refused"


async def test_an_advert_of_many_addresses_has_nobody_scan_a_network() -> None:
    address = BrokerAddress(HERE, free_port(HERE))
    hosts = tuple(f"127.0.1.{number}" for number in range(1, 60))
    advert = Advert("edge", "aa", "site", address, 1)
    refused: dict[str, str] = {}
    watch = Watch("edge", "site", lambda _: None, Counter(), judge=answers_there)
    await watch._first_good([advert.at(host) for host in hosts], refused)
    assert len(refused) == MAX_HOSTS


async def test_what_is_said_of_an_advert_that_is_of_no_use(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    address = BrokerAddress("10.0.0.9", 1883)
    advert = Advert("edge", "aa", "site", address, 1, (address.host,))
    watch = Watch("edge", "site", lambda _: None, Counter(), judge=answers_there)
    one, where = _Name("aa"), str(address)
    for reason in ("no answer (timed out)", "No route to host", "no answer (timed out)"):
        watch.complain(one, advert, {where: reason})
    (said,) = caplog.records
    assert "firewall" in said.getMessage()
    caplog.clear()
    watch.complain(one, advert, {})
    one.answered = True
    watch.complain(one, advert, {where: "Connection refused"})
    strange = connect_reason(PeerRefusedError("wrong_site", "belongs to site hall, not to site"))
    watch.complain(_Name("stranger"), advert, {where: strange})
    first, second = (record.getMessage() for record in caplog.records)
    assert "it has stopped or is restarting" in first
    assert "belongs to site hall" in second
    assert second.endswith("it is not used")
    lost = os.strerror(errno.ECONNREFUSED)
    assert "start a broker there" in with_hint(lost, address)
    assert "it has stopped or is restarting" in with_hint(lost, address, before=True)


@pytest.mark.parametrize(
    ("card", "inner"),
    [("br-lan", False), ("br-4f1c09a2be77", True), ("docker0", True), ("lora0", False)],
)
def test_which_cards_are_of_containers(card: str, inner: bool) -> None:
    assert is_inner(card) is inner


async def test_a_refused_connection_leaves_no_context_to_the_collector() -> None:
    """Kilobytes of certificates are in each, and few objects: it would not come for long."""
    port, contexts = free_port(HERE), []
    gc.disable()
    try:
        for _ in range(3):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            contexts.append(weakref.ref(context))
            with suppress(OSError):
                await connected(HERE, port, context)
        del context
        await asyncio.sleep(0)  # the loop lets go of what it called last
        assert [one() for one in contexts] == [None] * 3
    finally:
        gc.enable()
