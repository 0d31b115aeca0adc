"""What is announced follows from where the broker listens."""

import errno
import os

import pytest

from fedagent_node.address import BrokerAddress, with_hint
from fedagent_node.discovery.advert import Advert, Reach, reach
from fedagent_node.discovery.announcing import answers_there
from fedagent_node.discovery.watch import MAX_HOSTS, Watch, _Name
from fedagent_node.errors import PeerRefusedError, connect_reason
from fedagent_node.network import free_port

LAN = ("192.168.1.20", "10.0.0.2")
HERE = "127.0.0.1"


@pytest.mark.parametrize(
    ("listen", "lan", "expected"),
    [
        ("127.0.0.1", LAN, Reach((HERE,), (HERE,))),
        ("127.0.0.9", LAN, Reach(("127.0.0.9",), (HERE,))),
        ("::1", LAN, Reach(("::1",), (HERE,))),
        ("0.0.0.0", LAN, Reach(LAN, (*LAN, HERE))),
        ("0.0.0.0", (), Reach((HERE,), (HERE,))),
        ("10.0.0.2", LAN, Reach(("10.0.0.2",), ("10.0.0.2", HERE))),
        ("::", LAN, Reach((), ())),
    ],
)
def test_no_more_is_announced_than_can_be_reached(
    listen: str, lan: tuple[str, ...], expected: Reach
) -> None:
    assert reach(listen, lan) == expected


async def test_an_advert_of_many_addresses_has_nobody_scan_a_network() -> None:
    address = BrokerAddress(HERE, free_port(HERE))
    hosts = tuple(f"127.0.1.{number}" for number in range(1, 60))
    advert = Advert("edge", "aa", "site", address, 1)
    refused: dict[str, str] = {}
    watch = Watch("edge", "site", lambda _: None, judge=answers_there)
    await watch.first_good([advert.at(host) for host in hosts], refused)
    assert len(refused) == MAX_HOSTS


@pytest.mark.parametrize(
    ("answered", "why", "said"),
    [
        (False, "No route to host", "firewall"),
        (True, "Connection refused", "it has stopped or is restarting"),
        (False, connect_reason(PeerRefusedError("x", "belongs to site hall")), "it is not used"),
    ],
)
async def test_an_advert_of_no_use_is_said_once(
    *, answered: bool, why: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    address = BrokerAddress("10.0.0.9", 1883)
    advert = Advert("edge", "aa", "site", address, 1, (address.host,))
    watch = Watch("edge", "site", lambda _: None, judge=answers_there)
    for reason in (why, why, "no answer (timed out)"):
        watch.complain(_Name("aa", answered=answered), advert, {str(address): reason})
    (record,) = caplog.records
    assert said in record.getMessage()


def test_a_broker_that_does_not_answer_is_said_with_the_hint() -> None:
    lost, address = os.strerror(errno.ECONNREFUSED), BrokerAddress("10.0.0.9", 1883)
    assert "start who is to answer there" in with_hint(lost, address)
    assert "it has stopped or is restarting" in with_hint(lost, address, before=True)
