"""What is announced of a role and where, and the cautious reading of foreign adverts. Pure."""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fedagent_node.address import BrokerAddress, is_loopback, is_wildcard

Role = Literal["edge", "coordinator"]

LOOPBACK = "127.0.0.1"
MAX_TXT_BYTES = 400
MAX_ADDRESS_CHARS = 120
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_SCHEMES = frozenset({"mqtt", "mqtts"})
_NUMBER = re.compile(r"[0-9]{1,3}")
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Advert:
    """One role that is announced; `hosts` are its own machine's, none for a shared broker."""

    role: Role
    id: str
    site: str
    address: BrokerAddress  # its broker; of several that are announced, the one that we reach
    protocol: int
    hosts: tuple[str, ...] = field(default=(), compare=False)
    join: int = 0
    """Port of the join service on its machine; 0 for none."""
    refused: bool = False
    """Whether who answers there was found to be another, or does not take us."""

    def at(self, host: str, port: int | None = None) -> "Advert":
        """Return the same role at another place."""
        address = replace(self.address, host=host, port=port or self.address.port)
        return replace(self, address=address)


@dataclass(frozen=True, slots=True)
class Reach:
    """Addresses of this machine at which others reach a broker, and from which it is announced."""

    hosts: tuple[str, ...]
    announced_on: tuple[str, ...]


def reach(listen: str, lan: Sequence[str]) -> Reach:
    """Return what to announce of a private broker: no more than can be reached.

    On loopback it is announced on this machine alone; on one address, there and on this
    machine, whose roles reach it by that address. `lan` is what a wildcard stands for.
    """
    if is_loopback(listen):
        return Reach((LOOPBACK if listen == "localhost" else listen,), (LOOPBACK,))
    if is_wildcard(listen) and ":" not in listen:
        return Reach(tuple(lan) or (LOOPBACK,), (*lan, LOOPBACK))
    if ipaddress.ip_address(listen).version == 4:
        return Reach((listen,), (listen, LOOPBACK))
    return Reach((), ())


_SERVICES = {"edge": "fedagent-edge", "coordinator": "fedagent-coord"}
"""DNS-SD allows a service name 15 characters (RFC 6335)."""


def service_type(role: Role) -> str:
    """Return the DNS-SD type under which a role is advertised."""
    return f"_{_SERVICES[role]}._tcp.local."


def to_txt(advert: Advert, *, external: bool) -> dict[str, str]:
    """Return the TXT record; the host of a broker of our own is left to the address records."""
    address = str(advert.address) if external else advert.address.scheme
    join = {"join": str(advert.join)} if advert.join else {}
    return {
        "v": str(advert.protocol),
        "site": advert.site,
        "id": advert.id,
        "mqtt": address,
        **join,
    }


def advert_from(
    role: Role,
    properties: Mapping[bytes, bytes | None],
    hosts: Sequence[str],
    port: int | None,
) -> Advert | None:
    """Return the advert that a TXT record makes, or None if it is not of our form.

    `hosts` are the address records, the nearest first.
    """
    version, site, ident, where, join = (
        (properties.get(key) or b"").decode("ascii", errors="replace")
        for key in (b"v", b"site", b"id", b"mqtt", b"join")
    )
    if not (_NUMBER.fullmatch(version) and _ID.fullmatch(site) and _ID.fullmatch(ident)):
        return None
    shared = where not in _SCHEMES
    address = _address(where, hosts[0] if hosts else None, port)
    if address is None:
        return None
    return Advert(
        role,
        ident,
        site,
        address,
        int(version),
        () if shared else tuple(hosts),
        int(join) if _PORT.fullmatch(join) and int(join) < 65536 else 0,
    )


def _address(where: str, host: str | None, port: int | None) -> BrokerAddress | None:
    if where not in _SCHEMES:
        try:
            found = BrokerAddress.parse(where) if len(where) <= MAX_ADDRESS_CHARS else None
        except ValueError:
            return None
        return None if found is not None and found.user else found
    if not host or not port or not 0 < port < 65536:
        return None
    return BrokerAddress(host, port, "mqtts" if where == "mqtts" else "mqtt")
