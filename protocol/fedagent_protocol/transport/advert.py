"""What an advert says, and the cautious reading of foreign ones. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .address import BrokerAddress
from .errors import AddressError

Role = Literal["edge", "coordinator"]

MAX_TXT_BYTES = 400
MAX_ADDRESS_CHARS = 120
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_NUMBER = re.compile(r"[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class Advert:
    """One role that says it is here.

    Attributes:
        protocol: Version of the wire that it speaks.
    """

    role: Role
    id: str
    site: str
    address: BrokerAddress
    protocol: int


_SERVICES = {"edge": "fedagent-edge", "coordinator": "fedagent-coord"}
"""DNS-SD allows a service name 15 characters (RFC 6335)."""


def service_type(role: Role) -> str:
    """Return the DNS-SD type under which a role is advertised."""
    return f"_{_SERVICES[role]}._tcp.local."


def to_txt(advert: Advert, *, external: bool) -> dict[str, str]:
    """Return the TXT record of an advert.

    An external broker's address is told in full; otherwise the host is left to the
    address records, and only the scheme is told.
    """
    address = str(advert.address) if external else advert.address.scheme
    return {"v": str(advert.protocol), "site": advert.site, "id": advert.id, "mqtt": address}


def advert_from(
    role: Role,
    properties: Mapping[bytes, bytes | None],
    host: str | None,
    port: int | None,
) -> Advert | None:
    """Return the advert that a TXT record makes, or None if it is not of our form.

    Args:
        role: From the service type.
        properties: The TXT record, unchecked.
        host: The address record chosen, if any.
        port: From the SRV record.
    """
    version, site, ident = (_text(properties, key) for key in ("v", "site", "id"))
    where = _text(properties, "mqtt")
    if not (_NUMBER.fullmatch(version) and _ID.fullmatch(site) and _ID.fullmatch(ident)):
        return None
    address = _address(where, host, port)
    return Advert(role, ident, site, address, int(version)) if address is not None else None


def _address(where: str, host: str | None, port: int | None) -> BrokerAddress | None:
    if where not in {"mqtt", "mqtts"}:
        try:
            return BrokerAddress.parse(where) if len(where) <= MAX_ADDRESS_CHARS else None
        except AddressError:
            return None
    if not host or not port or not 0 < port < 65536:
        return None
    return BrokerAddress(host, port, "mqtts" if where == "mqtts" else "mqtt")


def _text(properties: Mapping[bytes, bytes | None], key: str) -> str:
    value = properties.get(key.encode())
    return value.decode("ascii", errors="replace") if value else ""
