"""What is announced follows from where the broker listens."""

import errno
import logging
import os
from collections import Counter

import pytest

from fedagent_node.address import BrokerAddress, with_hint
from fedagent_node.discovery.advert import Advert, Reach, reach
from fedagent_node.discovery.announcing import answers_there
from fedagent_node.discovery.watch import MAX_HOSTS, Watch, _Name
from fedagent_node.errors import PeerRefusedError, connect_reason
from fedagent_node.network import free_port, refusal

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


async def test_why_nothing_answers_is_one_line() -> None:
    assert await refusal(HERE, free_port(HERE)) == "Connection refused"


async def test_an_advert_of_many_addresses_has_nobody_scan_a_network() -> None:
    address = BrokerAddress(HERE, free_port(HERE))
    hosts = tuple(f"127.0.1.{number}" for number in range(1, 60))
    advert = Advert("edge", "aa", "site", address, 1)
    refused: dict[str, str] = {}
    watch = Watch("edge", "site", lambda _: None, Counter(), judge=answers_there)
    await watch.first_good([advert.at(host) for host in hosts], refused)
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
