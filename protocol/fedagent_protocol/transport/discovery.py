"""Finding edges and coordinators by zeroconf; the only module that touches it.

An advert is a hint and nothing else: anyone on the network can send one. What it
says is cut to a known form here, and who is behind it is settled on the connection.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Literal

from .advert import MAX_TXT_BYTES, Advert, Role, advert_from, service_type, to_txt
from .interfaces import lan_addresses, multicast_works, pick_address

if TYPE_CHECKING:
    from zeroconf import ServiceStateChange, Zeroconf
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

__all__ = ["Advert", "Discovery", "Role", "Scope"]

_log = logging.getLogger(__name__)

Scope = Literal["loopback", "lan"]
OnChange = Callable[[frozenset[Advert]], None]

MAX_CANDIDATES = 32
MAX_LOOKUPS = 64
DEBOUNCE_S = 0.05
LOOKUP_MS = 3000
MEND = "give the address instead: --edge HOST:PORT or --coordinator HOST:PORT"


class Discovery:
    """Advertise this role and browse for others at one site.

    Args:
        site: Adverts of other sites are ignored.
        scope: ``loopback``: this machine only. ``lan``: its networks, where adverts
            leave out loopback and container addresses; loopback is browsed as well.

    Attributes:
        available: Whether zeroconf started; without it everything here does nothing.
        counters: ``ignored_site``, ``ignored_malformed``, ``ignored_full``,
            ``unresolved``, ``callback_errors``.
    """

    def __init__(self, site: str, *, scope: Scope = "loopback") -> None:
        self.site = site
        self.available = False
        self.counters: Counter[str] = Counter()
        self._scope = scope
        self._zeroconf: AsyncZeroconf | None = None
        self._info: AsyncServiceInfo | None = None
        self._browsers: list[AsyncServiceBrowser] = []
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._announcing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the sockets. Where multicast does not work, warn once and go on without."""
        # Imported late: a role with a typed address needs none of it.
        from zeroconf import IPVersion  # noqa: PLC0415
        from zeroconf.asyncio import AsyncZeroconf  # noqa: PLC0415

        # Asked first, because zeroconf leaves sockets open when an interface fails it.
        interfaces = [address for address in self._interfaces() if multicast_works(address)]
        try:
            if interfaces:
                zeroconf = AsyncZeroconf(interfaces=interfaces, ip_version=IPVersion.V4Only)
                await zeroconf.zeroconf.async_wait_for_start()
                self._zeroconf = zeroconf
                self.available = True
        except OSError as exc:
            _log.debug("zeroconf on %s: %s", interfaces, exc)
        if not self.available:
            _log.warning("zeroconf does not work here (no multicast); %s", MEND)

    async def advertise(self, advert: Advert, *, external: bool = False) -> None:
        """Announce this role, in place of what it announced before.

        Args:
            advert: What to say; its site must be ours.
            external: The broker is not on this machine, or is shared: the address
                is told as it is, instead of as this machine's addresses.
        """
        if self._zeroconf is None:
            return
        from zeroconf.asyncio import AsyncServiceInfo  # noqa: PLC0415

        addresses = ["127.0.0.1"] if self._scope == "loopback" else lan_addresses()
        kind = service_type(advert.role)
        info = AsyncServiceInfo(
            kind,
            f"{advert.id}.{kind}",
            port=advert.address.port,
            properties=to_txt(advert, external=external),
            server=f"fedagent-{advert.id}.local.",
            parsed_addresses=addresses or ["127.0.0.1"],
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

    async def withdraw(self) -> None:
        """Take the announcement back. Idempotent."""
        info, self._info = self._info, None
        await self._end_announcing()
        if info is not None and self._zeroconf is not None:
            await (await self._zeroconf.async_unregister_service(info))

    def browse(self, role: Role, on_change: OnChange) -> None:
        """Watch for a role; `on_change` gets all that are known, at every change."""
        if self._zeroconf is None:
            return
        from zeroconf.asyncio import AsyncServiceBrowser  # noqa: PLC0415

        watch = _Watch(self, role, on_change)
        browser = AsyncServiceBrowser(
            self._zeroconf.zeroconf, service_type(role), handlers=[watch.changed]
        )
        self._browsers.append(browser)

    async def stop(self) -> None:
        """Withdraw and close. Idempotent."""
        zeroconf = self._zeroconf
        if zeroconf is None:
            return
        await self.withdraw()
        self._zeroconf = None
        self.available = False
        for task in list(self._lookups.values()):
            task.cancel()
        await asyncio.gather(*self._lookups.values(), return_exceptions=True)
        for browser in self._browsers:
            await browser.async_cancel()
        self._browsers.clear()
        await zeroconf.async_close()

    async def _end_announcing(self) -> None:
        announcing, self._announcing = self._announcing, None
        if announcing is not None:
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)

    def _interfaces(self) -> list[str]:
        return ["127.0.0.1"] if self._scope == "loopback" else [*lan_addresses(), "127.0.0.1"]

    def _look_up(self, name: str, work: Coroutine[None, None, None]) -> None:
        """Run one lookup per name, and no more than so many at a time."""
        if name in self._lookups or len(self._lookups) >= MAX_LOOKUPS:
            self.counters["ignored_full"] += name not in self._lookups
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._lookups[name] = task
        task.add_done_callback(lambda _: self._lookups.pop(name, None))


class _Watch:
    """What is known of one role, and whom to tell."""

    def __init__(self, discovery: Discovery, role: Role, on_change: OnChange) -> None:
        self._discovery = discovery
        self._counters = discovery.counters
        self._role = role
        self._on_change = on_change
        self._known: dict[str, Advert] = {}
        self._told: frozenset[Advert] = frozenset()
        self._timer: asyncio.TimerHandle | None = None

    def changed(
        self, zeroconf: "Zeroconf", service_type: str, name: str, state_change: "ServiceStateChange"
    ) -> None:
        """Take a browser's event; the parameter names are zeroconf's."""
        if state_change.name == "Removed":
            if self._known.pop(name, None) is not None:
                self._tell_soon()
            return
        self._discovery._look_up(name, self._resolve(zeroconf, service_type, name))  # noqa: SLF001

    async def _resolve(self, zeroconf: "Zeroconf", kind: str, name: str) -> None:
        from zeroconf import BadTypeInNameException  # noqa: PLC0415
        from zeroconf.asyncio import AsyncServiceInfo  # noqa: PLC0415

        try:
            info = AsyncServiceInfo(kind, name)
            if not await info.async_request(zeroconf, LOOKUP_MS):
                self._counters["unresolved"] += 1
                return
            hosts = info.parsed_addresses()
        except (BadTypeInNameException, ValueError, OSError):
            self._counters["ignored_malformed"] += 1
            return
        text = info.text or b""
        advert = None
        if len(text) <= MAX_TXT_BYTES:
            advert = advert_from(self._role, info.properties, pick_address(hosts), info.port)
        self._note(name, advert)

    def _note(self, name: str, advert: Advert | None) -> None:
        if advert is None:
            self._counters["ignored_malformed"] += 1
        elif advert.site != self._discovery.site:
            self._counters["ignored_site"] += 1
            advert = None
        elif len(self._known) >= MAX_CANDIDATES and name not in self._known:
            self._counters["ignored_full"] += 1
            return
        if advert is not None:
            self._known[name] = advert
        elif self._known.pop(name, None) is None:
            return
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DEBOUNCE_S, self._tell)

    def _tell(self) -> None:
        self._timer = None
        now = frozenset(self._known.values())
        if now == self._told or not self._discovery.available:
            return
        self._told = now
        try:
            self._on_change(now)
        except Exception:  # noqa: BLE001 - logged; discovery must outlive its listener
            self._counters["callback_errors"] += 1
            _log.exception("a change of %s adverts could not be handled", self._role)


async def _finished(announced: Awaitable[object]) -> None:
    await announced
