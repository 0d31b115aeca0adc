"""The agent's connections: one per broker that was typed or found."""

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from fedagent_node.address import BrokerAddress
from fedagent_node.discovery.advert import Advert
from fedagent_node.effects import Connect, Send, TakeRevocations
from fedagent_node.errors import LinkError
from fedagent_node.link import Link
from fedagent_node.shell import Shell
from fedagent_protocol import topics
from fedagent_protocol.codec import Direction, encode
from fedagent_protocol.messages import Gone, kind

from .core.agent import AgentCore
from .core.effects import EdgesFound, Greet, Relink

MAX_LINKS = 32

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Broker:
    address: BrokerAddress
    typed: bool
    advertised: bool


class BrokerLinks:
    """Keep a link to every broker that may have an edge."""

    def __init__(self, shell: Shell, core: AgentCore, site: str) -> None:
        self._shell = shell
        self._core = core
        self._site = site
        self.joining = False  # whether the site is being asked to let this device in
        self._filters = topics.agent_filters(site, shell.id)
        self._brokers: dict[str, _Broker] = {}
        self._refused: set[str] = set()
        self._adverts: tuple[Advert, ...] = ()
        self._edges: dict[str, tuple[str, ...]] = {}
        """Edges that are announced, by the broker's address."""

    def route(self, send: Send) -> tuple[str, str]:
        """Return the link and the topic of a message."""
        up = topics.agent_up(self._site, self._shell.id, send.to, kind(send.message))
        return self._core.sessions.link_of(send.to), up

    # ---------------------------------------------------- what the core asks for

    def change(self, effect: Connect) -> None:
        """Make a link anew, or go by a list of the revoked."""
        match effect:
            case TakeRevocations(crl=crl):
                self._shell.spawn(self._shell.take_revocations(crl), "revocations")
            case Relink():
                self._renew(effect.link)
            case Greet():
                topic = topics.agent_to_all(self._site, self._shell.id, kind(effect.hello))
                self._shell.publish(effect.link, topic, effect.hello)

    def _renew(self, name: str) -> None:
        broker = self._brokers.get(name)
        if broker is not None and (broker.typed or broker.advertised):
            self._shell.spawn(self._reconnect(name, broker), f"renew-{name}")
        elif broker is not None:
            self._shell.spawn(self._remove(name), f"leave-{name}")

    # ------------------------------------------------------------- the brokers

    async def add(self, address: BrokerAddress, *, typed: bool = True) -> None:
        """Connect to a broker, once; `LinkError`: address or certificates cannot be used."""
        name = str(address)
        broker = self._brokers.get(name)
        if broker is not None:
            broker.typed, broker.advertised = broker.typed or typed, broker.advertised or not typed
            return
        link = self._make(name, address)
        self._brokers[name] = _Broker(address, typed, not typed)
        await self._start(link)

    def found(self, adverts: Iterable[Advert]) -> None:
        """Follow discovery: dial what is new, leave what is gone and unused."""
        self._adverts = adverts = tuple(adverts)
        self._edges = {}
        for name, edge in sorted((str(one.address), one.id) for one in adverts):
            self._edges[name] = (*self._edges.get(name, ()), edge)
        wanted = {str(advert.address): advert.address for advert in adverts}
        for name, broker in list(self._brokers.items()):
            broker.advertised = name in wanted
            # An advert may be withdrawn while its edge lives: a session keeps its link.
            if not (broker.advertised or broker.typed or self._core.sessions.on(name)):
                self._shell.spawn(self._remove(name), f"leave-{name}")
        for name, address in wanted.items():
            if name not in self._brokers and len(self._brokers) < MAX_LINKS:
                if name not in self._refused:
                    _log.info("%s: found an edge at %s", self._shell.id, name)
                self._shell.spawn(self._dial(address), f"dial-{name}")
        names = {*wanted, *self._brokers}
        self._shell.receive(*(EdgesFound(name, self._edges.get(name, ())) for name in names))

    def again(self) -> None:
        """Dial what was refused before: this role has joined the site."""
        self._refused.clear()
        self.found(self._adverts)

    async def _dial(self, address: BrokerAddress) -> None:
        try:
            await self.add(address, typed=False)
        except LinkError as error:
            if self.joining and address.scheme == "mqtts":
                return
            if str(address) not in self._refused:
                self._refused.add(str(address))
                _log.warning("%s: an edge was found but is not used: %s", self._shell.id, error)

    async def _reconnect(self, name: str, broker: _Broker) -> None:
        _log.info("%s: no message arrives on %s, reconnecting", self._shell.id, name)
        await self._shell.links[name].stop()
        if self._brokers.get(name) is broker:
            await self._start(self._make(name, broker.address))

    async def _remove(self, name: str) -> None:
        if self._brokers.pop(name, None) is not None:
            await self._shell.links.pop(name).stop()

    def _make(self, name: str, address: BrokerAddress) -> Link:
        # One broker under two addresses must not see one client id twice.
        mark = hashlib.sha256(name.encode()).hexdigest()[:6]
        client_id = f"{self._shell.id}-{mark}"
        return self._shell.link(
            name,
            address,
            client_id=client_id,
            incoming=Direction.EDGE_TO_AGENT,
            whose="edge",
            ids=lambda: self._edges.get(name, ()),
            will=(topics.agent_to_all(self._site, self._shell.id, kind(Gone())), encode(Gone())),
        )

    async def _start(self, link: Link) -> None:
        await link.start()
        link.subscribe(*self._filters)
