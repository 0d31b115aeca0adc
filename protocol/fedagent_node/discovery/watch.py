"""Browsing by zeroconf: who is announced, and at which address it can be reached."""

import asyncio
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

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
from fedagent_node.network import by_nearness, cancelled

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
"""Names that are followed, wait, or are remembered a while for what was said of them."""
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
    """One name that is or was announced, and the task that follows it, once there is room."""

    name: str
    wanted: bool = True
    back_at: float = -math.inf  # when a name that said goodbye may be back
    advert: Advert | None = None
    silent: bool = False  # the last look found no address that answers
    answered: bool = False
    complaint: tuple[str, ...] = ()
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
        self._elsewhere: set[str] = set()
        self._reported: frozenset[Advert] = frozenset()
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
        tasks = [one.task for one in self._names.values()]
        for one in self._names.values():
            one.task, one.wanted = None, False  # until it is named again
        await cancelled(*tasks)

    def changed(
        self,
        zeroconf: Zeroconf,  # noqa: ARG002
        service_type: str,  # noqa: ARG002
        name: str,
        state_change: ServiceStateChange,
    ) -> None:
        """Take a browser's event; the parameters are zeroconf's."""
        one = self._names.get(name)
        if state_change is ServiceStateChange.Removed:
            if one is not None:
                one.back_at = asyncio.get_running_loop().time() + GONE_S
                self._leave(one)
            return
        if one is None:
            one = self._names[name] = _Name(name)
            if len(self._names) > MAX_REMEMBERED:
                idle = (other for other in self._names.values() if other.task is None)
                least = min(idle, key=lambda other: (other.advert is not None, other.wanted))
                del self._names[least.name]
        one.wanted = True
        one.again.set()
        self._let_in()

    def _waiting(self) -> list[_Name]:
        return [one for one in self._names.values() if one.wanted and one.task is None]

    def _let_in(self) -> None:
        """Follow those that wait, as far as there is room."""
        room = MAX_CANDIDATES - sum(one.task is not None for one in self._names.values())
        for one in self._waiting()[: max(0, room)]:
            one.task = asyncio.get_running_loop().create_task(self._follow(one))

    def _leave(self, one: _Name, *, wanted: bool = False) -> None:
        task, one.task = one.task, None
        if one.advert is not None:
            self._notify_soon()
        one.wanted, one.advert, one.silent, one.answered = wanted, None, False, False
        if self._browser is not None:
            self._let_in()
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _follow(self, one: _Name) -> None:
        """Look a name up, again after a while or when it has changed, until it is of no use."""
        await asyncio.sleep(max(0.0, one.back_at - asyncio.get_running_loop().time()))
        while True:
            one.again.clear()
            pause_s = await self._look(one)
            if pause_s is None:
                return self._leave(one)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s if pause_s < math.inf else None):
                    await one.again.wait()
            useless = one.silent and not one.answered and not one.again.is_set()
            if useless and self._waiting():
                self._names[one.name] = self._names.pop(one.name)  # behind those that wait
                return self._leave(one, wanted=True)

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
            if len(self._elsewhere) < MAX_CANDIDATES:
                self._elsewhere.add(advert.site)
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
        found = self._zeroconf.cache.entries_with_name
        out = DNSOutgoing(_QUERY)
        out.add_question(DNSQuestion(name, _SRV, _IN))
        servers = {one.server for one in found(name) if isinstance(one, DNSService)}
        for server in list(servers)[:MAX_HOSTS]:
            out.add_question(DNSQuestion(server, _A, _IN))
        self._zeroconf.async_send(out)
        await asyncio.sleep(CLAIMS_S)
        return [
            advert.at(socket.inet_ntoa(record.address), service.port)
            for service in found(name)
            if isinstance(service, DNSService)
            for record in found(service.server)
            if isinstance(record, DNSAddress) and len(record.address) == 4
        ]

    # ------------------------------------------------------------- for people

    def complain(self, one: _Name, advert: Advert, refused: dict[str, str]) -> None:
        """Log once which addresses of an advert are not used, and why."""
        # Not the reasons: a router's differ from one try to the next.
        before, one.complaint = one.complaint, tuple(refused)
        if one.complaint == before:
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
        asyncio.get_running_loop().call_later(DEBOUNCE_S, self._notify)

    def _notify(self) -> None:
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
