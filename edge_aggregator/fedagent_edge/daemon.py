"""The edge as a process: brokers, links, discovery and one timer around the runtime."""

import asyncio
import functools
import gc
import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedagent_protocol import topics
from fedagent_protocol.codec import (
    Direction,
    decode_agent_to_edge,
    decode_coordinator_to_edge,
    encode,
)
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import AnyMessage, CoordinatorBeacon, kind
from fedagent_protocol.transport.broker import Broker, BrokerSpec
from fedagent_protocol.transport.data_dir import DataDirLock
from fedagent_protocol.transport.discovery import Advert, Discovery
from fedagent_protocol.transport.identity import load_or_create
from fedagent_protocol.transport.mqtt import Arrival, BrokerAddress, Link
from fedagent_protocol.transport.settings import broker_address, shared_broker

from .config import EdgeConfig
from .core.edge import EdgeSettings
from .core.effects import Event
from .runtime import EdgeRuntime, Job, Outward, PublishModel, SendAgent, SendCoordinator
from .state import boot_id

INLINE_BYTES = 512 * 1024
"""Smaller jobs are done at once: a hop to another thread costs more."""

_log = logging.getLogger(__name__)
_parse = functools.lru_cache(maxsize=4096)(topics.parse)


class EdgeDaemon:
    """One edge aggregator on this machine."""

    def __init__(self, config: EdgeConfig) -> None:
        self._config = config
        self._directory = Path(config.data_dir)
        self._tls = config.tls.files() if config.tls is not None else None
        self._stop = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="edge-jobs")
        self._timer: asyncio.TimerHandle | None = None
        self._lan: Link | None = None
        self._wan: Link | None = None
        self._wan_address: BrokerAddress | None = None
        self._dialling: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run until told to stop.

        Raises:
            DataDirBusyError: Another process uses the directory.
            LinkError: Broker or certificates cannot be used.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        with DataDirLock(self._directory):
            self._loop = asyncio.get_running_loop()
            self._watch_signals()
            await self._serve()

    async def _serve(self) -> None:
        config = self._config
        self._id = load_or_create(self._directory).id
        broker, address = await self._start_broker()
        discovery = Discovery(
            config.site, scope="loopback" if config.discovery == "loopback" else "lan"
        )
        self._runtime = EdgeRuntime(
            self._directory,
            EdgeSettings(
                edge=self._id,
                epoch=uuid.uuid4().hex,
                name=config.name,
                broker=str(address),
                chunk_bytes=config.chunk_bytes,
                credit_bytes=config.credit_bytes,
                need_wait_s=config.need_wait_ms / 1000,
            ),
            now=time.monotonic(),
            boot=boot_id(),
        )
        try:
            self._lan = self._link(address, "lan", self._from_agents, self._lan_state)
            await self._lan.start()
            self._lan.subscribe(*topics.edge_lan_filters(config.site, self._id))
            self._emit_ready(broker, address)
            await self._find_coordinator(discovery, address, external=broker is None)
            # What lives from here on is short-lived or small: collecting less often pays.
            gc.freeze()
            await self._stop.wait()
        finally:
            await self._close(discovery, broker)

    async def _start_broker(self) -> tuple[Broker | None, BrokerAddress]:
        config = self._config
        shared = shared_broker(config.broker, tls=self._tls is not None)
        if shared is not None:
            return None, shared
        spec = BrokerSpec(
            data_dir=self._directory,
            kind=config.broker,  # type: ignore[arg-type]  # `shared_broker` left only the kinds
            listen=config.listen,
            port=config.port,
            tls=self._tls,
            insecure=config.insecure,
        )
        broker = Broker(spec)
        return broker, await broker.start()

    async def _find_coordinator(
        self, discovery: Discovery, lan: BrokerAddress, *, external: bool
    ) -> None:
        config = self._config
        if config.discovery != "off":
            await discovery.start()
            advert = Advert("edge", self._id, config.site, lan, topics.PROTOCOL_VERSION)
            await discovery.advertise(advert, external=external)
        if config.coordinator is not None:
            self._dial(broker_address("coordinator", config.coordinator, tls=self._tls is not None))
            return
        if config.discovery != "off":
            discovery.browse("coordinator", self._coordinators)
        if external:
            self._dial(lan)

    def _coordinators(self, adverts: frozenset[Advert]) -> None:
        known = {advert.address for advert in adverts}
        if not known or self._wan_address in known:
            return
        if self._wan is not None and self._wan.connected:
            return
        self._dial(min(adverts, key=lambda advert: advert.id).address)

    def _dial(self, address: BrokerAddress) -> None:
        """Connect to the coordinator's broker, in place of another address."""
        if address == self._wan_address:
            return
        self._wan_address = address
        task = self._loop.create_task(self._redial(address), name="dial-coordinator")
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _redial(self, address: BrokerAddress) -> None:
        old, self._wan = self._wan, None
        if old is not None:
            await old.stop()
        link = self._link(address, "wan", self._from_coordinator, self._wan_state)
        await link.start()
        link.subscribe(*topics.edge_wan_filters(self._config.site, self._id))
        self._wan = link

    def _link(
        self,
        address: BrokerAddress,
        side: str,
        on_arrivals: Callable[[list[Arrival]], None],
        on_state: Callable[[bool], None],
    ) -> Link:
        return Link(
            address,
            client_id=f"{self._id}-{side}",
            tls=self._tls,
            on_arrivals=on_arrivals,
            on_state=on_state,
        )

    # ------------------------------------------------------------- in and out

    def _from_agents(self, arrivals: list[Arrival]) -> None:
        assert self._lan is not None
        counters = self._runtime.core.counters
        for arrival in arrivals:
            try:
                topic = _parse(arrival.topic)
                if topic.direction is not Direction.AGENT_TO_EDGE:
                    continue
                message = decode_agent_to_edge(arrival.payload)
            except ProtocolError as error:
                counters[error.reason] += 1
                continue
            idle = self._lan.pending_bytes == 0
            self._perform(
                self._runtime.from_agent(
                    topic.agent, message, time.monotonic(), at=arrival.at, link_idle=idle
                )
            )
        self._schedule()

    def _from_coordinator(self, arrivals: list[Arrival]) -> None:
        counters = self._runtime.core.counters
        for arrival in arrivals:
            try:
                topic = _parse(arrival.topic)
                if topic.direction is not Direction.COORDINATOR_TO_EDGE:
                    continue
                message = decode_coordinator_to_edge(arrival.payload)
            except ProtocolError as error:
                counters[error.reason] += 1
                continue
            if isinstance(message, CoordinatorBeacon) and message.coordinator != topic.coordinator:
                counters["beacon_as_another"] += 1
                continue
            idle = self._wan is not None and self._wan.pending_bytes == 0
            self._perform(
                self._runtime.from_coordinator(
                    topic.coordinator, message, time.monotonic(), link_idle=idle
                )
            )
        self._schedule()

    def _perform(self, effects: list[Outward]) -> None:
        for effect in effects:
            match effect:
                case SendAgent():
                    self._to_agent(effect.agent, effect.message)
                case SendCoordinator():
                    if self._wan is not None:
                        topic = topics.edge_up(self._config.site, self._id, kind(effect.message))
                        self._publish(self._wan, topic, effect.message)
                case PublishModel():
                    topic = topics.model(self._config.site, self._id, effect.digest)
                    self._publish(self._lan, topic, effect.chunk)
                case Job():
                    self._work(effect)
                case Event():
                    self._emit(effect)

    def _to_agent(self, agent: str, message: AnyMessage) -> None:
        site = self._config.site
        if agent:
            topic = topics.agent_down(site, agent, self._id, kind(message))
        else:
            topic = topics.edge_beacon(site, self._id)
        self._publish(self._lan, topic, message)

    def _publish(self, link: Link | None, topic: str, message: AnyMessage) -> None:
        if link is not None:
            link.publish(topic, encode(message))

    def _work(self, job: Job) -> None:
        if job.size <= INLINE_BYTES:
            result = job.work()
            self._perform(job.done(result, time.monotonic()))
            return

        def finished(future: "asyncio.Future[object]") -> None:
            if not future.cancelled():
                self._perform(job.done(future.result(), time.monotonic()))
                self._schedule()

        self._loop.run_in_executor(self._worker, job.work).add_done_callback(finished)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = time.monotonic()
        delay = max(0.0, self._runtime.next_due(now) - now)
        self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._perform(self._runtime.tick(time.monotonic()))
        self._schedule()

    def _lan_state(self, connected: bool) -> None:
        if connected:
            self._perform(self._runtime.lan_up(time.monotonic()))
            self._schedule()

    def _wan_state(self, connected: bool) -> None:
        if connected:
            # The link is in place only after this callback of its first connection.
            self._loop.call_soon(self._wan_up)

    def _wan_up(self) -> None:
        self._perform(self._runtime.wan_up(time.monotonic()))
        self._schedule()

    # ------------------------------------------------------------- life cycle

    def _emit_ready(self, broker: Broker | None, address: BrokerAddress) -> None:
        kind_ = broker.kind if broker is not None else str(address)
        _log.info("%s: edge ready, broker %s (%s)", self._id, address, kind_)
        data: dict[str, object] = {
            "id": self._id,
            "broker": str(address),
            "broker_kind": kind_,
            "port": address.port,
        }
        self._emit(Event("ready", data))

    def _emit(self, event: Event) -> None:
        _log.debug("%s: %s %s", self._id, event.name, event.data)
        if self._config.json_events:
            sys.stdout.write(json.dumps({"event": event.name, **event.data}) + "\n")
            sys.stdout.flush()

    def _watch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop.set)
        if self._config.watch_parent:
            self._loop.add_reader(sys.stdin.fileno(), self._parent_spoke)

    def _parent_spoke(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            self._loop.remove_reader(sys.stdin.fileno())
            self._stop.set()

    async def _close(self, discovery: Discovery, broker: Broker | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await discovery.stop()
        for task in list(self._dialling):
            task.cancel()
        for link in (self._lan, self._wan):
            if link is not None:
                await link.stop()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._runtime.close()
        if broker is not None:
            await broker.stop()
