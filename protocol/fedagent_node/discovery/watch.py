"""Browsing by zeroconf: who is announced, and at which address it can be reached."""

import asyncio
import logging
import math
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from fedagent_node.discovery.advert import MAX_TXT_BYTES, Advert, Role, advert_from, service_type
from fedagent_node.errors import is_strangers
from fedagent_node.network import by_nearness, refusal

if TYPE_CHECKING:
    from zeroconf import ServiceStateChange, Zeroconf
    from zeroconf.asyncio import AsyncServiceBrowser

_log = logging.getLogger(__name__)

OnChange = Callable[[frozenset[Advert]], None]
Judge = Callable[[Advert], Awaitable[str]]
"""Returns why the address of an advert is of no use, in a few words; empty if it is."""

MAX_CANDIDATES = 32
MAX_LOOKUPS = 64
MAX_WAITING = 64
"""Names that found no room, and are looked up again; the oldest goes first if there are more."""
GONE_S = 2.0
"""How long zeroconf may name one that has said goodbye again: it keeps its records for 1 s."""
MAX_HOSTS = 8
"""Addresses of one advert that are tried: whoever sends one must not have us scan a network."""
MAX_TRIED = 8
"""Adverts whose addresses are tried at a time; a turn that found one refused lasts `AGAIN_S`."""
MAX_SITES = 8
DEBOUNCE_S = 0.05
LOOKUP_MS = 3000
AGAIN_S = 1.0
"""How long a name is left alone that was not resolved."""
RETRY_S = 10.0
"""How long an advert of which no address answers is left alone."""
CLAIMS_S = 0.6
"""How long to listen for who else claims a name whose address is refused."""
QUIET_S = 8.0
"""How long nobody may be announced before that is logged."""
_QUERY, _IN, _A, _SRV = 0, 1, 1, 33
"""Flags, class and types of DNS (RFC 1035, RFC 2782)."""
OPTIONS = {"edge": "--edge", "coordinator": "--coordinator"}


class Watch:
    """What is known of one role; `Discovery.browse` has the arguments."""

    def __init__(
        self,
        role: Role,
        site: str | None,
        on_change: OnChange,
        counters: Counter[str],
        *,
        judge: Judge,
        needed: bool = False,
    ) -> None:
        self._judge = judge
        self._role = role
        self._site = site
        self._on_change = on_change
        self._counters = counters
        self._known: dict[str, Advert] = {}
        self._reported: frozenset[Advert] = frozenset()
        self._timer: asyncio.TimerHandle | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._retries: dict[str, asyncio.TimerHandle] = {}
        self._complaints: dict[str, tuple[str, ...]] = {}
        self._answered: set[str] = set()
        self._failed: set[str] = set()
        self._gone: dict[str, float] = {}  # until when a name is not believed to be back
        self._waiting: dict[str, bool] = {}  # whether it was never looked up
        self._again: asyncio.TimerHandle | None = None
        self._told_full = False
        self._needed = needed
        self._quiet: asyncio.TimerHandle | None = None
        self._elsewhere: set[str] = set()
        self._turns = asyncio.Semaphore(MAX_TRIED)

    def ask(self, zeroconf: "Zeroconf") -> None:
        """Ask the network, and listen."""
        from zeroconf.asyncio import AsyncServiceBrowser  # noqa: PLC0415

        self._zeroconf = zeroconf
        self._browser = AsyncServiceBrowser(
            zeroconf, service_type(self._role), handlers=[self.changed]
        )
        if self._needed:
            loop = asyncio.get_running_loop()
            self._quiet = loop.call_later(QUIET_S, self._log_no_adverts, LOOKUP_MS / 1000)

    async def end(self) -> None:
        """Stop listening; what is known stays."""
        browser, self._browser = self._browser, None
        if browser is not None:
            await browser.async_cancel()
        if self._quiet is not None:
            self._quiet.cancel()
        for retry in self._retries.values():
            retry.cancel()
        self._retries.clear()
        self._waiting.clear()
        if self._again is not None:
            self._again.cancel()
        lookups = list(self._lookups.values())
        for lookup in lookups:
            lookup.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)

    def changed(
        self,
        zeroconf: "Zeroconf",  # noqa: ARG002
        service_type: str,  # noqa: ARG002
        name: str,
        state_change: "ServiceStateChange",
    ) -> None:
        """Take a browser's event; the parameters are zeroconf's."""
        if state_change.name == "Removed":
            self._complaints.pop(name, None)
            self._answered.discard(name)
            self._waiting.pop(name, None)
            # What it finds is older than the goodbye.
            if (lookup := self._lookups.pop(name, None)) is not None:
                lookup.cancel()
            if (retry := self._retries.pop(name, None)) is not None:
                retry.cancel()
            self._gone[name] = asyncio.get_running_loop().time() + GONE_S
            if len(self._gone) > MAX_WAITING:
                del self._gone[next(iter(self._gone))]
            self._forget(name)
            return
        back_in_s = self._gone.get(name, -math.inf) - asyncio.get_running_loop().time()
        if back_in_s > 0:
            self._retry(name, back_in_s)
        else:
            self._look_up(name, unseen=True)

    def _look_up(self, name: str, *, unseen: bool = False) -> None:
        if name in self._lookups:
            return
        if len(self._lookups) >= MAX_LOOKUPS:
            self._counters["ignored_full"] += 1
            self._postpone(name, unseen=unseen)
            return
        self._waiting.pop(name, None)
        task = self._lookups[name] = asyncio.ensure_future(self._resolve(name))
        task.add_done_callback(lambda done: self._looked_up(name, done))

    def _looked_up(self, name: str, lookup: "asyncio.Task[None]") -> None:
        """Give the place of a lookup to one that waits for its first."""
        if self._lookups.get(name) is lookup:
            del self._lookups[name]
        waiting = next((one for one, unseen in self._waiting.items() if unseen), None)
        if waiting is not None and self._browser is not None:
            self._look_up(waiting)

    def _postpone(self, name: str, *, unseen: bool = False) -> None:
        """Remember a name that found no room until there is some."""
        self._waiting[name] = unseen
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
        if not self._told_full:
            self._told_full = True
            _log.warning(
                "more %ss are announced than are kept (%d), or looked up at a time (%d); the "
                "others are looked up every %.0f s, and take the place of one that does not answer",
                self._role,
                MAX_CANDIDATES,
                MAX_LOOKUPS,
                RETRY_S,
            )
        self._wait()

    def _wait(self) -> None:
        if self._waiting and self._again is None:
            self._again = asyncio.get_running_loop().call_later(RETRY_S, self._look_up_waiting)

    def _look_up_waiting(self) -> None:
        """Look up again what found no room; what finds none now waits on."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._browser is not None:
            for name, unseen in list(self._waiting.items()):
                self._look_up(name, unseen=unseen)
            self._wait()

    async def _resolve(self, name: str) -> None:
        from zeroconf import BadTypeInNameException  # noqa: PLC0415
        from zeroconf.asyncio import AsyncServiceInfo  # noqa: PLC0415

        try:
            info = AsyncServiceInfo(service_type(self._role), name)
            if not await info.async_request(self._zeroconf, LOOKUP_MS):
                # A lost answer must not hide a role until its record changes.
                self._counters["unresolved"] += 1
                _log.debug("%s %s is announced, and says no more", self._role, name)
                self._retry(name, AGAIN_S)
                return
            hosts = info.parsed_addresses()
        except (BadTypeInNameException, ValueError, OSError):
            self._counters["ignored_malformed"] += 1
            return
        advert, silent = None, False
        if len(info.text or b"") <= MAX_TXT_BYTES:
            advert = advert_from(self._role, info.properties, by_nearness(hosts), info.port)
        if advert is not None and self._site in (None, advert.site) and self._has_room(name):
            advert, refused = await self._tried(name, advert)
            self._complain(name, advert, refused)
            if why := refused.get(str(advert.address), ""):
                advert, silent = replace(advert, refused=is_strangers(why)), True
                self._retry(name, RETRY_S)
            else:
                self._answered.add(name)
        self._note(name, advert, silent=silent)

    async def _tried(self, name: str, advert: Advert) -> tuple[Advert, dict[str, str]]:
        """Connect in turn; a turn lasts a while if an address was refused."""
        await self._turns.acquire()
        wait_s = AGAIN_S
        try:
            hosts = [advert.at(host) for host in advert.hosts]
            good, refused = await reachable(hosts, self._judge)
            if good is None and refused:
                # Somebody else may have answered first: all that claim the name are asked, and
                # who was good last is tried again.
                last = self._known.get(name)
                claims = [*([last] if last else []), *await self._claims(name, advert)]
                fresh = [one for one in claims if str(one.address) not in refused]
                good, more = await reachable(fresh, self._judge)
                refused |= more
            wait_s = AGAIN_S if refused else 0.0
        finally:
            asyncio.get_running_loop().call_later(wait_s, self._turns.release)
        return good or advert, refused

    async def _claims(self, name: str, advert: Advert) -> list[Advert]:
        """Ask everybody for the name, and return an advert for each place that is claimed."""
        from zeroconf import (  # type: ignore[attr-defined]  # noqa: PLC0415 - not in its __all__
            DNSAddress,
            DNSOutgoing,
            DNSQuestion,
            DNSService,
        )

        cache = self._zeroconf.cache
        servers = {one.server for one in _of(DNSService, cache.entries_with_name(name))}
        out = DNSOutgoing(_QUERY)
        out.add_question(DNSQuestion(name, _SRV, _IN))
        for server in list(servers)[:MAX_HOSTS]:
            out.add_question(DNSQuestion(server, _A, _IN))
        self._zeroconf.async_send(out)
        await asyncio.sleep(CLAIMS_S)
        found = _of(DNSService, cache.entries_with_name(name))
        return [
            advert.at(socket.inet_ntoa(record.address), service.port)
            for service in found
            for record in _of(DNSAddress, cache.entries_with_name(service.server))
            if len(record.address) == 4
        ]

    def _complain(self, name: str, advert: Advert, refused: dict[str, str]) -> None:
        """Log once which addresses of an advert are not used, and why."""
        # Not the reasons: a router's differ from one try to the next.
        if tuple(refused) == self._complaints.get(name, ()):
            return
        self._complaints[name] = tuple(refused)
        silent = ", ".join(f"{where} ({why})" for where, why in refused.items())
        self._counters["unreachable"] += len(refused)
        who = f"{self._role} {advert.id} is announced at {silent}"
        if str(advert.address) not in refused:
            if silent:
                _log.info("%s, which does not answer; %s does", who, advert.address)
            return
        if any(map(is_strangers, refused.values())):
            _log.warning("%s: it is not used", who)
        elif name in self._answered:
            _log.warning(
                "%s, which no longer answers: it has stopped or is restarting; still looking",
                who,
            )
        else:
            _log.warning(
                "%s, which does not answer; check that it runs and that no firewall blocks it, "
                "or give an address that answers: %s HOST:PORT",
                who,
                OPTIONS[self._role],
            )

    def _retry(self, name: str, wait_s: float) -> None:
        """Look a name up again later, unless it is withdrawn until then."""

        def again() -> None:
            self._retries.pop(name, None)
            self._look_up(name)

        if name in self._retries:
            return
        if len(self._retries) >= MAX_LOOKUPS:
            self._postpone(name)
            return
        self._retries[name] = asyncio.get_running_loop().call_later(wait_s, again)

    def _note(self, name: str, advert: Advert | None, *, silent: bool = False) -> None:
        if advert is None:
            self._counters["ignored_malformed"] += 1
        elif self._site not in (None, advert.site):
            self._counters["ignored_site"] += 1
            if len(self._elsewhere) < MAX_SITES:
                self._elsewhere.add(advert.site)
            advert = None
        elif not self._make_room(name, silent=silent):
            self._counters["ignored_full"] += 1
            if name not in self._retries:
                self._postpone(name)
            return
        if advert is None:
            self._forget(name)
            return
        self._known[name] = advert
        (self._failed.add if silent else self._failed.discard)(name)
        self._notify_soon()

    def _forget(self, name: str) -> None:
        """Drop what is known of a name; its place is for those that wait."""
        self._failed.discard(name)
        if self._known.pop(name, None) is not None:
            self._notify_soon()
            self._look_up_waiting()

    def _has_room(self, name: str) -> bool:
        full = len(self._known) >= MAX_CANDIDATES and name not in self._known
        return not full or self._yielding() is not None

    def _make_room(self, name: str, *, silent: bool) -> bool:
        """Have one that never answered give its place up to one that does; False if none can."""
        if len(self._known) < MAX_CANDIDATES or name in self._known:
            return True
        yielding = None if silent else self._yielding()
        if yielding is None:
            return False
        self._failed.discard(yielding)
        del self._known[yielding]
        return True

    def _yielding(self) -> str | None:
        """Return whose place may be taken: nobody's that may be in use, or only restarts."""
        return next(
            (one for one in self._known if one in self._failed and one not in self._answered), None
        )

    def _log_no_adverts(self, patience_s: float = 0.0) -> None:
        """Log once that nobody is announced, and what to do; lookups under way have some time."""
        if self._known:
            return
        if self._lookups and patience_s:
            # Only once: where others come and go there is always a lookup.
            self._quiet = asyncio.get_running_loop().call_later(patience_s, self._log_no_adverts)
            return
        self._needed = False
        others = ", ".join(sorted(self._elsewhere))
        _log.warning(
            "no %s of site %s is announced here%s; on another machine it needs --listen "
            "0.0.0.0 (with certificates or --insecure); or give %s HOST:PORT; still looking",
            self._role,
            self._site,
            f", only of --site {others}" if others else "",
            OPTIONS[self._role],
        )

    def _notify_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DEBOUNCE_S, self._notify)

    def _notify(self) -> None:
        self._timer = None
        now = frozenset(self._known.values())
        if now == self._reported or self._browser is None:
            return
        self._reported = now
        try:
            self._on_change(now)
        except Exception:  # noqa: BLE001 - logged; discovery must outlive its listener
            self._counters["callback_errors"] += 1
            _log.exception("a change of %s adverts could not be handled", self._role)


async def reachable(
    adverts: Iterable[Advert], judge: Judge
) -> tuple[Advert | None, dict[str, str]]:
    """Return the first of a few adverts whose address is of use, and why those before are not."""
    refused: dict[str, str] = {}
    for advert in islice(adverts, MAX_HOSTS):
        why = await judge(advert)
        if not why:
            return advert, refused
        refused[str(advert.address)] = why
    return None, refused


async def answers_there(advert: Advert) -> str:
    """Return why no connection is accepted at an advert's address; empty if one is."""
    return await refusal(advert.address.host, advert.address.port)


R = TypeVar("R")


def _of(kind: type[R], records: Iterable[object]) -> list[R]:
    return [record for record in records if isinstance(record, kind)]
