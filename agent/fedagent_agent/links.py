"""The agent's connections: one per broker that was typed or found."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass

from fedagent_node.address import BrokerAddress, TlsFiles
from fedagent_node.discovery import Advert
from fedagent_node.errors import LinkError
from fedagent_node.link import Arrival, Link
from fedagent_protocol import topics

MAX_LINKS = 32

_log = logging.getLogger(__name__)

OnArrivals = Callable[[str, list[Arrival]], None]
OnState = Callable[[str, bool], None]
OnEdge = Callable[[str, str], None]


@dataclass(slots=True)
class _Entry:
    link: Link
    typed: bool
    advertised: bool


class Links:
    """Keep a link to every broker that may have an edge.

    Args:
        agent: Id of this agent.
        site: Whose topics to subscribe to.
        tls: Certificate files, if there are any.
        insecure: Whether brokers beyond this machine may do without.
        on_arrivals: Gets the name of a link and what came in on it.
        on_state: Gets the name of a link and whether it is up.
        on_edge: Gets the name of a link that is up, and an edge that adverts place there.
        in_use: Whether a session stands on a link.
    """

    def __init__(
        self,
        *,
        agent: str,
        site: str,
        tls: TlsFiles | None,
        insecure: bool,
        on_arrivals: OnArrivals,
        on_state: OnState,
        on_edge: OnEdge,
        in_use: Callable[[str], bool],
    ) -> None:
        self._agent = agent
        self._filters = topics.agent_filters(site, agent)
        self._tls = tls
        self._insecure = insecure
        self._on_arrivals = on_arrivals
        self._on_state = on_state
        self._on_edge = on_edge
        self._in_use = in_use
        self._entries: dict[str, _Entry] = {}
        self._found: dict[str, tuple[str, ...]] = {}
        self._refused: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def __getitem__(self, name: str) -> Link | None:
        """Return a link by its name; None if it is gone."""
        entry = self._entries.get(name)
        return entry.link if entry is not None else None

    async def add(self, address: BrokerAddress, *, typed: bool = True) -> None:
        """Connect to a broker; a second call with one address changes nothing.

        Raises:
            PlainTextError: It is beyond this machine, without certificates.
            LinkError: The certificate files cannot be used.
        """
        name = str(address)
        entry = self._entries.get(name)
        if entry is not None:
            entry.typed, entry.advertised = entry.typed or typed, entry.advertised or not typed
            return
        link = self._make(name, address)
        self._entries[name] = _Entry(link, typed, not typed)
        await link.start()
        _quietly(link.subscribe(*self._filters))

    def found(self, adverts: Iterable[Advert]) -> None:
        """Follow what discovery says: dial what is new, leave what is gone and unused."""
        adverts = tuple(adverts)
        wanted = {str(advert.address): advert.address for advert in adverts}
        self._found = {name: _edges_at(adverts, name) for name in wanted}
        for name, entry in list(self._entries.items()):
            entry.advertised = name in wanted
            # An advert may be withdrawn while its edge lives: a session keeps its link.
            if not (entry.advertised or entry.typed or self._in_use(name)):
                self._spawn(self._remove(name), f"leave-{name}")
            elif entry.link.connected:
                self._greet(name)
        for name, address in wanted.items():
            if name not in self._entries and len(self._entries) < MAX_LINKS:
                if name not in self._refused:
                    _log.info("%s: found an edge at %s", self._agent, name)
                self._spawn(self._dial(address), f"dial-{name}")

    def renew(self, name: str) -> None:
        """Replace a link on which nothing is heard; drop it if nobody wants it."""
        entry = self._entries.get(name)
        if entry is None:
            return
        if entry.typed or entry.advertised:
            self._spawn(self._renew(name, entry), f"renew-{name}")
        else:
            self._spawn(self._remove(name), f"leave-{name}")

    async def stop(self) -> None:
        """Close everything. Idempotent."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        links = [entry.link for entry in self._entries.values()]
        self._entries.clear()
        await asyncio.gather(*(link.stop() for link in links))

    def _state(self, name: str, up: bool) -> None:
        self._on_state(name, up)
        if up:
            self._greet(name)

    def _greet(self, name: str) -> None:
        for edge in self._found.get(name, ()):
            self._on_edge(name, edge)

    async def _dial(self, address: BrokerAddress) -> None:
        try:
            await self.add(address, typed=False)
        except LinkError as error:
            if str(address) not in self._refused:
                self._refused.add(str(address))
                _log.warning("%s: an edge was found and is not used: %s", self._agent, error)

    async def _renew(self, name: str, entry: _Entry) -> None:
        _log.info("%s: nothing is heard on %s, connecting anew", self._agent, name)
        await entry.link.stop()
        if self._closing or self._entries.get(name) is not entry:
            return
        entry.link = self._make(name, entry.link.address)
        await entry.link.start()
        _quietly(entry.link.subscribe(*self._filters))

    async def _remove(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            await entry.link.stop()

    def _make(self, name: str, address: BrokerAddress) -> Link:
        # One broker under two addresses must not see one client id twice.
        mark = hashlib.sha256(name.encode()).hexdigest()[:6]
        return Link(
            address,
            client_id=f"{self._agent}-{mark}",
            tls=self._tls,
            insecure=self._insecure,
            on_arrivals=lambda arrivals: self._on_arrivals(name, arrivals),
            on_state=lambda up: self._state(name, up),
        )

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        if self._closing:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _edges_at(adverts: Iterable[Advert], name: str) -> tuple[str, ...]:
    return tuple(sorted(advert.id for advert in adverts if str(advert.address) == name))


def _quietly(future: "asyncio.Future[None]") -> None:
    """Let a refused subscription be told by the link's own log and counter."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
