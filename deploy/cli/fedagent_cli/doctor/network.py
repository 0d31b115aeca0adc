"""The doctor's look at the network: can what is announced be reached from here?"""

import asyncio
import logging
import socket
from collections import Counter
from dataclasses import dataclass

from fedagent_node.address import at_port
from fedagent_node.discovery.advert import LOOPBACK, Advert, Role
from fedagent_node.discovery.announcing import Discovery
from fedagent_node.discovery.watch import MAX_HOSTS
from fedagent_node.network import MDNS_GROUP, lan_addresses, multicast_socket, refusal

LOOK_S = 2.0
"""How long answers are waited for: zeroconf's own delays are below half of it."""
ROLES: tuple[Role, ...] = ("coordinator", "edge")


@dataclass(frozen=True, slots=True)
class Seen:
    """One role that is announced, and where it can be reached."""

    advert: Advert
    refused: dict[str, str]  # why an address cannot be reached, by address; empty words if it can

    @property
    def name(self) -> str:
        """Say who it is."""
        return f"{self.advert.role} {self.advert.id[:12]} (site {self.advert.site})"

    @property
    def reached(self) -> list[str]:
        """List the addresses that answer."""
        return [place for place, why in self.refused.items() if not why]


async def look(seconds: float = LOOK_S) -> list[Seen]:
    """Return who is announced on this machine's networks, of whatever site."""
    # The check reports what discovery would warn of.
    logging.getLogger("fedagent_node").addHandler(logging.NullHandler())
    discovery = Discovery(None, scope="lan")
    await discovery.start()
    found: set[Advert] = set()
    for role in ROLES:
        discovery.browse(role, found.update)
    await asyncio.sleep(seconds if discovery.available else 0.0)
    await discovery.stop()
    adverts = sorted(found, key=_order)
    return list(await asyncio.gather(*map(_tried, adverts)))


def crowded(seen: list[Seen]) -> list[str]:
    """Return the sites that have more than one coordinator."""
    counts = Counter(one.advert.site for one in seen if one.advert.role == "coordinator")
    return sorted(site for site, count in counts.items() if count > 1)


def deaf() -> dict[str, str]:
    """Return why this machine's addresses receive nothing of the mDNS group."""
    return {address: why for address in (*lan_addresses(), LOOPBACK) if (why := _hears(address))}


async def _tried(advert: Advert) -> Seen:
    hosts = advert.hosts[:MAX_HOSTS] or (advert.address.host,)
    why = await asyncio.gather(*(refusal(host, advert.address.port) for host in hosts))
    places = [at_port(host, advert.address.port) for host in hosts]
    return Seen(advert, dict(zip(places, why, strict=True)))


def _hears(address: str) -> str:
    try:
        with multicast_socket(address) as sock:
            sock.bind(("", 0))
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
            sock.settimeout(1.0)
            sock.sendto(b"fedagent doctor", (MDNS_GROUP, sock.getsockname()[1]))
            sock.recv(64)
    except OSError as error:
        return str(error)
    return ""


def _order(advert: Advert) -> tuple[str, str, str]:
    return advert.site, advert.role, f"{advert.id} {advert.address}"
