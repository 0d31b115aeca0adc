"""Browsing by zeroconf: who is announced, and at which address it can be reached."""

import asyncio
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from zeroconf import (  # type: ignore[attr-defined]  # not all in its __all__
    BadTypeInNameException,
    DNSAddress,
    DNSOutgoing,
    DNSQuestion,
    DNSService,
    ServiceStateChange,
    Zeroconf,
)
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo

from fedagent_node.errors import is_strangers
from fedagent_node.network import by_nearness

from .advert import MAX_TXT_BYTES, Advert, Role, advert_from, service_type

_log = logging.getLogger(__name__)

OnChange = Callable[[frozenset[Advert]], None]
Judge = Callable[[Advert], Awaitable[str]]
"""Returns why the address of an advert is of no use, in a few words; empty if it is."""

MAX_CANDIDATES = 32
"""Names that are followed; one more waits for the place of one that never answered, or is gone."""
GONE_S = 2.0
"""How long zeroconf may name one that has said goodbye again: it keeps its records for 1 s."""
MAX_HOSTS = 8
"""Addresses of one advert that are tried: an advert must not have us scan a network."""
MAX_TRIED = 8
"""Adverts whose addresses are tried at a time; a turn that found one refused lasts `AGAIN_S`."""
MAX_REMEMBERED = 128
"""Names that wait, or whose last complaint or end is remembered, and sites beside ours."""
DEBOUNCE_S = 0.05
LOOKUP_MS = 3000
AGAIN_S = 1.0
"""How long a name is left alone that was not resolved."""
RETRY_S = 10.0
"""How long an advert of which no address answers is left alone."""
CLAIMS_S = 0.6
"""How long to listen for who else claims a name whose address is refused."""
QUIET_S = 8.0
"""How long there may be no advert before that is logged."""
_QUERY, _IN, _A, _SRV = 0, 1, 1, 33
"""Flags, class and types of DNS (RFC 1035, RFC 2782)."""
OPTIONS = {"edge": "--edge", "coordinator": "--coordinator"}


@dataclass(slots=True, eq=False)
class _Name:
    """One name that is announced, and the task that follows it."""

    name: str
    advert: Advert | None = None
    silent: bool = False  # the last look found no address that answers
    answered: bool = False
    again: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


class Watch:
    """What is known of one role; `Discovery.browse` has the arguments."""

    def __init__(
        self,
        role: Role,
        site: str | None,
        on_change: OnChange,
        *,
        judge: Judge,
        needed: bool = False,
    ) -> None:
        self._role = role
        self._site = site
        self._on_change = on_change
        self._judge = judge
        self._needed = needed
        self._names: dict[str, _Name] = {}
        self._waiting: dict[str, None] = {}  # zeroconf names each once: who finds no room is kept
        self._back_at: dict[str, float] = {}  # when a name that is gone may be back
        self._complaints: dict[str, tuple[str, ...]] = {}
        self._elsewhere: dict[str, None] = {}
        self._reported: frozenset[Advert] = frozenset()
        self._timer: asyncio.TimerHandle | None = None
        self._quiet: asyncio.TimerHandle | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._turns = asyncio.Semaphore(MAX_TRIED)

    def ask(self, zeroconf: Zeroconf) -> None:
        """Ask the network, and listen."""
        self._zeroconf = zeroconf
        kind = service_type(self._role)
        self._browser = AsyncServiceBrowser(zeroconf, kind, handlers=[self.changed])
        if self._needed:
            self._quiet = asyncio.get_running_loop().call_later(QUIET_S, self._log_no_adverts)

    async def end(self) -> None:
        """Stop listening; what is known stays."""
        browser, self._browser = self._browser, None
        if browser is not None:
            await browser.async_cancel()
        if self._quiet is not None:
            self._quiet.cancel()
        tasks = [one.task for one in self._names.values() if one.task is not None]
        for one in self._names.values():
            one.task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def changed(
        self,
        zeroconf: Zeroconf,  # noqa: ARG002
        service_type: str,  # noqa: ARG002
        name: str,
        state_change: ServiceStateChange,
    ) -> None:
        """Take a browser's event; the parameters are zeroconf's."""
        loop, one = asyncio.get_running_loop(), self._names.get(name)
        if state_change is ServiceStateChange.Removed:
            self._waiting.pop(name, None)
            _remember(self._back_at, name, loop.time() + GONE_S)
            if one is not None:
                self._leave(one)
        elif one is None:
            _remember(self._waiting, name, None)
            self._let_in()
        else:
            one.again.set()
            if one.task is None:
                one.task = loop.create_task(self._follow(one))

    def _let_in(self) -> None:
        while self._waiting and len(self._names) < MAX_CANDIDATES:
            name = next(iter(self._waiting))
            del self._waiting[name]
            one = self._names[name] = _Name(name)
            one.task = asyncio.get_running_loop().create_task(self._follow(one))

    def _leave(self, one: _Name) -> None:
        self._names.pop(one.name, None)
        if one.advert is not None:
            self._notify_soon()
        if one.task is not None:
            one.task.cancel()
        if self._browser is not None:
            self._let_in()

    async def _follow(self, one: _Name) -> None:
        """Look a name up, again after a while or when it has changed, until it is of no use."""
        back_at = self._back_at.get(one.name, -math.inf)
        await asyncio.sleep(max(0.0, back_at - asyncio.get_running_loop().time()))
        while True:
            one.again.clear()
            pause_s = await self._look(one)
            if pause_s is None:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s if pause_s < math.inf else None):
                    await one.again.wait()
            useless = one.silent and not one.answered and not one.again.is_set()
            if useless and self._waiting:
                _remember(self._waiting, one.name, None)
                break
        one.task = None
        self._leave(one)

    # -------------------------------------------------------------- one look

    async def _look(self, one: _Name) -> float | None:
        """Look a name up once; return after how long to do it again, None for never."""
        try:
            info = AsyncServiceInfo(service_type(self._role), one.name)
            if not await info.async_request(self._zeroconf, LOOKUP_MS):
                # A lost answer must not hide a role until its record changes.
                one.silent = True
                return AGAIN_S
            hosts = by_nearness(info.parsed_addresses())
        except (BadTypeInNameException, ValueError, OSError):
            hosts, advert = [], None
        else:
            short = len(info.text or b"") <= MAX_TXT_BYTES
            advert = advert_from(self._role, info.properties, hosts, info.port) if short else None
        if advert is None:
            return None
        if self._site not in (None, advert.site):
            _remember(self._elsewhere, advert.site, None)
            return None
        advert, refused = await self._tried(one, advert)
        self.complain(one, advert, refused)
        why = refused.get(str(advert.address), "")
        one.silent, one.answered = bool(why), one.answered or not why
        one.advert = replace(advert, refused=is_strangers(why))
        self._notify_soon()
        return RETRY_S if why else math.inf

    async def _tried(self, one: _Name, advert: Advert) -> tuple[Advert, dict[str, str]]:
        """Connect in turn; a turn lasts a while if an address was refused."""
        refused: dict[str, str] = {}
        await self._turns.acquire()
        try:
            good = await self.first_good([advert.at(host) for host in advert.hosts], refused)
            if good is None and refused:
                # Somebody else may have answered first: all that claim the name are asked, and
                # who was good last is tried again.
                claims = await self._claims(one.name, advert)
                fresh = [one.advert, *claims] if one.advert is not None else claims
                good = await self.first_good(fresh, refused)
        finally:
            wait_s = AGAIN_S if refused else 0.0
            asyncio.get_running_loop().call_later(wait_s, self._turns.release)
        return good or advert, refused

    async def first_good(self, adverts: Iterable[Advert], refused: dict[str, str]) -> Advert | None:
        """Return the first of a few adverts whose address is of use; note why others are not."""
        new = [one for one in adverts if str(one.address) not in refused]
        for advert in new[:MAX_HOSTS]:
            why = await self._judge(advert)
            if not why:
                return advert
            refused[str(advert.address)] = why
        return None

    async def _claims(self, name: str, advert: Advert) -> list[Advert]:
        """Ask everybody for the name, and return an advert for each place that is claimed."""
        cache = self._zeroconf.cache
        servers = {one.server for one in _of(DNSService, cache.entries_with_name(name))}
        out = DNSOutgoing(_QUERY)
        out.add_question(DNSQuestion(name, _SRV, _IN))
        for server in list(servers)[:MAX_HOSTS]:
            out.add_question(DNSQuestion(server, _A, _IN))
        self._zeroconf.async_send(out)
        await asyncio.sleep(CLAIMS_S)
        return [
            advert.at(socket.inet_ntoa(record.address), service.port)
            for service in _of(DNSService, cache.entries_with_name(name))
            for record in _of(DNSAddress, cache.entries_with_name(service.server))
            if len(record.address) == 4
        ]

    # ------------------------------------------------------------- for people

    def complain(self, one: _Name, advert: Advert, refused: dict[str, str]) -> None:
        """Log once which addresses of an advert are not used, and why."""
        # Not the reasons: a router's differ from one try to the next.
        before = self._complaints.get(one.name, ())
        _remember(self._complaints, one.name, tuple(refused))
        if tuple(refused) == before:
            return
        silent = ", ".join(f"{where} ({why})" for where, why in refused.items())
        who = f"{self._role} {advert.id} is announced at {silent}"
        if str(advert.address) not in refused:
            if silent:
                _log.info("%s, which does not answer; %s does", who, advert.address)
        elif any(map(is_strangers, refused.values())):
            _log.warning("%s: it is not used", who)
        elif one.answered:
            _log.warning(
                "%s, which no longer answers: it has stopped or is restarting; still looking", who
            )
        else:
            _log.warning(
                "%s, which does not answer; check that it runs and that no firewall blocks it, "
                "or give an address that answers: %s HOST:PORT",
                who,
                OPTIONS[self._role],
            )

    def _log_no_adverts(self) -> None:
        """Log once that there is no advert, and what to do."""
        if any(one.advert is not None for one in self._names.values()):
            return
        self._needed = False
        others = ", ".join(sorted(self._elsewhere))
        _log.warning(
            "no %s of site %s is announced here%s; on another machine it needs --listen "
            "0.0.0.0 (with certificates or --insecure); or give %s HOST:PORT; still looking",
            self._role,
            self._site,
            f", only of --site {others[:400]}" if others else "",
            OPTIONS[self._role],
        )

    def _notify_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DEBOUNCE_S, self._notify)

    def _notify(self) -> None:
        self._timer = None
        now = frozenset(one.advert for one in self._names.values() if one.advert is not None)
        if now == self._reported or self._browser is None:
            return
        self._reported = now
        if now and self._quiet is not None:
            self._quiet.cancel()  # of one that came, and has ended since, nothing is amiss
        try:
            self._on_change(now)
        except Exception:  # noqa: BLE001 - logged; discovery must outlive its listener
            _log.exception("a change of %s adverts could not be handled", self._role)


R = TypeVar("R")


def _of(kind: type[R], records: Iterable[object]) -> list[R]:
    return [record for record in records if isinstance(record, kind)]


def _remember(table: dict[str, R], name: str, value: R) -> None:
    """Note something of a name, in place of that of the one noted first if there is no room."""
    table.pop(name, None)
    table[name] = value
    if len(table) > MAX_REMEMBERED:
        del table[next(iter(table))]
