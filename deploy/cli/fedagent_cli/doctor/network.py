"""The doctor's look at the network: does multicast work, and can what is announced be reached?"""

import asyncio
import logging
import socket

from fedagent_node.address import at_port
from fedagent_node.discovery.advert import LOOPBACK, Advert, Role
from fedagent_node.discovery.announcing import HINT, NO_NETWORK, Discovery
from fedagent_node.discovery.watch import MAX_HOSTS
from fedagent_node.network import MDNS_GROUP, lan_addresses, multicast_socket, refusal

from .checks import Finding, fine, odd

LOOK_S = 2.0
"""How long answers are waited for: zeroconf's own delays are below half of it."""
ROLES: tuple[Role, ...] = ("coordinator", "edge")
SHOWN = 6
"""Adverts that are named; more are counted."""
Seen = dict[Advert, dict[str, str]]
"""Why an address of an advert cannot be reached, by address; empty words if it can."""


def mdns() -> Finding:
    """Send to the zeroconf group on each network, and receive it."""
    addresses = (*lan_addresses(), LOOPBACK)
    if deaf := [f"on {one} ({why})" for one in addresses if (why := _hears(one))]:
        hint = (
            "allow UDP 5353 and multicast, set `disallow-other-stacks=no` in avahi-daemon.conf, or "
            "give addresses with --edge and --coordinator"
        )
        return odd(f"multicast does not work {', '.join(deaf)}", hint)
    if not addresses[1:]:
        return odd(f"multicast to {MDNS_GROUP} works on loopback only: {NO_NETWORK}", HINT)
    return fine(f"multicast to {MDNS_GROUP} works on {', '.join(addresses[:-1])}")


def _hears(address: str) -> str:
    """Return why an address receives nothing of the mDNS group; empty if it does."""
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


async def adverts() -> Finding:
    """Look who is announced, and connect to each address in its advert."""
    # The check reports what discovery would warn of.
    logging.getLogger("fedagent_node").addHandler(logging.NullHandler())
    discovery = Discovery(None, scope="lan")
    await discovery.start()
    found: set[Advert] = set()
    for role in ROLES:
        discovery.browse(role, found.update)
    await asyncio.sleep(LOOK_S if discovery.available else 0.0)
    await discovery.stop()
    ordered = sorted(found, key=lambda one: (one.site, one.role, one.id))
    tried = await asyncio.gather(*map(_tried, ordered))
    return judged(dict(zip(ordered, tried, strict=True)))


async def _tried(advert: Advert) -> dict[str, str]:
    hosts, port = advert.hosts[:MAX_HOSTS] or (advert.address.host,), advert.address.port
    why = await asyncio.gather(*(refusal(host, port) for host in hosts))
    return dict(zip((at_port(host, port) for host in hosts), why, strict=True))


def judged(seen: Seen) -> Finding:
    """Name who cannot be reached at any address of its advert; one of several is enough."""

    def named(one: Advert) -> str:
        return f"{one.role} {one.id[:12]} (site {one.site})"

    lost = {one: places for one, places in seen.items() if all(places.values())}
    if lost:
        hint = (
            "start it with --listen and an address that this machine can reach, open the port "
            "in its firewall, or give --edge or --coordinator HOST:PORT"
        )
        lines = [
            f"{named(one)} is announced at {at}: {why}"
            for one, places in lost.items()
            for at, why in places.items()
        ]
        return odd("; ".join(lines), hint)
    if not seen:
        return fine("no edge or coordinator is announced")
    reached = [
        f"{named(one)} at {' and '.join(at for at, why in places.items() if not why)}"
        for one, places in seen.items()
    ]
    more = f" and {len(seen) - SHOWN} more" if len(seen) > SHOWN else ""
    return fine(f"reached: {', '.join(reached[:SHOWN])}{more}")
