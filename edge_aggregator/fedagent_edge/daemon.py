"""The edge as a process: its broker, the coordinator's, and the search for it."""

import asyncio
import functools
import logging
import time
import uuid
from collections.abc import Awaitable, Callable

from fedagent_node.address import BrokerAddress
from fedagent_node.advert import Advert, in_words
from fedagent_node.data_dir import load_or_create
from fedagent_node.effects import EVERYBODY, Emit, Send
from fedagent_node.errors import LinkError
from fedagent_node.process import boot_id
from fedagent_node.shell import Shell
from fedagent_protocol import SOFTWARE, topics
from fedagent_protocol.codec import Direction
from fedagent_protocol.messages import PROTOCOL_VERSION, Chunk, EdgeHello, kind

from .config import EdgeConfig
from .core.effects import COORDINATOR, LAN, WAN
from .errors import EdgeStateError
from .store import open_edge

_log = logging.getLogger(__name__)

PATIENCE_S = 6.0
"""How long an address may stay without a welcome when there is another one to try."""


class CoordinatorSearch:
    """Tries the candidates in turn until this edge is served.

    Args:
        config: May name an address, which is then the only candidate.
        shared: The broker of all roles, if there is one.
    """

    def __init__(
        self,
        config: EdgeConfig,
        *,
        shared: BrokerAddress | None,
        served: Callable[[], bool],
        dial: Callable[[BrokerAddress], Awaitable[None]],
    ) -> None:
        typed = config.typed_coordinator()
        self._fixed = [typed] if typed is not None else []
        self._shared = [shared] if shared is not None and not self._fixed else []
        self._site = config.site
        self._seen: list[BrokerAddress] = []
        self._served = served
        self._dial = dial
        self._changed = asyncio.Event()

    def adverts(self, adverts: frozenset[Advert]) -> None:
        """Take in who is on the network, in an order that all edges share."""
        self._seen = [advert.address for advert in sorted(adverts, key=lambda one: one.id)]
        if len(adverts) > 1:
            _log.warning(
                "site %s has more than one coordinator: %s; this edge serves the one that "
                "welcomes it first: stop the others, or give them another --site",
                self._site,
                ", ".join(in_words(adverts)),
            )
        self._changed.set()

    @property
    def candidates(self) -> list[BrokerAddress]:
        """Addresses to try, the most likely first."""
        if self._fixed:
            return self._fixed
        # An advert of the shared broker has no password: ours takes its place.
        ours = {address: address for address in self._shared}
        return [*(ours.get(a, a) for a in self._seen), *(a for a in ours if a not in self._seen)]

    async def run(self) -> None:
        """Dial until cancelled."""
        current: BrokerAddress | None = None
        while True:
            self._changed.clear()
            candidates = self.candidates
            if candidates and not self._served():
                following = _after(candidates, current)
                if following != current:
                    current = following
                    await self._dial(current)
            waiting = PATIENCE_S if len(candidates) != 1 or candidates[0] != current else None
            try:
                async with asyncio.timeout(waiting):
                    await self._changed.wait()
            except TimeoutError:
                continue


def _after(candidates: list[BrokerAddress], current: BrokerAddress | None) -> BrokerAddress:
    if current not in candidates:
        return candidates[0]
    return candidates[(candidates.index(current) + 1) % len(candidates)]


class EdgeDaemon:
    """One edge aggregator on this machine."""

    def __init__(self, config: EdgeConfig) -> None:
        self._config = config
        # `--watch-parent` decides whether it goes with the reader of its events.
        self._shell = Shell(config, fatal=(EdgeStateError,), show=self._show, needs_reader=False)
        self._refused: set[BrokerAddress] = set()

    async def run(self) -> None:
        """Run until stopped.

        Raises:
            DataDirBusyError: Another process uses the directory.
            LinkError: Broker or certificates cannot be used.
            StateError: The directory's files cannot be used.
        """
        await self._shell.run(self._serve)

    async def _serve(self) -> None:
        config, shell = self._config, self._shell
        me = shell.id = load_or_create(shell.directory).id
        address, broker_kind = await shell.start_broker(config)
        self._core, store = open_edge(
            config, self._greeting(address), now=time.monotonic(), boot=boot_id()
        )
        shell.drive(self._core, store, functools.partial(route, config.site, me))
        lan = shell.link(LAN, address, client_id=f"{me}-lan", incoming=Direction.AGENT_TO_EDGE)
        await lan.start()
        lan.subscribe(*topics.edge_lan_filters(config.site, me))
        self._emit_ready(address, broker_kind)
        shell.settle()
        shared = None if shell.has_own_broker else address
        search = CoordinatorSearch(config, shared=shared, served=self._is_served, dial=self._dial)
        shell.spawn(self._find(search, address), "find-coordinator")
        await shell.stop.wait()

    def _greeting(self, address: BrokerAddress) -> EdgeHello:
        return EdgeHello(
            edge=self._shell.id,
            epoch=uuid.uuid4().hex,
            software=SOFTWARE,
            broker=str(address),
            name=self._config.name,
            rent=round(self._config.rent * 1_000_000),
        )

    async def _find(self, search: CoordinatorSearch, lan: BrokerAddress) -> None:
        """Advertise this edge, and keep looking for a coordinator."""
        config, discovery = self._config, self._shell.discovery
        if config.discovery != "off":
            await discovery.start()
            advert = Advert("edge", self._shell.id, config.site, lan, PROTOCOL_VERSION)
            listen = config.listen if self._shell.has_own_broker else None
            await discovery.advertise(advert, listen=listen)
            discovery.browse("coordinator", search.adverts, needed=not search.candidates)
        await search.run()

    def _is_served(self) -> bool:
        wan = self._shell.links.get(WAN)
        return wan is not None and wan.connected and self._core.upstream.joined

    async def _dial(self, address: BrokerAddress) -> None:
        """Connect to a coordinator's broker, in place of another one."""
        shell = self._shell
        old = shell.links.pop(WAN, None)
        if old is not None:
            await old.stop()
        try:
            wan = shell.link(
                WAN, address, client_id=f"{shell.id}-wan", incoming=Direction.COORDINATOR_TO_EDGE
            )
            await wan.start()
        except LinkError as error:
            shell.links.pop(WAN, None)
            if address not in self._refused:
                self._refused.add(address)
                _log.error("%s: coordinator at %s is not used: %s", shell.id, address, error)
            return
        wan.subscribe(*topics.edge_wan_filters(self._config.site, shell.id))

    def _emit_ready(self, address: BrokerAddress, broker_kind: str) -> None:
        me = self._shell.id
        shown = broker_kind if self._shell.has_own_broker else str(address)
        _log.info("%s: edge ready, broker %s (%s)", me, address, shown)
        facts = {"id": me, "broker": str(address), "broker_kind": shown, "port": address.port}
        self._shell.emit(Emit("ready", facts))

    def _show(self, event: Emit) -> None:
        level = logging.INFO if event.name.startswith("coordinator") else logging.DEBUG
        _log.log(level, "%s: %s %s", self._shell.id, event.name, event.fields)


def route(site: str, edge: str, send: Send) -> tuple[str, str]:
    """Return the link and the topic of a message; a broadcast is a chunk or the beacon."""
    message = send.message
    if send.to == COORDINATOR:
        return WAN, topics.edge_up(site, edge, kind(message), send.version)
    if send.to != EVERYBODY:
        return LAN, topics.agent_down(site, send.to, edge, kind(message))
    if isinstance(message, Chunk):
        return LAN, topics.model(site, edge, message.digest)
    return LAN, topics.edge_beacon(site, edge)
