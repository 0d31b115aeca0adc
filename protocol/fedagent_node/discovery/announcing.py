"""Announcing and finding roles by zeroconf.

An advert is a hint and nothing else: anyone on the network can send one. It is cut to a
known form in `advert`, and who is behind it is found out on the connection.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any, Literal

from zeroconf import IPVersion, Zeroconf
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from fedagent_node.address import is_loopback, is_wildcard
from fedagent_node.network import (
    cancelled,
    in_step,
    is_own,
    lan_addresses,
    multicast_works,
    refusal,
    shares_network,
)

from .advert import LOOPBACK, Advert, Reach, Role, reach, service_type, to_txt
from .watch import Judge, OnChange, Watch

_log = logging.getLogger(__name__)

Scope = Literal["loopback", "lan"]
STOP_S = 1.5
"""How long the withdrawal of an advert may take."""
FOLLOW_S = 20.0
"""How often cables, Wi-Fi and DHCP are looked at."""
HINT = "give the address instead: --edge HOST:PORT or --coordinator HOST:PORT"
NO_NETWORK = "no network card has an IPv4 address, so that other machines find nobody here"


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
        self._scope = scope
        self._listener: AsyncZeroconf | None = None
        self._listens_on: list[str] = []
        self._advertised: tuple[Advert, str | None] | None = None
        # Sockets of its own: those that browse hear and speak on every network.
        self._announcer: AsyncZeroconf | None = None
        self._announced_on: tuple[str, ...] = ()
        self._announcing: asyncio.Future[object] | None = None
        self._watches: list[Watch] = []
        self._following: asyncio.Task[None] | None = None
        self._again = False  # something failed, as it does while a card comes up
        self._hidden = ""  # why our broker is announced on no network, as it was logged

    @property
    def available(self) -> bool:
        """Whether multicast works here."""
        return self._listener is not None

    async def start(self) -> None:
        """Open the sockets. Where multicast does not work, warn once and try again quietly."""
        await self._switch(self._interfaces())
        if not self.available:
            _log.warning("zeroconf does not work here (no multicast); %s", HINT)
        self._following = asyncio.create_task(self._follow())

    async def advertise(self, advert: Advert, *, listen: str | None = LOOPBACK) -> None:
        """Announce this role, in place of what it announced before.

        `listen` is where the broker listens, from which follows what is announced and where;
        None for one that is shared or not on this machine: its address is given as it is.
        """
        self._advertised = (advert, listen)
        self._warn_if_hidden()
        if self.available:
            await self._announce()

    def browse(self, role: Role, on_change: OnChange, *, needed: bool = False) -> None:
        """Watch for a role; `on_change` gets all that are known, at every change.

        With `needed`, a line in the log if there is no advert.
        """
        watch = Watch(role, self.site, on_change, judge=self._judge, needed=needed)
        self._watches.append(watch)
        if self._listener is not None:
            watch.ask(self._listener.zeroconf)

    async def stop(self) -> None:
        """Withdraw and close, in a while at most. Idempotent."""
        await cancelled(self._following)
        for watch in self._watches:
            await watch.end()
        self._watches.clear()
        listener, self._listener = self._listener, None
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._withdraw()
                if listener is not None:
                    await listener.async_close()

    # ----------------------------------------------------------------- announcing

    async def _announce(self) -> None:
        assert self._advertised is not None
        advert, listen = self._advertised
        lan = [] if self._scope == "loopback" else lan_addresses()
        if listen is None:
            where = Reach((), (LOOPBACK,) if is_loopback(advert.address.host) else (*lan, LOOPBACK))
        else:
            where = reach(listen, lan)
        if listen is not None and not where.hosts:
            return  # of IPv6 nothing is announced
        announced_on = (LOOPBACK,) if self._scope == "loopback" else where.announced_on
        known = announced_on == self._announced_on
        if not known:
            await self._withdraw()
            self._announcer = await _opened(list(announced_on))
            self._announced_on = announced_on if self._announcer is not None else ()
        if self._announcer is None:
            self._again = True
            return
        kind = service_type(advert.role)
        info = AsyncServiceInfo(
            kind,
            f"{advert.id}.{kind}",
            port=advert.address.port,
            properties=to_txt(advert, external=listen is None),
            server=f"fedagent-{advert.id}.local.",
            parsed_addresses=list(where.hosts or announced_on),
        )
        await cancelled(self._announcing)
        if known:
            announced = await self._announcer.async_update_service(info)
        else:
            # Ids are hashes of keys: probing for a second owner of the name costs a
            # second and finds nothing, and after a kill we must take our name back.
            announced = await self._announcer.async_register_service(
                info, cooperating_responders=True
            )
        self._announcing = asyncio.ensure_future(announced)

    async def _withdraw(self) -> None:
        await cancelled(self._announcing)
        announcer, self._announcer, self._announced_on = self._announcer, None, ()
        if announcer is not None:
            await announcer.async_close()

    async def _follow(self) -> None:
        """Follow this machine's addresses as they come and go."""
        while True:
            await in_step(FOLLOW_S)
            self._warn_if_hidden()
            now = self._interfaces()
            if now == self._listens_on and not self._again:
                continue
            self._again = False
            try:
                await self._switch(now)
            except OSError as error:
                self._again = True
                _log.debug("zeroconf could not switch to %s yet: %s", ", ".join(now), error)

    async def _switch(self, now: list[str]) -> None:
        """Listen on these addresses, announce, and ask where that is new."""
        before = self._listens_on if self._listener is not None else []
        if self._listener is not None:
            await self._listener.async_update_interfaces(_announceable(now))
        else:
            self._listener = await _opened(now)
        self._listens_on = now
        if self._listener is None:
            self._again = True
            return
        if before and now != before:
            _log.info("this machine's addresses are now %s", ", ".join(now))
        # First of all ours: a watch must not try where we are no more.
        if self._advertised is not None:
            await self._announce()
        if not set(now) <= set(before):
            for watch in self._watches:
                await watch.end()
                watch.ask(self._listener.zeroconf)

    def _warn_if_hidden(self) -> None:
        advert, listen = self._advertised or (None, None)
        hidden = _hidden(listen, beyond=self._scope == "lan") if listen else ""
        if advert is not None and hidden and hidden != self._hidden:
            _log.warning("%s: the broker %s", advert.id, hidden)
        self._hidden = hidden

    def _interfaces(self) -> list[str]:
        return [LOOPBACK] if self._scope == "loopback" else [*lan_addresses(), LOOPBACK]


def _hidden(listen: str, *, beyond: bool) -> str:
    """Return why nobody finds a broker that listens there; empty if somebody may."""
    if ":" in listen and not is_loopback(listen):
        return f"on {listen} is not announced, because it listens on IPv6 only; {HINT}"
    if is_wildcard(listen):
        alone = beyond and not lan_addresses()
        return f"is announced on this machine only: {NO_NETWORK}; {HINT}" if alone else ""
    if is_loopback(listen) or is_own(listen):
        return ""
    return (
        f"listens on {listen}, which is no longer an address of this machine: no peer can reach "
        "it; restore the address, or start again with --listen 0.0.0.0"
    )


async def _opened(addresses: list[str]) -> AsyncZeroconf | None:
    """Return zeroconf on some of our addresses; None if none has multicast."""
    interfaces = _announceable(addresses)
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


def _announceable(addresses: list[str]) -> list[str]:
    # Asked first, because zeroconf leaves sockets open when an interface fails it.
    return [address for address in addresses if multicast_works(address)]


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
