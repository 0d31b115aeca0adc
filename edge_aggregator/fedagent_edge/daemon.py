"""The edge as a process: its broker, the coordinator's, and the search for it."""

import asyncio
import functools
import logging
import time
import uuid

from fedagent_node.address import BrokerAddress
from fedagent_node.data_dir import store_port, stored_port
from fedagent_node.discovery.advert import Advert
from fedagent_node.effects import EVERYBODY, Connect, Emit, Send, TakeRevocations
from fedagent_node.errors import DiskError, LinkError
from fedagent_node.network import bindable
from fedagent_node.process import boot_id
from fedagent_node.shell import Shell
from fedagent_node.site.credentials import read_joined
from fedagent_node.site.enrolling import join_first, renew
from fedagent_node.site.joining import split_place
from fedagent_protocol import SOFTWARE, topics
from fedagent_protocol.codec import Direction
from fedagent_protocol.messages import PROTOCOL_VERSION, EdgeHello, kind

from .config import EdgeConfig
from .core.effects import COORDINATOR, LAN, WAN
from .join_relay import join_relay
from .models import KEPT_PIECES
from .store import open_edge

_log = logging.getLogger(__name__)

PATIENCE_S = 6.0
"""How long an address may stay without a welcome when there is another one to try."""


class EdgeDaemon:
    """One edge aggregator on this machine."""

    def __init__(self, config: EdgeConfig) -> None:
        self._config = config
        # `--watch-parent` decides whether it goes with the reader of its events.
        self._shell = Shell(
            config,
            fatal=(DiskError,),
            show=self._show,
            needs_reader=False,
            shared_chunks=KEPT_PIECES,
        )
        self._refused: set[BrokerAddress] = set()
        self._adverts_changed = asyncio.Event()
        self._adverts: list[Advert] = []

    async def run(self) -> None:
        """Run until stopped.

        Raises:
            DataDirBusyError: Another process uses the directory.
            LinkError: Broker or certificates cannot be used.
            DiskError: The directory's files cannot be used.
        """
        await self._shell.run(self._serve)

    async def _serve(self) -> None:
        config, shell = self._config, self._shell
        identity = shell.identify()
        me = identity.id
        must = config.covered and config.discovery != "off"
        await join_first(shell, identity, "edge", config, name=config.name, must=must)
        if shell.stop.is_set():
            return
        shell.enrol(functools.partial(renew, shell.directory, identity))
        address, broker_kind = await shell.start_broker(config, "edge")
        greeting = EdgeHello(
            edge=me,
            epoch=uuid.uuid4().hex,
            software=SOFTWARE,
            broker=str(address),
            name=config.name,
            rent=round(config.rent * 1_000_000),
        )
        self._core, store = open_edge(config, greeting, now=time.monotonic(), boot=boot_id())
        shell.drive(
            self._core, store, functools.partial(route, config.site, me), change=self._change
        )
        shell.tell_revocations()
        lan = shell.link(
            LAN,
            address,
            client_id=f"{me}-lan",
            incoming=Direction.AGENT_TO_EDGE,
            whose="edge",
            ids=lambda: (me,),
        )
        await lan.start()
        lan.subscribe(*topics.edge_lan_filters(config.site, me))
        shown = broker_kind if shell.has_own_broker else str(address)
        _log.info("%s: edge ready, broker %s (%s)", me, address, shown)
        facts = {"id": me, "broker": str(address), "broker_kind": shown, "port": address.port}
        shell.emit(Emit("ready", facts))
        await shell.be_observed("edge")
        shell.freeze()
        shell.spawn(self._find(address), "find-coordinator")
        await shell.stop.wait()

    def _change(self, effect: Connect) -> None:
        assert isinstance(effect, TakeRevocations)
        self._shell.spawn(self._shell.take_revocations(effect.crl), "revocations")

    def _show(self, event: Emit) -> None:
        told = event.name.startswith("coordinator") or event.name == "run_ended"
        level = logging.INFO if told else logging.DEBUG
        _log.log(level, "%s: %s", self._shell.id, event)

    # ------------------------------------------------------- the coordinator's broker

    async def _find(self, lan: BrokerAddress) -> None:
        """Advertise this edge, and try brokers in turn until a coordinator serves it."""
        config = self._config
        if config.discovery != "off":
            discovery = await self._shell.discover()
            join = await self._relay_joins()
            advert = Advert("edge", self._shell.id, config.site, lan, PROTOCOL_VERSION, join=join)
            listen = config.listen if self._shell.has_own_broker else None
            await discovery.advertise(advert, listen=listen)
            discovery.browse("coordinator", self._on_adverts, needed=not self._candidates(lan))
        current: BrokerAddress | None = None
        while True:
            self._adverts_changed.clear()
            candidates, wan = self._candidates(lan), self._shell.links.get(WAN)
            served = wan is not None and wan.connected and self._core.upstream.joined
            if candidates and not served:
                following = _after(candidates, current)
                if following != current:
                    current = following
                    await self._dial(current)
            waiting = PATIENCE_S if len(candidates) != 1 or candidates[0] != current else None
            try:
                async with asyncio.timeout(waiting):
                    await self._adverts_changed.wait()
            except TimeoutError:
                continue

    async def _relay_joins(self) -> int:
        """Relay to the coordinator's join service; return the port, 0 for none."""
        config, shell = self._config, self._shell
        if shell.membership is None or not config.covered:
            return 0
        relay = join_relay(self._join_services)
        shell.at_close.append(relay.close)
        port = stored_port(shell.directory, "join")
        try:
            port = await relay.start(
                config.listen, port if port and bindable(config.listen, port) else 0
            )
        except OSError as error:
            _log.warning("%s: devices cannot join through this edge: %s", shell.id, error)
            return 0
        store_port(shell.directory, "join", port)
        return port

    def _join_services(self) -> list[str]:
        joined = read_joined(self._shell.directory)
        near = [f"{one.address.host}:{one.join}" for one in self._adverts if one.join]
        return [*near, *(joined.services if joined is not None else ())]

    def _on_adverts(self, adverts: frozenset[Advert]) -> None:
        """Take in who is on the network, in an order that all edges share."""
        self._adverts = sorted(adverts, key=lambda one: (one.refused, one.id))
        self._adverts_changed.set()

    def _candidates(self, lan: BrokerAddress) -> list[BrokerAddress]:
        """Return the addresses to try, the most likely first; a typed one is the only one."""
        typed = self._config.typed_coordinator()
        if typed is not None:
            return [typed]
        seen = [advert.address for advert in self._adverts]
        if self._shell.has_own_broker:
            # Where this edge joined its site: whose broker it is, the certificate there says.
            joined = read_joined(self._shell.directory) if self._shell.membership else None
            if joined is not None and joined.broker_port:
                hosts = [split_place(one)[0] for one in joined.services]
                seen += [BrokerAddress(host, joined.broker_port, "mqtts") for host in hosts]
            return list(dict.fromkeys(seen))
        # An advert of the shared broker has no password: ours takes its place.
        seen = [lan if address == lan else address for address in seen]
        return seen if lan in seen else [*seen, lan]

    async def _dial(self, address: BrokerAddress) -> None:
        shell = self._shell
        old = shell.links.pop(WAN, None)
        if old is not None:
            await old.stop()
        try:
            wan = shell.link(
                WAN,
                address,
                client_id=f"{shell.id}-wan",
                incoming=Direction.COORDINATOR_TO_EDGE,
                whose="coordinator",
                ids=lambda: {one.id for one in self._adverts if one.address == address},
            )
            await wan.start()
        except LinkError as error:
            shell.links.pop(WAN, None)
            if address not in self._refused:
                self._refused.add(address)
                _log.error("%s: the coordinator at %s is not used: %s", shell.id, address, error)
            return
        wan.subscribe(*topics.edge_wan_filters(self._config.site, shell.id))


def _after(candidates: list[BrokerAddress], current: BrokerAddress | None) -> BrokerAddress:
    if current not in candidates:
        return candidates[0]
    return candidates[(candidates.index(current) + 1) % len(candidates)]


def route(site: str, edge: str, send: Send) -> tuple[str, str]:
    """Return the link and the topic of a message; the beacon is for everybody."""
    message = send.message
    if send.to == COORDINATOR:
        return WAN, topics.edge_up(site, edge, kind(message))
    if send.to != EVERYBODY:
        return LAN, topics.agent_down(site, send.to, edge, kind(message))
    return LAN, topics.edge_beacon(site, edge)
