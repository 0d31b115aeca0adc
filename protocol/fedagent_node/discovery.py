"""Finding edges and coordinators by zeroconf; with `announce` and `watch`, all that touches it.

An advert is a hint and nothing else: anyone on the network can send one. What it
says is cut to a known form here, and who is behind it is settled on the connection.
"""

import asyncio
import ipaddress
import logging
import socket
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from .address import is_loopback, is_wildcard
from .advert import LOOPBACK, Advert, Reach, Role, reach, reach_of_shared
from .announce import Announcer, announceable, opened
from .network import is_own, lan_addresses
from .watch import OnChange, Watch

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncZeroconf

__all__ = ["Advert", "Discovery", "Role", "Scope"]

_log = logging.getLogger(__name__)

Scope = Literal["loopback", "lan"]
FOLLOW_S = 5.0
"""How often cables, Wi-Fi and DHCP are looked at."""
HINT = "give the address instead: --edge HOST:PORT or --coordinator HOST:PORT"


class Discovery:
    """Advertise this role and browse for others at one site.

    What is announced follows from where the broker listens (`advert.reach`), whatever
    the scope: a broker on loopback is never announced beyond this machine.

    Args:
        site: Adverts of other sites are ignored; None takes those of every site.
        scope: Where to browse. ``loopback``: this machine only. ``lan``: its real networks
            and loopback.

    Attributes:
        available: Whether zeroconf runs; what is asked for before is done once it does.
        counters: ``ignored_site``, ``ignored_malformed``, ``ignored_full``,
            ``unresolved``, ``unreachable``, ``callback_errors``.
    """

    def __init__(self, site: str | None, *, scope: Scope = "loopback") -> None:
        self.site = site
        self.available = False
        self.counters: Counter[str] = Counter()
        self._scope = scope
        self._listener: AsyncZeroconf | None = None
        self._listens_on: list[str] = []
        self._announcer = Announcer()
        self._said: tuple[Advert, str | None] | None = None
        self._watches: list[Watch] = []
        self._following: asyncio.Task[None] | None = None
        self._again = False
        """Whether something failed, as it does while a card comes up."""
        self._gone = False
        """Whether our broker's own address went away, and that was said."""

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

        Args:
            advert: What to say; its site must be ours.
            listen: Where the broker listens, which says what is announced and where; None
                for a broker that is not on this machine, or is shared: its address is told
                as it is.
        """
        self._said = (advert, listen if listen is None else await _resolved(listen))
        self._warn_if_gone(self._interfaces())
        if self.available:
            await self._announce()

    async def withdraw(self) -> None:
        """Take the announcement back. Idempotent."""
        self._said = None
        await self._announcer.silence()

    def browse(self, role: Role, on_change: OnChange, *, needed: bool = False) -> None:
        """Watch for a role; `on_change` gets all that are known, at every change.

        With `needed` it is said, once, if nobody is announced.
        """
        watch = Watch(role, self.site, on_change, self.counters, needed=needed)
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
        assert self._said is not None
        advert, listen = self._said
        lan = [] if self._scope == "loopback" else lan_addresses()
        where = (
            reach(listen, lan) if listen is not None else reach_of_shared(advert.address.host, lan)
        )
        if listen is not None and not where.hosts:
            _log.warning(
                "%s: a broker on %s, IPv6 alone, is not announced; listen on IPv4, or %s",
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
                _log.debug("zeroconf does not follow to %s yet: %s", ", ".join(now), error)

    async def _follow_to(self, *, new: bool) -> None:
        # First of all ours: a watch must not try where we are no more.
        if self._said is not None:
            await self._announce()
        if self._listener is None or not new:
            return
        for watch in self._watches:
            await watch.end()
            watch.ask(self._listener.zeroconf)

    def _warn_if_gone(self, now: list[str]) -> None:
        """Say once when our broker's own address went away: no other one leads to it."""
        listen = self._said[1] if self._said is not None else None
        # Of IPv6 nothing is announced.
        own = listen is not None and ":" not in listen
        own = own and not is_loopback(listen or "") and not is_wildcard(listen or "")
        gone = own and listen not in now and not is_own(listen or "")
        if gone and not self._gone:
            _log.warning(
                "the broker listens on %s, which this machine no longer has: nobody reaches it; "
                "give it the address back, or start again with --listen 0.0.0.0",
                listen,
            )
        self._gone = gone

    def _interfaces(self) -> list[str]:
        return [LOOPBACK] if self._scope == "loopback" else [*lan_addresses(), LOOPBACK]


async def _resolved(listen: str) -> str:
    """Return the address behind a host name that a broker listens on; an address as it is."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(listen or "0.0.0.0"))  # noqa: S104 - compared, not bound
    try:
        found = await asyncio.get_running_loop().getaddrinfo(listen, None, family=socket.AF_INET)
    except OSError as error:
        _log.warning("%s cannot be announced: %s; %s", listen, error, HINT)
        return "::"
    return str(found[0][4][0])
