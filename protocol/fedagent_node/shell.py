"""A role's process: directory, signals, broker, links, discovery, and one timer around a driver.

What `run` is given sets everything up, by `start_broker`, `drive`, `link` and `spawn`, and
returns when `stop` is set; the shell closes what they opened.
"""

import asyncio
import functools
import hashlib
import logging
import math
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from fedagent_node.broker.process import Broker, BrokerSpec
from fedagent_node.discovery.advert import Advert
from fedagent_node.site import CERT_FILE, FOLDER
from fedagent_node.site.certificates import Role, common_name
from fedagent_node.site.membership import Membership, Renew
from fedagent_protocol.bucket import TokenBucket
from fedagent_protocol.codec import Direction, encode
from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import AnyMessage, Chunk, Hello, kind

from .address import BrokerAddress, TlsFiles
from .data_dir import STARTS_FILE, Identity, count_start, hold_data_dir, keep_number, load_or_create
from .driver import Core, Driver, Jobs, Store
from .effects import Connect, Emit, Input, LinkDown, LinkUp, Revoked, Send, TakenOver, Warn
from .envelope import Gate
from .errors import COVER, SettingError
from .jobs import JobQueue
from .link import Arrival, Link
from .network import Cover, refusal
from .process import Systemd, keep_collecting, stop_on_signals, watch_loop
from .settings import BrokerConfig, NodeConfig

WARNINGS_PER_S = 5.0
"""Log lines about peers; the rest is only counted."""
TRACES = 3
"""Unforeseen errors that are logged with their trace; the rest is only counted."""
PACED_BYTES = 8192
"""A broker acknowledges what is as long, which paces it. Anything else costs less to say again than
to acknowledge: sessions are clean, so that no broker keeps a message for who is away."""
LATE_S = 10.0
"""A core that is called so much later than it asked for is called no more."""
LONGEST_JOB_S = 600.0
"""What takes longer than this comes to no end: a dead disk, a dead lock."""

if TYPE_CHECKING:
    from .discovery.announcing import Discovery
    from .metrics import Metrics

_log = logging.getLogger(__name__)
_to_json = msgspec.json.Encoder()

Route = Callable[[Send], tuple[str, str]]
"""Returns the name of the link and the topic on which a message goes out."""


class Shell:
    """One process.

    Args:
        fatal: Errors that end the process; others are logged and counted, and it goes on.
        needs_reader: End when nobody reads the events any more.
        shared_chunks: How many that went out last may go out to others too: framed once for all.
    """

    gate: Gate
    """What `identify` made."""
    driver: Driver
    """What `drive` made."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        fatal: tuple[type[Exception], ...],
        show: Callable[[Emit], None],
        needs_reader: bool = True,
        shared_chunks: int = 0,
    ) -> None:
        self._config = config
        self._fatal = fatal
        self._show = show
        self._needs_reader = needs_reader
        self._framed = functools.lru_cache(maxsize=shared_chunks)(_framed)
        self.directory = Path(config.data_dir)
        self.tls: TlsFiles | None = config.tls.files() if config.tls is not None else None
        """Certificate files that somebody made by hand; they go before those of the site."""
        self.membership: Membership | None = None
        """In the site that this role joined."""
        self.stop = asyncio.Event()
        """Set to end the process in good order."""
        self.id = ""
        self.links: dict[str, Link] = {}
        self.at_close: list[Callable[[], Awaitable[object]]] = []
        self._store: Store | None = None
        self._closed = False
        self._error: Exception | None = None
        self._broker: Broker | None = None
        self._jobs: JobQueue | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._warnings = TokenBucket(WARNINGS_PER_S, WARNINGS_PER_S)
        self._systemd = Systemd()
        self._metrics: Metrics | None = None
        self._watched_from = -math.inf

    async def run(self, serve: Callable[[], Awaitable[None]]) -> None:
        """Hold the data directory and serve; then close everything, and raise what failed."""
        with hold_data_dir(self.directory):
            stop_on_signals(self.stop, watch_parent=self._config.watch_parent)
            try:
                async with asyncio.TaskGroup() as self._group:
                    try:
                        await serve()
                    except Exception as error:  # noqa: BLE001 - raised again below
                        self.fail(error)
                    finally:
                        self._closed = True
                        for task in self._tasks:
                            task.cancel()
            finally:
                await self._close()
        if self._error is not None:
            raise self._error

    def fail(self, error: Exception) -> None:
        """End the process with an error: going on would break what was promised."""
        if self._error is None:
            self._error = error
        self.stop.set()

    def identify(self) -> Identity:
        """Load who this process is, made at its first start; all that it sends is signed.

        Raises:
            CredentialsError: The file is there and damaged.
        """
        identity = load_or_create(self.directory)
        self.id = identity.id
        self.gate = Gate(
            identity,
            starts=count_start(self.directory),
            clock=time.monotonic,
            keep_starts=functools.partial(keep_number, self.directory / STARTS_FILE),
            publish=lambda name, topic, payload: (
                name in self.links and self.links[name].publish(topic, payload)
            ),
            log=lambda line: _log.warning("%s: %s", self.id, line),
        )
        held = (self.directory / FOLDER / CERT_FILE).is_file()
        if self._config.insecure and (self.tls is not None or held):
            _log.warning(
                "%s: --insecure is given although there is %s: unencrypted MQTT is still "
                "allowed; leave out --insecure to refuse it",
                self.id,
                f"the certificate of site {self._config.site}" if held else "certificate files",
            )
        return identity

    @property
    def _over(self) -> bool:
        return self._closed or self._error is not None

    def spawn(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        """Run a task beside `serve`; its failure is the process's."""
        task = self._group.create_task(self._careful(work), name=name)
        if self._closed:  # what others that end, or a link, still begin
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # cancelled before it began
        return task

    async def _careful(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - raised again by `run`
            self.fail(error)

    async def start_broker(self, config: BrokerConfig, role: Role) -> tuple[BrokerAddress, str]:
        """Start a private broker, unless a shared one is named; return its address and kind."""
        shared = config.shared()
        if shared is not None:
            return shared, "external"
        tls = self.tls
        if tls is None and config.covered:
            if self.membership is None:
                problem = f"{config.listen} without certificates would let in anyone on the network"
                raise SettingError("listen", problem, COVER)
            tls = self.membership.files
            _log.info(
                "%s: listens on %s with TLS, for members of site %s",
                self.id,
                config.listen,
                config.site,
            )
        spec = BrokerSpec(
            data_dir=self.directory,
            kind=config.broker,  # type: ignore[arg-type]  # `shared` left only the kinds
            listen=config.listen,
            port=config.port,
            tls=tls,
            certified=tls is not None and self.tls is None,
            owner=common_name(role, self.id),
            site=config.site,
            revoked=self._left_out(),
            insecure=config.insecure,
        )
        self._broker = Broker(spec)
        self._broker.on_taken_over = self._taken_over
        return await self._broker.start(), self._broker.kind

    def _taken_over(self, name: str) -> None:
        """Say that somebody came twice; without certificates anybody can do that to anybody."""
        text = (
            "connected a second time while connected: its link broke, or another device has its key"
        )
        self._warn(Warn(name, text))
        assert self._broker is not None
        if self._broker.spec.certified:
            self.receive(TakenOver(name.partition("/")[2]))

    @property
    def has_own_broker(self) -> bool:
        """Whether the broker is this process's."""
        return self._broker is not None

    def drive(
        self,
        core: Core,
        store: Store,
        route: Route,
        *,
        jobs: int | Jobs = 1,
        change: Callable[[Connect], None] | None = None,
    ) -> Driver:
        """Drive a core; its `store` is closed with the shell.

        `jobs` is how many work at a time, or who does them. A role whose links change says
        how, by `change`.
        """
        self._route, self._change, self._store = route, change, store
        if isinstance(jobs, int):
            jobs = self._jobs = JobQueue(self.receive, self.fail, workers=jobs)
        self.driver = Driver(
            core,
            store,
            links=self,
            jobs=jobs,
            clock=time.monotonic,
            emit=self.emit,
            warn=self._warn,
            me=self.id,
            on_error=self._caught,
            gate=self.gate,
        )
        return self.driver

    def freeze(self) -> None:
        """Begin the quiet part: what lives from here on is short-lived or small."""
        self.spawn(keep_collecting(), "collect")
        self._schedule()
        self._watched_from = time.monotonic()
        counters = self.driver.core.counters
        self.spawn(watch_loop(self.id, self._systemd, self._hindrance, counters), "watchdog")

    async def be_observed(self, role: Role) -> None:
        """Serve metrics, where they are asked for.

        Raises:
            SettingError: The address cannot be taken.
        """
        place = self._config.metrics_place()
        if place is None:
            return
        from .metrics import Metrics  # noqa: PLC0415 - of an extra, and a device has 30 MB

        self._metrics = Metrics(
            role,
            self.id,
            lambda: (
                self.driver.core.counters,
                {name: link.connected for name, link in dict(self.links).items()},
            ),
        )
        self.at_close.append(await self._metrics.serve(*place))
        _log.info("%s: metrics at http://%s:%d/metrics", self.id, place[0], self._metrics.port)

    def _hindrance(self) -> str:
        """Return what does not get on although the event loop turns; empty if all does."""
        now, due = time.monotonic(), self.driver.next_due()
        late_s = now - max(due, self._watched_from) if due is not None else 0.0
        if late_s > LATE_S:
            return f"nothing was decided for {late_s:.0f} s"
        for name, link in self.links.items():
            if link.ended:
                return f"the task of the link {name} has ended"
        job = self._jobs.longest(now) if self._jobs is not None else ("", 0.0)
        return f"{job[0]} is at work for {job[1]:.0f} s" if job[1] > LONGEST_JOB_S else ""

    # ------------------------------------------------------------------- links

    def enrol(self, renew: Renew) -> None:
        """Take the credentials in the data directory, where this role joined a site.

        Its certificate is renewed for as long as this process lives.
        """
        if self.tls is not None:
            return
        if (member := Membership.of(self.directory)) is not None:
            member.asked, member.on_change = self._is_certified, self._site_changed
            self.membership = self.gate.certifier = member
            self.spawn(member.keep(renew), "renew-certificate")

    def _is_certified(self, link: str) -> bool:
        return link in self.links and self.links[link].certified

    async def _site_changed(self, revoked: Collection[str]) -> None:
        """Have broker and gate take the files of the site that are new; cut who was revoked."""
        self.gate.recheck()
        if self._broker is not None:
            await self._broker.reload(self._left_out())
            if revoked:
                await self._broker.cut(revoked)

    def _left_out(self) -> frozenset[str]:
        return self.membership.list.ids if self.membership is not None else frozenset()

    async def take_revocations(self, crl: bytes) -> None:
        """Keep out who is on a list of the revoked, and tell the core, if it is a newer one."""
        if self.membership is not None and await self.membership.take(crl):
            self.tell_revocations()

    def tell_revocations(self) -> None:
        """Tell the core of the list that holds; it needs none outside of a site."""
        if self.membership is not None:
            path = self.membership.credentials.crl
            crl = path.read_bytes() if path.exists() else b""
            self.receive(Revoked(self.membership.list.number, self.membership.list.ids, crl))

    def link(
        self,
        name: str,
        address: BrokerAddress,
        *,
        client_id: str,
        incoming: Direction,
        whose: Role,
        ids: Callable[[], Collection[str]] = tuple,
        will: tuple[str, bytes] | None = None,
    ) -> Link:
        """Return a link, not yet started, whose messages go to the core.

        In a site the broker there must be of a role in `whose` place, or a shared one, and have
        one of the ids, where there are any.

        Raises:
            SettingError: What the address asks for is not there.
        """
        tls: Cover | None = self.tls
        if tls is None and address.scheme == "mqtts":
            if self.membership is None:
                problem = f"{address} requires a certificate of the site, and there is none here"
                raise SettingError("join", problem, COVER)
            tls = self.membership.towards(whose, "broker", ids=ids, elsewhere=self._reached)
        link = Link(
            address,
            client_id=client_id,
            tls=tls,
            insecure=self._config.insecure,
            will=will,
            on_arrivals=lambda batch: self._arrived(name, incoming, batch),
            on_state=lambda up: self.receive(LinkUp(name) if up else LinkDown(name)),
            urgent=self.driver.core.urgent,
            fail=self.fail,
        )
        self.links[name] = link
        return link

    def _reached(self, ident: str) -> str:
        """Return the address of the link that reaches an identity now, empty if none does."""
        links = (one for one in self.links.values() if one.connected and one.peer == ident)
        return next((str(one.address) for one in links), "")

    async def discover(self) -> "Discovery":
        """Begin to look around by zeroconf, to the end of the process."""
        from .discovery.announcing import Discovery  # noqa: PLC0415 - 5 MB

        config = self._config
        discovery = Discovery(
            config.site,
            scope="loopback" if config.discovery == "loopback" else "lan",
            judge=self._judge,
        )
        self.at_close.append(discovery.stop)
        await discovery.start()
        return discovery

    async def _judge(self, advert: Advert) -> str:
        """Return why who answers at an advert's address is not who it names; empty if it is."""
        where, cover = advert.address, None
        if self.membership is not None and where.scheme == "mqtts":
            cover = self.membership.towards(advert.role, "broker", ids=lambda: (advert.id,))
        return await refusal(where.host, where.port, cover)

    def send(self, send: Send) -> bool:
        """Send on the link that the route names."""
        return self.publish(*self._route(send), send.message)

    def publish(self, name: str, topic: str, message: AnyMessage) -> bool:
        """Send a message on a link."""
        link = self.links.get(name)
        if link is None:
            return True  # nobody is there yet
        if isinstance(message, Hello):  # with the device's address, for people
            message = structs.replace(message, address=link.local_address[:64])
        framed = self._framed if isinstance(message, Chunk) else _framed
        body, hashed = framed(message)
        payload = self.gate.seal(topic, body, link=name, kind=kind(message), hashed=hashed)
        return link.publish(topic, payload, qos=int(len(payload) >= PACED_BYTES))

    def change(self, effect: Connect) -> None:
        """Change links, as the role does."""
        assert self._change is not None
        self._change(effect)

    def _arrived(self, name: str, incoming: Direction, batch: list[Arrival]) -> None:
        link = self.links.get(name)
        if link is None:  # it is being left
            return
        for arrival in batch:
            if self._over:
                return
            self.driver.arrived(
                name,
                incoming,
                arrival.topic,
                arrival.payload,
                at=arrival.at,
                link_idle=link.pending_bytes == 0,
            )
        self.driver.flush()
        self._schedule()

    # -------------------------------------------------------------------- time

    def receive(self, *events: Input) -> None:
        """Give the core what is no message."""
        if not self._over:
            self.driver.receive(*events)
            self._schedule()

    def _schedule(self) -> None:
        """Have one timer, at or before the time that the core names."""
        due = self.driver.next_due()
        if due is None or (self._timer is not None and self._timer.when() <= due):
            return  # an early tick costs less than a new timer per message
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._over:
            return
        counted = {name: link.counters for name, link in self.links.items()}
        if self._broker is not None:
            counted["broker"] = self._broker.counters
        for name, counters in counted.items():
            for key, value in counters.items():
                self.driver.core.counters[f"{name}_{key}"] = value
        self.driver.tick()
        self._schedule()

    # --------------------------------------------------------- people and ends

    def emit(self, event: Emit) -> None:
        """Show an event to people, and to a program that reads stdout."""
        self._show(event)
        if self._metrics is not None:
            self._metrics.note(event)
        if not self._config.json_events:
            return
        try:
            sys.stdout.buffer.write(_to_json.encode({"event": event.name, **event.fields}) + b"\n")
            sys.stdout.buffer.flush()
        except OSError:
            # The reader is gone.
            if self._needs_reader:
                self.stop.set()

    def _warn(self, warning: Warn) -> None:
        if not self._warnings.take(time.monotonic()) and not warning.once:
            self.driver.core.counters["not_logged"] += 1
            return
        peer = f"{warning.peer}: " if warning.peer else ""
        _log.warning("%s: %s%s", self.id, peer, safe_text(warning.text))

    def _caught(self, error: Exception) -> None:
        if isinstance(error, self._fatal):
            _log.critical("%s: %s", self.id, error)
            self.fail(error)
            return
        counters = self.driver.core.counters
        counters["internal_errors"] += 1
        if counters["internal_errors"] <= TRACES:
            _log.error("%s: an input could not be handled", self.id, exc_info=error)

    async def _close(self) -> None:
        """Leave the network, then the disk; nothing here may take long."""
        if self._timer is not None:
            self._timer.cancel()
        ends = [end() for end in self.at_close]
        await asyncio.gather(*ends, *(link.stop() for link in self.links.values()))
        if self._jobs is not None:
            self._jobs.close()
        if self._store is not None:
            self._store.close()
        if self._broker is not None:
            await self._broker.stop()


def _framed(message: AnyMessage) -> tuple[bytes, bytes]:
    """Return a message's bytes, and their SHA-256."""
    body = encode(message)
    return body, hashlib.sha256(body).digest()
