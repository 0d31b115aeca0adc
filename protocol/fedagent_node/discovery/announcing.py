"""Announcing and finding roles by zeroconf; with `watch`, all that touches it.

An advert is a hint and nothing else: anyone on the network can send one. It is cut to a
known form here, and who is behind it is found out on the connection.
"""

import asyncio
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from fedagent_node.address import is_loopback, is_wildcard
from fedagent_node.discovery.advert import (
    LOOPBACK,
    Advert,
    Reach,
    Role,
    reach,
    reach_of_shared,
    service_type,
    to_txt,
)
from fedagent_node.discovery.watch import Judge, OnChange, Watch, answers_there
from fedagent_node.network import is_own, lan_addresses, look_up, multicast_works, shares_network

if TYPE_CHECKING:
    from zeroconf import Zeroconf
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

__all__ = ["Advert", "Discovery", "Role", "Scope"]

_log = logging.getLogger(__name__)

Scope = Literal["loopback", "lan"]
FOLLOW_S = 5.0
"""How often cables, Wi-Fi and DHCP are looked at."""
HINT = "give the address instead: --edge HOST:PORT or --coordinator HOST:PORT"


class Discovery:
    """Advertise this role and browse for others at one site (None: at every site).

    What is announced follows from where the broker listens (`advert.reach`), whatever the
    scope of browsing: a broker on loopback is never announced beyond this machine. What is
    asked for before zeroconf is `available` is done once it is.
    """

    def __init__(
        self, site: str | None, *, scope: Scope = "loopback", judge: Judge = answers_there
    ) -> None:
        self.site = site
        self._judge = judge
        self.available = False
        self.counters: Counter[str] = Counter()
        self._scope = scope
        self._listener: AsyncZeroconf | None = None
        self._listens_on: list[str] = []
        self._announcer = Announcer()
        self._advertised: tuple[Advert, str | None] | None = None
        self._watches: list[Watch] = []
        self._following: asyncio.Task[None] | None = None
        self._again = False
        """Whether something failed, as it does while a card comes up."""
        self._gone = False
        """Whether our broker's own address went away, and that was logged."""

    async def start(self) -> None:
        """Open the sockets. Where multicast does not work, warn once and try again quietly."""
        if not await self._open():
            _log.warning("zeroconf does not work here (no multicast); %s", HINT)
        self._following = asyncio.ensure_future(self._follow())

    async def _open(self) -> bool:
        self._listens_on = self._interfaces()
        self._listener = await opened(self._listens_on)
        self.available = self._listener is not None
        self._again = not self.available
        return self.available

    async def advertise(self, advert: Advert, *, listen: str | None = LOOPBACK) -> None:
        """Announce this role, in place of what it announced before.

        `listen` is where the broker listens, from which follows what is announced and where;
        None for one that is shared or not on this machine: its address is given as it is.
        """
        self._advertised = (advert, listen if listen is None else await _resolved(listen))
        self._warn_if_gone(self._interfaces())
        if self.available:
            await self._announce()

    def browse(self, role: Role, on_change: OnChange, *, needed: bool = False) -> None:
        """Watch for a role; `on_change` gets all that are known, at every change.

        With `needed`, a line in the log if nobody is announced.
        """
        watch = Watch(role, self.site, on_change, self.counters, judge=self._judge, needed=needed)
        self._watches.append(watch)
        if self._listener is not None:
            watch.ask(self._listener.zeroconf)

    async def stop(self) -> None:
        """Withdraw and close. Idempotent."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        for watch in self._watches:
            await watch.end()
        self._watches.clear()
        await self._announcer.close()
        listener, self._listener = self._listener, None
        self.available = False
        if listener is not None:
            await listener.async_close()

    async def _announce(self) -> None:
        assert self._advertised is not None
        advert, listen = self._advertised
        lan = [] if self._scope == "loopback" else lan_addresses()
        where = (
            reach(listen, lan) if listen is not None else reach_of_shared(advert.address.host, lan)
        )
        if listen is not None and not where.hosts:
            _log.warning(
                "%s: the broker on %s is not announced, because it listens on IPv6 only; "
                "listen on IPv4, or %s",
                advert.id,
                listen,
                HINT,
            )
            return
        if self._scope == "loopback":
            where = Reach(where.hosts, (LOOPBACK,))
        if not await self._announcer.announce(advert, where, shared=listen is None):
            self._again = True

    async def _follow(self) -> None:
        """Follow this machine's addresses as they come and go."""
        while True:
            await asyncio.sleep(FOLLOW_S)
            now, before = self._interfaces(), self._listens_on
            self._warn_if_gone(now)
            if now == before and not self._again:
                continue
            self._again = False
            try:
                if self._listener is None:
                    await self._open()
                    before = []
                else:
                    await self._listener.async_update_interfaces(announceable(now))
                    self._listens_on = now
                if self._listener is not None:
                    if now != before:
                        _log.info("this machine's addresses are now %s", ", ".join(now))
                    await self._follow_to(new=not set(now) <= set(before))
            except OSError as error:
                self._again = True
                _log.debug("zeroconf could not switch to %s yet: %s", ", ".join(now), error)

    async def _follow_to(self, *, new: bool) -> None:
        # First of all ours: a watch must not try where we are no more.
        if self._advertised is not None:
            await self._announce()
        if self._listener is None or not new:
            return
        for watch in self._watches:
            await watch.end()
            watch.ask(self._listener.zeroconf)

    def _warn_if_gone(self, now: list[str]) -> None:
        """Log once when our broker's own address went away: no other one leads to it."""
        listen = self._advertised[1] if self._advertised is not None else None
        # Of IPv6 nothing is announced.
        own = listen is not None and ":" not in listen
        own = own and not is_loopback(listen or "") and not is_wildcard(listen or "")
        gone = own and listen not in now and not is_own(listen or "")
        if gone and not self._gone:
            _log.warning(
                "the broker listens on %s, which is no longer an address of this machine: no "
                "peer can reach it; restore the address, or start again with --listen 0.0.0.0",
                listen,
            )
        self._gone = gone

    def _interfaces(self) -> list[str]:
        return [LOOPBACK] if self._scope == "loopback" else [*lan_addresses(), LOOPBACK]


async def _resolved(listen: str) -> str:
    with suppress(ValueError):
        return str(ipaddress.ip_address(listen or "0.0.0.0"))  # noqa: S104 - compared, not bound
    try:
        found = await look_up(listen, None, socket.AF_INET)
    except OSError as error:
        _log.warning("%s cannot be announced: %s; %s", listen, error, HINT)
        return "::"
    return str(found[0][4][0])


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


async def opened(addresses: list[str]) -> "AsyncZeroconf | None":
    """Return zeroconf on some of our addresses; None if none has multicast."""
    interfaces = announceable(addresses)
    if not interfaces:
        return None
    # Imported late: a role with a typed address needs none of it.
    from zeroconf.asyncio import AsyncZeroconf  # noqa: PLC0415

    # It prints a traceback where an address is gone, which `Discovery` follows and logs.
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
                # What is known already would go to every network, also of loopback.
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
