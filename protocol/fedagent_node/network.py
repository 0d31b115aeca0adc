"""This machine's addresses that others can reach, and how long to wait between attempts."""

import ipaddress
import random
import re
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import ifaddr

MDNS_GROUP = "224.0.0.251"
_INNER = re.compile(
    # docker's own bridges are br- and a hash: OpenWrt's LAN is br-lan.
    r"docker|veth|br-[0-9a-f]{12}$|virbr|cni|flannel|cali|lxc|lxdbr|podman"
)


def lan_addresses() -> list[str]:
    """Return the IPv4 addresses of real networks: no loopback, link-local or containers."""
    return [
        str(address.ip)
        for adapter in ifaddr.get_adapters()
        if not is_inner(adapter.name)
        for address in adapter.ips
        if address.is_IPv4 and _is_real(str(address.ip))
    ]


def is_inner(card: str) -> bool:
    """Return whether a network card is one of containers or virtual machines, by its name."""
    return _INNER.match(card) is not None


def is_own(host: str) -> bool:
    """Return whether an IP address is one of this machine's; a name is not looked up."""
    return any(str(network.ip) == host for network in _own_networks())


def shares_network(host: str, own: Collection[str]) -> bool:
    """Return whether an IP address is in a network in which we have one of our own addresses."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in one.network for one in _own_networks() if str(one.ip) in own)


def by_nearness(hosts: Sequence[str]) -> list[str]:
    """Return the advertised addresses in the order in which to try them.

    Those on a network of ours come first, then the smaller: records come in any order, and
    who is connected must not change over. IPv6 is left out, but for loopback.
    """
    usable = [ipaddress.ip_address(host) for host in hosts if _version(host) == 4 or host == "::1"]
    networks = [interface.network for interface in _own_networks()]

    def key(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> tuple[bool, bool, int]:
        return not any(address in net for net in networks), address.version == 6, int(address)

    return [str(address) for address in sorted(usable, key=key)]


def multicast_works(address: str) -> bool:
    """Return whether mDNS can be spoken from an own IPv4 address."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            own = socket.inet_aton(address)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
            sock.setsockopt(
                socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(MDNS_GROUP) + own
            )
    except OSError:
        return False
    return True


def _own_networks() -> list[ipaddress.IPv4Interface]:
    return [
        ipaddress.IPv4Interface(f"{address.ip}/{address.network_prefix}")
        for adapter in ifaddr.get_adapters()
        for address in adapter.ips
        if address.is_IPv4
    ]


def _is_real(host: str) -> bool:
    address = ipaddress.ip_address(host)
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)


def _version(host: str) -> int:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0


@dataclass(slots=True)
class Backoff:
    """Full-jitter backoff: uniform between zero and a bound that doubles.

    After power returns to a hundred devices, full jitter spreads their
    attempts; a fixed or merely scaled delay would keep them in step.
    """

    first_s: float = 0.2
    cap_s: float = 20.0
    attempt: int = 0

    def next(self) -> float:
        """Return how long to wait now."""
        bound = min(self.cap_s, self.first_s * 2.0 ** min(self.attempt, 30))
        self.attempt += 1
        return random.uniform(0.0, bound)  # noqa: S311 - spreads load, guards nothing

    def reset(self) -> None:
        """Start again with the shortest bound."""
        self.attempt = 0
