"""The agent as a process: links, discovery, trainer and one timer around the runtime."""

import asyncio
import functools
import gc
import logging
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from fedagent_node.data_dir import DataDirLock
from fedagent_node.discovery import Discovery
from fedagent_node.errors import SubscribeRefusedError
from fedagent_node.identity import Identity
from fedagent_node.link import Arrival
from fedagent_protocol import topics
from fedagent_protocol.codec import Direction, decode_edge_to_agent, encode
from fedagent_protocol.errors import OversizeError, ProtocolError
from fedagent_protocol.messages import PROTOCOL_VERSION, kind
from fedagent_protocol.topics import Topic
from fedagent_protocol.versions import OtherVersions

from .config import AgentConfig
from .context import ASK_S, Context, Programs
from .core.effects import Event, Relink
from .core.worklog import LogLine, WorkLog, samples_line
from .links import Links
from .outward import Outward, Publish, Subscribe, Unsubscribe
from .runtime import AgentRuntime
from .startup import load_identity
from .trainer.client import TrainerClient
from .trainer.frames import Cancel, Evaluate, Job, Open, Train

MEASURE_S = 5.0

_log = logging.getLogger(__name__)
_to_json = msgspec.json.Encoder()
_parse = functools.lru_cache(maxsize=1024)(topics.parse)


class AgentDaemon:
    """One agent on this device."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._directory = Path(config.data_dir)
        self._tls = config.tls.files() if config.tls is not None else None
        self._stop = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._measuring: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._worklog = WorkLog()
        self._others = OtherVersions("agent")
        self._samples: dict[str, int] = {}
        self._asking: asyncio.Task[None] | None = None
        self._jobs: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run until told to stop.

        Raises:
            DataDirBusyError: Another process uses the directory.
            LinkError: The identity or the certificates cannot be used.
            AgentError: The outbox, the record of opinions, or a typed address, cannot be used.
        """
        with DataDirLock(self._directory):
            self._loop = asyncio.get_running_loop()
            self._watch_signals()
            identity = load_identity(self._directory)
            self._id = identity.id
            self._runtime = self._make_runtime(identity)
            self._links = self._make_links(identity)
            loopback = self._config.discovery == "loopback"
            self._discovery = Discovery(self._config.site, scope="loopback" if loopback else "lan")
            self._trainer = TrainerClient(
                nice=self._config.nice,
                memory_bytes=self._config.memory_bytes(),
                on_end=self._trainer_ended,
            )
            try:
                await self._serve()
            finally:
                await self._close()

    async def _serve(self) -> None:
        config = self._config
        self._emit(Event("ready", {"id": self._id}))
        _log.info("%s: ready, looks for edges of site %s", self._id, config.site)
        self._context = Context(limits=config.limits)
        self._measure()
        self._asking = self._loop.create_task(self._ask(), name="asking")
        typed = config.typed_addresses()
        for address in typed:
            await self._links.add(address)
        if config.discovery != "off" and config.broker is None:
            await self._discovery.start()
            self._discovery.browse("edge", self._links.found, needed=not typed)
        elif not typed:
            _log.warning("%s: no discovery and no address: nothing to connect to", self._id)
        # What lives from here on is short-lived or small: collecting less often pays.
        gc.collect()
        gc.freeze()
        await self._stop.wait()

    def _make_runtime(self, identity: Identity) -> AgentRuntime:
        return AgentRuntime(
            self._config,
            identity.id,
            identity=identity,
            pending_bytes=self._pending_bytes,
            own_address=self._own_address,
        )

    def _make_links(self, identity: Identity) -> Links:
        return Links(
            agent=identity.id,
            site=self._config.site,
            tls=self._tls,
            insecure=self._config.insecure,
            on_arrivals=self._arrived,
            on_state=self._link_state,
            on_edge=self._expect,
            in_use=self._in_use,
        )

    # ------------------------------------------------------------- in and out

    def _arrived(self, name: str, arrivals: list[Arrival]) -> None:
        counters = self._runtime.core.counters
        for arrival in arrivals:
            try:
                topic = _parse(arrival.topic)
                if topic.direction is not Direction.EDGE_TO_AGENT:
                    continue
                if topic.version != PROTOCOL_VERSION:
                    self._refuse_version(name, topic)
                    continue
                message = decode_edge_to_agent(arrival.payload)
            except ProtocolError as error:
                counters[error.reason] += 1
                continue
            self._perform(self._runtime.message(name, topic.edge, message, arrival.at))
        self._schedule()

    def _refuse_version(self, name: str, topic: Topic) -> None:
        """Refuse an edge of another protocol version; greet it once, so that it says so too."""
        line = self._others.refuse(topic.edge, topic.version)
        link = self._links[name]
        if not line or link is None:
            return
        self._runtime.core.counters["protocol_version"] += 1
        _log.warning("%s: edge %s %s", self._id, topic.edge, line)
        hello = self._runtime.core.greeting
        site = self._config.site
        up = topics.agent_up(site, self._id, topic.edge, kind(hello), topic.version)
        link.publish(up, encode(hello))

    def _link_state(self, name: str, up: bool) -> None:
        now = time.monotonic()
        if up:
            self._perform(self._runtime.link_up(name, now))
        else:
            self._perform(self._runtime.link_down(name, now))
        self._schedule()

    def _expect(self, name: str, edge: str) -> None:
        self._perform(self._runtime.expect(name, edge, time.monotonic()))
        self._schedule()

    def _perform(self, effects: list[Outward]) -> None:
        for effect in effects:
            match effect:
                case Publish():
                    self._publish(effect)
                case Event():
                    self._emit(effect)
                case Subscribe():
                    self._subscribe(effect)
                case Unsubscribe():
                    if (link := self._links[effect.link]) is not None:
                        link.unsubscribe(effect.topic)
                case Open() | Train() | Evaluate():
                    task = self._loop.create_task(self._do(effect), name=f"job-{effect.job}")
                    self._jobs.add(task)
                    task.add_done_callback(self._jobs.discard)
                case Cancel():
                    self._trainer.cancel(effect.job)
                case Relink():
                    self._links.renew(effect.link)

    def _publish(self, effect: Publish) -> None:
        """Send one documented message: nothing else ever leaves the device."""
        link = self._links[effect.link]
        if link is None:
            return
        try:
            payload = encode(effect.message)
        except OversizeError as error:
            self._runtime.core.counters[error.reason] += 1
            _log.error("%s: %s", self._id, error)
            return
        link.publish(effect.topic, payload, qos=effect.qos)

    def _subscribe(self, effect: Subscribe) -> None:
        link = self._links[effect.link]
        if link is None:
            return

        def answered(future: "asyncio.Future[None]") -> None:
            if future.cancelled():
                return
            error = future.exception()
            ok = not isinstance(error, SubscribeRefusedError)
            now = time.monotonic()
            self._perform(self._runtime.subscribed(effect.edge, effect.digest, now, ok=ok))
            self._schedule()

        link.subscribe(effect.topic).add_done_callback(answered)

    def _pending_bytes(self, name: str) -> int:
        link = self._links[name]
        return link.pending_bytes if link is not None else 0

    def _own_address(self, name: str) -> str:
        link = self._links[name]
        return link.local_address if link is not None else ""

    def _in_use(self, name: str) -> bool:
        return any(session.link == name for session in self._runtime.core.sessions.values())

    # ------------------------------------------------------- trainer and time

    async def _do(self, job: Job) -> None:
        reply = await self._trainer.submit(job)
        self._perform(self._runtime.replied(reply, time.monotonic()))
        self._schedule()

    def _trainer_ended(self) -> None:
        if not self._stop.is_set():
            self._perform(self._runtime.trainer_ended(time.monotonic()))
            self._schedule()

    async def _ask(self) -> None:
        """Ask other programs what they know of the device, for as long as there are any."""
        programs = Programs.here()
        while programs:
            self._context.update_host(await programs.ask())
            await asyncio.sleep(ASK_S)

    def _measure(self) -> None:
        now = time.monotonic()
        self._measuring = self._loop.call_at(now + MEASURE_S, self._measure)
        readings = self._context.read(now)
        self._perform(self._runtime.measured(readings, now))
        lines = self._worklog.allow(
            "" if readings.available else readings.reason or "not available"
        )
        self._log_lines([*lines, *self._worklog.tick(now)])
        self._schedule()

    def _schedule(self) -> None:
        """Have one timer, at or before the time that the runtime names."""
        due = self._runtime.next_due()
        if due is None or (self._timer is not None and self._timer_at <= due):
            return  # an early tick costs less than a new timer per message
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._perform(self._runtime.tick(time.monotonic()))
        self._schedule()

    # ------------------------------------------------------------- life cycle

    def _emit(self, event: Event) -> None:
        self._log_lines(self._worklog.lines_for(event, time.monotonic()))
        if event.name == "samples":
            self._log_samples(event)
        _log.debug("%s: %s %s", self._id, event.name, event.data)
        if not self._config.json_events:
            return
        try:
            sys.stdout.buffer.write(_to_json.encode({"event": event.name, **event.data}) + b"\n")
            sys.stdout.buffer.flush()
        except OSError:
            # Whoever listened is gone.
            self._stop.set()

    def _log_lines(self, lines: list[LogLine]) -> None:
        """Tell the owner what the device does."""
        for line in lines:
            _log.log(logging.WARNING if line.loud else logging.INFO, "%s: %s", self._id, line.text)

    def _log_samples(self, event: Event) -> None:
        """Warn once of each reason why samples are not learnt from; the totals come at the end."""
        counters = msgspec.convert(event.data["counters"], dict[str, int])
        for reason in counters.keys() - self._samples.keys():
            _log.warning("%s: %s", self._id, samples_line(reason, counters[reason]))
        self._samples = counters

    def _watch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop.set)
        if self._config.watch_parent:
            self._loop.add_reader(sys.stdin.fileno(), self._on_parent_input)

    def _on_parent_input(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            self._loop.remove_reader(sys.stdin.fileno())
            self._stop.set()

    async def _close(self) -> None:
        for timer in (self._timer, self._measuring):
            if timer is not None:
                timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        self._perform(self._runtime.bye("stopping", time.monotonic()))
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await asyncio.gather(self._discovery.stop(), self._links.stop(), self._trainer.close())
        self._runtime.close()
        self._log_lines(self._worklog.tick(time.monotonic(), over=True))
        if self._samples:
            totals = ", ".join(f"{reason} {n}" for reason, n in sorted(self._samples.items()))
            _log.info("%s: samples that were not learnt from: %s", self._id, totals)
