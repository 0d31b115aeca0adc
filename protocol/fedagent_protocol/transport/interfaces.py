"""Which of this machine's addresses other devices can reach."""

import ipaddress
import socket
from collections.abc import Sequence

import ifaddr

MDNS_GROUP = "224.0.0.251"
_INNER = (
    "docker",
    "veth",
    "br-",
    "virbr",
    "cni",
    "flannel",
    "cali",
    "lxc",
    "lxdbr",
    "podman",
    "lo",
)


def lan_addresses() -> list[str]:
    """Return the IPv4 addresses of real networks: no loopback, link-local or containers."""
    return [
        str(address.ip)
        for adapter in ifaddr.get_adapters()
        if not adapter.name.startswith(_INNER)
        for address in adapter.ips
        if address.is_IPv4 and _is_real(str(address.ip))
    ]


def pick_address(hosts: Sequence[str]) -> str | None:
    """Return the advertised address that we most likely reach.

    One on a network of ours comes first, then the order of the advert.
    """
    usable = [host for host in hosts if _version(host) == 4]
    networks = _own_networks()
    for host in usable:
        if any(ipaddress.ip_address(host) in network for network in networks):
            return host
    return usable[0] if usable else None


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


def _own_networks() -> list[ipaddress.IPv4Network]:
    return [
        ipaddress.IPv4Network(f"{address.ip}/{address.network_prefix}", strict=False)
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
