"""Announcing by zeroconf, from the networks where a role can be reached and no others."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from .advert import Advert, Reach, service_type, to_txt
from .network import multicast_works, shares_network

if TYPE_CHECKING:
    from zeroconf import Zeroconf
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

_log = logging.getLogger(__name__)


class Announcer:
    """What this role announces."""

    def __init__(self) -> None:
        self._zeroconf: AsyncZeroconf | None = None
        self._announced_on: tuple[str, ...] = ()
        self._info: AsyncServiceInfo | None = None
        self._announcing: asyncio.Task[None] | None = None

    async def announce(self, advert: Advert, where: Reach, *, shared: bool) -> bool:
        """Announce, in place of what was announced before; False where multicast fails."""
        from zeroconf.asyncio import AsyncServiceInfo  # noqa: PLC0415

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
        self._announcing = asyncio.ensure_future(_finished(announced))
        return True

    async def silence(self) -> None:
        """Take the announcement back. Idempotent."""
        info, self._info = self._info, None
        await self._end_announcing()
        if info is not None and self._zeroconf is not None:
            await (await self._zeroconf.async_unregister_service(info))

    async def close(self) -> None:
        """Take the announcement back, and close the sockets. Idempotent."""
        await self.silence()
        zeroconf, self._zeroconf, self._announced_on = self._zeroconf, None, ()
        if zeroconf is not None:
            await zeroconf.async_close()

    async def _end_announcing(self) -> None:
        announcing, self._announcing = self._announcing, None
        if announcing is not None:
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)


async def opened(addresses: list[str]) -> "AsyncZeroconf | None":
    """Return zeroconf on some of this machine's addresses; None if none has multicast."""
    interfaces = announceable(addresses)
    if not interfaces:
        return None
    # Imported late: a role with a typed address needs none of it.
    from zeroconf.asyncio import AsyncZeroconf  # noqa: PLC0415

    # It prints a traceback where an address is gone, which `Discovery` follows and says.
    logging.getLogger("zeroconf").setLevel(logging.ERROR)
    try:
        zeroconf = AsyncZeroconf(zc=_within(interfaces))
        await zeroconf.zeroconf.async_wait_for_start()
    except OSError as exc:
        _log.debug("zeroconf on %s: %s", interfaces, exc)
        return None
    return zeroconf


def _within(interfaces: list[str]) -> "Zeroconf":
    """Return zeroconf that answers only those who ask from these networks.

    Linux hands a datagram to every socket of the machine once any has joined the group
    there, and an answer would give an address that the other cannot reach.
    (IP_MULTICAST_ALL=0 is no way out: beside SO_REUSEPORT, Linux 6 then gives some of the
    other sockets' datagrams to the one that must not have them.)
    """
    from zeroconf import IPVersion, Zeroconf  # noqa: PLC0415

    class Within(Zeroconf):
        def async_send(
            self, out: Any, addr: str | None = None, *rest: Any, **named: Any
        ) -> None:  # the rest is zeroconf's own business
            if out.is_query():
                # What is known already would be told to every network, also of loopback.
                out.answers.clear()
            if addr is None or shares_network(addr, interfaces):
                super().async_send(out, addr, *rest, **named)

    return Within(interfaces=interfaces, ip_version=IPVersion.V4Only)


def announceable(addresses: list[str]) -> list[str]:
    """Return those of the addresses that mDNS can be spoken from."""
    # Asked first, because zeroconf leaves sockets open when an interface fails it.
    return [address for address in addresses if multicast_works(address)]


async def _finished(announced: Awaitable[object]) -> None:
    await announced
