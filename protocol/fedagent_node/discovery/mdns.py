"""The sockets of zeroconf, and what this role announces on some."""

import asyncio
import logging
from typing import Any

from zeroconf import IPVersion, Zeroconf
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from fedagent_node.network import multicast_works, shares_network

from .advert import Advert, Reach, service_type, to_txt

_log = logging.getLogger(__name__)


class Announcer:
    """What this role announces."""

    def __init__(self) -> None:
        self._zeroconf: AsyncZeroconf | None = None
        self._announced_on: tuple[str, ...] = ()
        self._info: AsyncServiceInfo | None = None
        self._announcing: asyncio.Future[object] | None = None

    async def announce(self, advert: Advert, where: Reach, *, shared: bool) -> bool:
        """Announce, in place of what was announced before; False where multicast fails."""
        if where.announced_on != self._announced_on:
            # Sockets of its own: those that browse hear and speak on every network.
            await self.close()
            self._zeroconf = await opened(list(where.announced_on))
            if self._zeroconf is None:
                return False
            self._announced_on = where.announced_on
        assert self._zeroconf is not None
        kind = service_type(advert.role)
        info = AsyncServiceInfo(
            kind,
            f"{advert.id}.{kind}",
            port=advert.address.port,
            properties=to_txt(advert, external=shared),
            server=f"fedagent-{advert.id}.local.",
            parsed_addresses=list(where.hosts or where.announced_on),
        )
        before, self._info = self._info, info
        await self._end_announcing()
        if before is not None and before.name == info.name:
            announced = await self._zeroconf.async_update_service(info)
        else:
            # Ids are hashes of keys: probing for a second owner of the name costs a
            # second and finds nothing, and after a kill we must take our name back.
            announced = await self._zeroconf.async_register_service(
                info, cooperating_responders=True
            )
        self._announcing = asyncio.ensure_future(announced)
        return True

    async def close(self) -> None:
        """Take the announcement back, and close the sockets. Idempotent."""
        info, self._info = self._info, None
        await self._end_announcing()
        zeroconf, self._zeroconf, self._announced_on = self._zeroconf, None, ()
        if zeroconf is None:
            return
        if info is not None:
            await (await zeroconf.async_unregister_service(info))
        await zeroconf.async_close()

    async def _end_announcing(self) -> None:
        announcing, self._announcing = self._announcing, None
        if announcing is not None:
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)


async def opened(addresses: list[str]) -> AsyncZeroconf | None:
    """Return zeroconf on some of our addresses; None if none has multicast."""
    interfaces = announceable(addresses)
    if not interfaces:
        return None
    # It prints a traceback where an address is gone, which `Discovery` follows and logs.
    logging.getLogger("zeroconf").setLevel(logging.ERROR)
    try:
        zeroconf = AsyncZeroconf(
            zc=_Within(interfaces=interfaces, ip_version=IPVersion.V4Only),
        )
        await zeroconf.zeroconf.async_wait_for_start()
    except OSError as exc:
        _log.debug("zeroconf on %s: %s", interfaces, exc)
        return None
    return zeroconf


class _Within(Zeroconf):
    """Zeroconf that answers only those who ask from its networks.

    Linux hands a datagram to every socket of the machine once any has joined the group
    there, and an answer would give an address that the other cannot reach.
    (IP_MULTICAST_ALL=0 is no way out: beside SO_REUSEPORT, Linux 6 then gives some of the
    other sockets' datagrams to the one that must not have them.)
    """

    def __init__(self, *, interfaces: list[str], ip_version: IPVersion) -> None:
        self._within = interfaces
        super().__init__(interfaces=interfaces, ip_version=ip_version)

    def async_send(self, out: Any, addr: str | None = None, *rest: Any, **named: Any) -> None:
        # The rest is zeroconf's own business.
        if out.is_query():
            # What is known already would go to every network, also of loopback.
            out.answers.clear()
        if addr is None or shares_network(addr, self._within):
            super().async_send(out, addr, *rest, **named)


def announceable(addresses: list[str]) -> list[str]:
    """Return those of the addresses that mDNS can be spoken from."""
    # Asked first, because zeroconf leaves sockets open when an interface fails it.
    return [address for address in addresses if multicast_works(address)]
