"""What is announced follows from where the broker listens."""

import errno
import logging
import os
from ipaddress import ip_interface

import ifaddr
import pytest

from fedagent_node.address import BrokerAddress, with_hint
from fedagent_node.discovery.advert import Advert, Reach, reach
from fedagent_node.discovery.announcing import Discovery, answers_there
from fedagent_node.discovery.watch import MAX_HOSTS, Watch, _Name
from fedagent_node.errors import PeerRefusedError, connect_reason
from fedagent_node.network import free_port, lan_addresses

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


def cards(monkeypatch: pytest.MonkeyPatch, *given: str) -> None:
    """Give this machine network cards, each with the addresses of a line: `eth0 10.0.0.2/24`."""
    found = [
        ifaddr.Adapter(
            name,
            name,
            [
                ifaddr.IP(
                    str(one.ip) if one.version == 4 else (str(one.ip), 0, 0),
                    one.network.prefixlen,
                    name,
                )
                for one in map(ip_interface, addresses)
            ],
        )
        for name, *addresses in map(str.split, ("lo 127.0.0.1/8 ::1/128", *given))
    ]
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: found)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("usb0 169.254.10.1/16",), ["169.254.10.1"]),
        (("eth0 10.0.0.2/24 169.254.7.7/16", "usb0 169.254.10.1/16"), ["10.0.0.2", "169.254.10.1"]),
        (("eth0 fd00::2/64", "docker0 172.17.0.1/16", "veth3 169.254.3.3/16"), []),
    ],
)
def test_a_link_local_address_counts_where_a_card_has_no_other(
    monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], expected: list[str]
) -> None:
    cards(monkeypatch, *given)
    assert lan_addresses() == expected


async def test_a_broker_that_is_announced_on_no_network_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cards(monkeypatch, "eth0 fd00::2/64")
    discovery = Discovery("hall", scope="lan")
    await discovery.start()
    with caplog.at_level(logging.WARNING):
        advert = Advert("edge", "aa", "hall", BrokerAddress(HERE, 1883), 1)
        for _ in range(2):
            await discovery.advertise(advert, listen="0.0.0.0")
    await discovery.stop()
    assert caplog.text.count("is announced on this machine only: no network card has an IPv4") == 1


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
    name = _Name("aa", answered=answered)
    for reason in (why, why, "no answer (timed out)"):
        watch.complain(name, advert, {str(address): reason})
    (record,) = caplog.records
    assert said in record.getMessage()


def test_a_broker_that_does_not_answer_is_said_with_the_hint() -> None:
    lost, address = os.strerror(errno.ECONNREFUSED), BrokerAddress("10.0.0.9", 1883)
    assert "start who is to answer there" in with_hint(lost, address)
    assert "it has stopped or is restarting" in with_hint(lost, address, before=True)
