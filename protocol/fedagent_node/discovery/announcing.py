"""Announcing and finding roles by zeroconf.

An advert is a hint and nothing else: anyone on the network can send one. It is cut to a
known form in `advert`, and who is behind it is found out on the connection.
"""

import asyncio
import ipaddress
import logging
import socket
from collections import Counter
from contextlib import suppress
from typing import Literal

from zeroconf.asyncio import AsyncZeroconf

from fedagent_node.address import is_loopback, is_wildcard
from fedagent_node.network import is_own, lan_addresses, look_up, refusal

from .advert import LOOPBACK, Advert, Reach, Role, reach, reach_of_shared
from .mdns import Announcer, announceable, opened
from .watch import Judge, OnChange, Watch

__all__ = ["Advert", "Discovery", "Role", "Scope", "answers_there"]

_log = logging.getLogger(__name__)

Scope = Literal["loopback", "lan"]
FOLLOW_S = 5.0
"""How often cables, Wi-Fi and DHCP are looked at."""
HINT = "give the address instead: --edge HOST:PORT or --coordinator HOST:PORT"


async def answers_there(advert: Advert) -> str:
    """Return why no connection is accepted at an advert's address; empty if one is."""
    return await refusal(advert.address.host, advert.address.port)


class Discovery:
    """Advertise this role and browse for others at one site (None: at every site).

    What is announced follows from where the broker listens (`advert.reach`), whatever the
    scope of browsing: a broker on loopback is never announced beyond this machine. Nothing is
    browsed or announced before `start`; where multicast comes late, both begin then.
    """

    def __init__(
        self,
        site: str | None,
        *,
        scope: Scope = "loopback",
        judge: Judge = answers_there,
    ) -> None:
        self.site = site
        self._judge = judge
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

    @property
    def available(self) -> bool:
        """Whether multicast works here."""
        return self._listener is not None

    async def start(self) -> None:
        """Open the sockets. Where multicast does not work, warn once and try again quietly."""
        if not await self._open():
            _log.warning("zeroconf does not work here (no multicast); %s", HINT)
        self._following = asyncio.ensure_future(self._follow())

    async def _open(self) -> bool:
        self._listens_on = self._interfaces()
        self._listener = await opened(self._listens_on)
        self._again = self._listener is None
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

        With `needed`, a line in the log if there is no advert.
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
                *(advert.id, listen, HINT),
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
                if self._listener is None:
                    continue
                if now != before:
                    _log.info("this machine's addresses are now %s", ", ".join(now))
                # First of all ours: a watch must not try where we are no more.
                if self._advertised is not None:
                    await self._announce()
                if set(now) <= set(before):
                    continue
                for watch in self._watches:
                    await watch.end()
                    watch.ask(self._listener.zeroconf)
            except OSError as error:
                self._again = True
                _log.debug("zeroconf could not switch to %s yet: %s", ", ".join(now), error)

    def _warn_if_gone(self, now: list[str]) -> None:
        """Log once when our broker's own address went away: no other one leads to it."""
        listen = (self._advertised[1] if self._advertised is not None else None) or ""
        # Of IPv6 nothing is announced.
        own = listen and not (":" in listen or is_loopback(listen) or is_wildcard(listen))
        gone = bool(own) and listen not in now and not is_own(listen)
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
