"""The edge as a process: broker, links, discovery and one timer around the runtime."""

import asyncio
import functools
import gc
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from fedagent_node.broker import Broker, BrokerSpec
from fedagent_node.data_dir import DataDirLock
from fedagent_node.discovery import Advert, Discovery
from fedagent_node.errors import LinkError
from fedagent_node.identity import load_or_create
from fedagent_node.link import Arrival, BrokerAddress, Link
from fedagent_node.process import boot_id
from fedagent_protocol import SOFTWARE, topics
from fedagent_protocol.codec import (
    Direction,
    decode_agent_to_edge,
    decode_coordinator_to_edge,
    encode,
)
from fedagent_protocol.errors import ProtocolError, safe_text
from fedagent_protocol.messages import PROTOCOL_VERSION, AnyMessage, Hello, PeerDeliver, kind
from fedagent_protocol.topics import Topic
from fedagent_protocol.versions import OtherVersions

from .config import EdgeConfig
from .core.effects import Event, Note
from .core.greetings import hello
from .core.settings import EdgeSettings
from .errors import StateError
from .jobs import JobQueue
from .outward import Job, Outward, PublishModel, SendAgent, SendCoordinator
from .runtime import EdgeRuntime
from .search import CoordinatorSearch

NOTES_PER_S = 5.0
"""Log lines about refused messages; the rest is only counted."""

_log = logging.getLogger(__name__)
_parse = functools.lru_cache(maxsize=4096)(topics.parse)


class EdgeDaemon:
    """One edge aggregator on this machine."""

    def __init__(self, config: EdgeConfig) -> None:
        self._config = config
        self._directory = Path(config.data_dir)
        self._tls = config.tls.files() if config.tls is not None else None
        self._stop = asyncio.Event()
        self._fatal: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._notes = NOTES_PER_S
        self._noted_at = 0.0
        self._others = OtherVersions("edge")
        self._lan: Link | None = None
        self._wan: Link | None = None
        self._refused: set[BrokerAddress] = set()

    async def run(self) -> None:
        """Run until told to stop.

        Raises:
            DataDirBusyError: Another process uses the directory.
            LinkError: Broker or certificates cannot be used.
            StateError: The directory's files cannot be used.
        """
        with DataDirLock(self._directory):
            self._loop = asyncio.get_running_loop()
            self._watch_signals()
            self._id = load_or_create(self._directory).id
            broker, address = await self._start_broker()
            try:
                await self._serve(address, broker)
            finally:
                if broker is not None:
                    await broker.stop()
        if self._fatal is not None:
            raise self._fatal

    async def _serve(self, address: BrokerAddress, broker: Broker | None) -> None:
        loopback = self._config.discovery == "loopback"
        discovery = Discovery(self._config.site, scope="loopback" if loopback else "lan")
        self._runtime = self._open_runtime(address)
        self._jobs = JobQueue(self._loop, self._job_done, self._fail)
        try:
            self._lan = self._link(address, "lan", self._from_agents, self._lan_state)
            await self._lan.start()
            self._lan.subscribe(*topics.edge_lan_filters(self._config.site, self._id))
            self._schedule()
            self._emit_ready(broker, address)
            # What lives from here on is short-lived or small: collecting less often pays.
            gc.collect()
            gc.freeze()
            async with asyncio.TaskGroup() as group:
                search = CoordinatorSearch(
                    self._config,
                    shared=address if broker is None else None,
                    served=self._is_served,
                    dial=self._dial,
                )
                task = group.create_task(
                    self._find(search, discovery, address, external=broker is None),
                    name="find-coordinator",
                )
                await self._stop.wait()
                task.cancel()
        finally:
            await self._close(discovery)

    def _is_served(self) -> bool:
        wan = self._wan
        return wan is not None and wan.connected and self._runtime.core.upstream.joined

    def _open_runtime(self, address: BrokerAddress) -> EdgeRuntime:
        config = self._config
        settings = EdgeSettings(
            edge=self._id,
            epoch=uuid.uuid4().hex,
            name=config.name,
            software=SOFTWARE,
            broker=str(address),
            chunk_bytes=config.chunk_bytes,
            credit_bytes=config.credit_bytes,
            need_wait_s=config.need_wait_ms / 1000,
            rent_micro=round(config.rent * 1_000_000),
        )
        return EdgeRuntime(self._directory, settings, now=time.monotonic(), boot=boot_id())

    async def _start_broker(self) -> tuple[Broker | None, BrokerAddress]:
        config = self._config
        shared = config.shared()
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

    async def _find(
        self,
        search: CoordinatorSearch,
        discovery: Discovery,
        lan: BrokerAddress,
        *,
        external: bool,
    ) -> None:
        """Advertise this edge, and keep looking for a coordinator."""
        if self._config.discovery != "off":
            await discovery.start()
            advert = Advert("edge", self._id, self._config.site, lan, PROTOCOL_VERSION)
            await discovery.advertise(advert, listen=None if external else self._config.listen)
            discovery.browse("coordinator", search.adverts, needed=not search.candidates)
        await search.run()

    async def _dial(self, address: BrokerAddress) -> None:
        """Connect to a coordinator's broker, in place of another one."""
        old, self._wan = self._wan, None
        if old is not None:
            await old.stop()
        try:
            link = self._link(address, "wan", self._from_coordinator, self._wan_state)
            await link.start()
        except LinkError as error:
            if address not in self._refused:
                self._refused.add(address)
                _log.error("%s: coordinator at %s is not used: %s", self._id, address, error)
            return
        self._wan = link
        link.subscribe(*topics.edge_wan_filters(self._config.site, self._id))

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
            insecure=self._config.insecure,
            on_arrivals=on_arrivals,
            on_state=on_state,
        )

    # ------------------------------------------------------------- in and out

    def _from_agents(self, arrivals: list[Arrival]) -> None:
        link = self._lan
        assert link is not None
        for arrival in arrivals:
            with self._guard("an agent's message"):
                topic = _parse(arrival.topic)
                if topic.direction is not Direction.AGENT_TO_EDGE or topic.edge != self._id:
                    continue
                message = (
                    decode_agent_to_edge(arrival.payload)
                    if topic.version == PROTOCOL_VERSION
                    else Hello(agent=topic.agent, protocol=topic.version)
                )
                now, idle = time.monotonic(), link.pending_bytes == 0
                self._perform(
                    self._runtime.from_agent(
                        topic.agent, message, now, at=arrival.at, link_idle=idle
                    )
                )
        with self._guard("storing updates"):
            self._perform(self._runtime.flush(time.monotonic()))
        self._schedule()

    def _from_coordinator(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            with self._guard("a coordinator's message"):
                topic = _parse(arrival.topic)
                if topic.direction is not Direction.COORDINATOR_TO_EDGE:
                    continue
                if topic.version != PROTOCOL_VERSION:
                    self._refuse_version(topic)
                    continue
                message = decode_coordinator_to_edge(arrival.payload)
                now = time.monotonic()
                idle = self._wan is not None and self._wan.pending_bytes == 0
                self._perform(
                    self._runtime.from_coordinator(topic.coordinator, message, now, link_idle=idle)
                )
        self._schedule()

    def _refuse_version(self, topic: Topic) -> None:
        """Refuse a coordinator of another protocol version; greet it, so that it says so too."""
        line = self._others.refuse(topic.coordinator, topic.version)
        if not line:
            return
        self._runtime.core.counters["protocol_version"] += 1
        _log.warning("%s: coordinator %s %s", self._id, topic.coordinator, line)
        greeting = hello(self._runtime.core.settings)
        up = topics.edge_up(self._config.site, self._id, kind(greeting), topic.version)
        self._publish(self._wan, up, greeting)

    def _guard(self, what: str) -> "_Guard":
        return _Guard(self._runtime, what, self._fail)

    def _fail(self, error: Exception) -> None:
        """End the process: going on would break what was promised."""
        _log.critical("%s: %s", self._id, error)
        self._fatal = self._fatal or error
        self._stop.set()

    def _perform(self, effects: list[Outward]) -> None:
        site = self._config.site
        for effect in effects:
            match effect:
                case SendAgent():
                    self._to_agent(effect.agent, effect.message)
                case SendCoordinator():
                    topic = topics.edge_up(site, self._id, kind(effect.message))
                    self._publish(self._wan, topic, effect.message)
                case PublishModel():
                    topic = topics.model(site, self._id, effect.digest)
                    self._publish(self._lan, topic, effect.chunk)
                case Job():
                    self._jobs.put(effect)
                case Event():
                    self._emit(effect)
                case Note():
                    self._note(effect)

    def _to_agent(self, agent: str, message: AnyMessage) -> None:
        site = self._config.site
        if agent:
            topic = topics.agent_down(site, agent, self._id, kind(message))
        else:
            topic = topics.edge_beacon(site, self._id)
        self._publish(self._lan, topic, message)

    def _publish(self, link: Link | None, topic: str, message: AnyMessage) -> None:
        if link is None:
            return
        # A letter's sender repeats what gets lost; an acknowledgement would cost as much again.
        qos = 0 if isinstance(message, PeerDeliver) else 1
        try:
            sent = link.publish(topic, encode(message), qos=qos)
        except ProtocolError as error:
            _log.error("%s: %s cannot be sent: %s", self._id, kind(message), error)
            sent = False
        if not sent:
            self._runtime.core.counters["not_sent"] += 1

    def _job_done(self, job: Job, result: object) -> None:
        with self._guard(f"the job {job.name}"):
            self._perform(job.done(result, time.monotonic()))
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = time.monotonic()
        delay = max(0.0, self._runtime.next_due(now) - now)
        self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        with self._guard("a tick"):
            self._count_links()
            self._perform(self._runtime.tick(time.monotonic()))
        self._schedule()

    def _count_links(self) -> None:
        """Show what the links dropped among the edge's own counters."""
        for side, link in (("lan", self._lan), ("wan", self._wan)):
            if link is not None:
                for name, value in link.counters.items():
                    self._runtime.core.counters[f"{side}_{name}"] = value

    def _lan_state(self, connected: bool) -> None:
        if connected:
            with self._guard("the agents' broker"):
                self._perform(self._runtime.lan_up(time.monotonic()))
            self._schedule()

    def _wan_state(self, connected: bool) -> None:
        if connected:
            with self._guard("the coordinator's broker"):
                self._perform(self._runtime.wan_up(time.monotonic()))
            self._schedule()

    # ------------------------------------------------------------- life cycle

    def _emit_ready(self, broker: Broker | None, address: BrokerAddress) -> None:
        broker_kind = broker.kind if broker is not None else str(address)
        _log.info("%s: edge ready, broker %s (%s)", self._id, address, broker_kind)
        data: dict[str, object] = {
            "id": self._id,
            "broker": str(address),
            "broker_kind": broker_kind,
            "port": address.port,
        }
        self._emit(Event("ready", data))

    def _emit(self, event: Event) -> None:
        level = logging.INFO if event.name.startswith("coordinator") else logging.DEBUG
        _log.log(level, "%s: %s %s", self._id, event.name, event.data)
        if self._config.json_events:
            line = msgspec.json.encode({"event": event.name, **event.data})
            try:
                sys.stdout.buffer.write(line + b"\n")
                sys.stdout.buffer.flush()
            except OSError:
                # Whoever read this is gone; `watch_parent` decides whether we go too.
                _log.debug("%s: nobody reads the events", self._id)

    def _note(self, note: Note) -> None:
        """Log what was refused, but no more than a hostile peer should cause."""
        now = time.monotonic()
        self._notes = min(NOTES_PER_S, self._notes + (now - self._noted_at) * NOTES_PER_S)
        self._noted_at = now
        if self._notes < 1.0:
            self._runtime.core.counters["not_logged"] += 1
            return
        self._notes -= 1.0
        _log.warning("%s: %s: %s", self._id, note.agent or "coordinator", safe_text(note.text))

    def _watch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop.set)
        if self._config.watch_parent:
            self._loop.add_reader(sys.stdin.fileno(), self._on_parent_input)

    def _on_parent_input(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            self._loop.remove_reader(sys.stdin.fileno())
            self._stop.set()

    async def _close(self, discovery: Discovery) -> None:
        if self._timer is not None:
            self._timer.cancel()
        stops = [link.stop() for link in (self._lan, self._wan) if link is not None]
        await asyncio.gather(discovery.stop(), *stops)
        self._jobs.close()
        self._runtime.close()
        if self._timer is not None:
            self._timer.cancel()


class _Guard:
    """Keep one bad message from taking the others of its batch along."""

    def __init__(self, runtime: EdgeRuntime, what: str, fail: Callable[[Exception], None]) -> None:
        self._runtime = runtime
        self._what = what
        self._fail = fail

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind_: object, error: BaseException | None, trace: object) -> bool:
        """Count what is foreign, end on what is ours to keep, log what nobody foresaw."""
        counters = self._runtime.core.counters
        if isinstance(error, ProtocolError):
            counters[error.reason] += 1
        elif isinstance(error, StateError):
            self._fail(error)
        elif isinstance(error, Exception):
            counters["internal_errors"] += 1
            if counters["internal_errors"] <= 3:
                _log.error("%s could not be handled", self._what, exc_info=error)
        else:
            return False
        return True
