"""The coordinator as a process: broker, link, discovery, timers, threads for big jobs.

No decision is made here. Messages go into the runtime, what comes out is done in
order; heavy jobs run in threads, so that the heartbeat never waits for them.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path

import msgspec

from fedagent_node.advert import Advert, in_words
from fedagent_node.broker import Broker, BrokerSpec
from fedagent_node.data_dir import DataDirLock
from fedagent_node.discovery import Discovery
from fedagent_node.identity import Identity, load_or_create
from fedagent_node.link import Arrival, BrokerAddress, Link
from fedagent_node.process import boot_id
from fedagent_protocol import failpoints, topics
from fedagent_protocol.messages import PROTOCOL_VERSION
from fedagent_task.measures import measures_of
from fedagent_task.spec import Recipe

from .config import CoordinatorConfig
from .core.effects import CrashPoint, Event
from .core.readiness import DECLINED, STATISTICS
from .jobs import CheckPart, EvaluateModel, Job, JobResult, MergeModels
from .recipe_check import read_recipe
from .runs import RunFinishedError
from .runtime import (
    BEACON_MS,
    CoordinatorRuntime,
    Finished,
    Outward,
    Publish,
    RuntimeOptions,
)

_log = logging.getLogger(__name__)

FAREWELL_S = 0.3
STOP_S = 1.5
OFTEN_S = 1.0
"""A client that is left alone for so long has declined several times in a row."""
NOTHING_LEARNT = (
    "NOTHING WAS LEARNT: none of the %d rounds used any update, the model is the one the run "
    "began with; `fedagent rounds` says why"
)
POINTS = "coordinator."
"""Prefix of the crash points that `FEDAGENT_FAILPOINT` names."""


def checkpoint(name: str) -> None:
    """Die here if the environment asks for it."""
    failpoints.hit(POINTS + name)


class Daemon:
    """One coordinator process.

    Args:
        config: Its settings.
        emit: Takes each event as a JSON line's bytes; stdout by default.
    """

    def __init__(
        self, config: CoordinatorConfig, *, emit: Callable[[bytes], None] | None = None
    ) -> None:
        self._config = config
        self._emit = emit if emit is not None else self._print
        self._stop = asyncio.Event()
        self._over = asyncio.Event()
        self._error: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._broker: Broker | None = None
        self._discovery: Discovery | None = None
        self._started = False
        self._nothing_learnt = False
        self._others: tuple[str, ...] = ()

    async def run(self) -> None:
        """Work until the run is over, or until told to stop.

        Raises:
            CoordinatorError, TaskError, LinkError: What kept it from going on.
        """
        config = self._config
        recipe = read_recipe(config)
        with DataDirLock(Path(config.data_dir)):
            identity = load_or_create(Path(config.data_dir))
            self._runtime = self._open(identity, recipe)
            try:
                await self._serve(identity, recipe)
            finally:
                self._runtime.close()
        if self._error is not None:
            raise self._error
        if self._nothing_learnt:
            # Exit code 0 alone would look like a success.
            _log.warning(NOTHING_LEARNT, self._runtime.engine.rounds_done)

    def _open(self, identity: Identity, recipe: Recipe) -> CoordinatorRuntime:
        config = self._config
        options = RuntimeOptions(
            data_dir=Path(config.data_dir),
            coordinator=identity.id,
            recipe=recipe,
            site=config.site,
            new_run=config.new_run,
            accept_lost_history=config.accept_lost_history,
            wait_edges=config.wait_edges,
            wait_agents=config.wait_agents,
            grace_s=config.grace_s,
            boot=boot_id(),
            more_rounds=config.more_rounds,
            init=config.init,
        )
        try:
            return CoordinatorRuntime(options, checkpoint=checkpoint, clock=time.monotonic)
        except RunFinishedError as finished:
            done, reason = finished.progress.rounds_done, finished.reason
            fields = {"run": finished.run_id, "rounds_done": done, "reason": reason}
            self._report("finished", fields)
            raise

    def stop(self) -> None:
        """End soon and cleanly. Safe to call twice."""
        self._stop.set()

    # ------------------------------------------------------------- up and down

    async def _serve(self, identity: Identity, recipe: Recipe) -> None:
        self._watch_signals()
        try:
            address, kind = await self._start_broker()
            self._link = Link(
                address,
                client_id=f"c-{identity.id}",
                on_arrivals=self._on_arrivals,
                on_state=self._on_state,
                tls=self._config.tls.files() if self._config.tls else None,
                insecure=self._config.insecure,
            )
            subscribed = self._link.subscribe(*topics.coordinator_filters(self._config.site))
            await self._link.start()
            try:
                self._emit_ready(identity, recipe, address, kind)
                async with asyncio.TaskGroup() as self._tasks:
                    await self._work(identity, address, subscribed)
            finally:
                await self._close_link()
        finally:
            if self._broker is not None:
                await self._broker.stop()

    async def _work(
        self, identity: Identity, address: BrokerAddress, subscribed: asyncio.Future[None]
    ) -> None:
        """Run the helpers until the end, then say farewell."""
        helpers = [
            self._tasks.create_task(self._careful(work), name=name)
            for name, work in (
                ("rounds", self._begin(subscribed)),
                ("beacon", self._beat()),
                ("advertise", self._advertise(identity, address)),
            )
        ]
        gc.collect()
        gc.freeze()
        ends = [
            asyncio.ensure_future(self._stop.wait()),
            asyncio.ensure_future(self._over.wait()),
        ]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if self._over.is_set() and self._error is None:
            await self._farewell()
        if self._timer is not None:
            self._timer.cancel()
        for helper in helpers:
            helper.cancel()

    async def _farewell(self) -> None:
        """Tell edges for a while that the run is over; each says so to its agents."""
        end = time.monotonic() + self._config.linger_s
        while (left := end - time.monotonic()) > 0 and not self._stop.is_set():
            self._do(self._runtime.goodbye())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), min(FAREWELL_S, left))

    async def _close_link(self) -> None:
        """Leave the network; nothing here may take long."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._link.stop(), name="link-stop")
            if self._discovery is not None:
                group.create_task(_briefly(self._discovery), name="discovery-stop")

    async def _start_broker(self) -> tuple[BrokerAddress, str]:
        config = self._config
        tls = config.tls.files() if config.tls else None
        shared = config.shared()
        if shared is not None:
            return shared, "external"
        self._broker = Broker(
            BrokerSpec(
                data_dir=Path(config.data_dir),
                kind=config.broker,  # type: ignore[arg-type]  # `shared_broker` left only the kinds
                listen=config.listen,
                port=config.port,
                tls=tls,
                insecure=config.insecure,
            )
        )
        return await self._broker.start(), self._broker.kind

    async def _advertise(self, identity: Identity, address: BrokerAddress) -> None:
        config = self._config
        if config.discovery == "off":
            return
        self._discovery = Discovery(config.site, scope=config.discovery)
        await self._discovery.start()
        advert = Advert("coordinator", identity.id, config.site, address, PROTOCOL_VERSION)
        listen = config.listen if self._broker is not None else None
        await self._discovery.advertise(advert, listen=listen)
        self._discovery.browse("coordinator", lambda seen: self._see_others(seen, identity.id))

    def _see_others(self, adverts: frozenset[Advert], own: str) -> None:
        """Name other coordinators of this site: edges serve one of them, and not the others."""
        others = in_words(advert for advert in adverts if advert.id != own)
        if others == self._others:
            return
        self._others = others
        self._runtime.others_are(others)
        site = self._config.site
        if others:
            _log.warning(
                "another coordinator is at site %s: %s; an edge serves one of them only: stop "
                "one, or give it, its edges and agents another --site",
                site,
                ", ".join(others),
            )
        else:
            _log.info("this is the only coordinator at site %s again", site)

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        if self._config.watch_parent:
            # Not every kind of stdin can be watched; a file has no parent behind it.
            with suppress(PermissionError):
                loop.add_reader(sys.stdin.fileno(), self._read_stdin)

    def _read_stdin(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.stop()

    # ------------------------------------------------------------------- steps

    async def _begin(self, subscribed: asyncio.Future[None]) -> None:
        """Start once we can hear and be heard: the first beacon makes edges say hello."""
        await subscribed
        self._started = True
        self._guard(lambda: self._runtime.start(time.monotonic()))

    def _on_state(self, connected: bool) -> None:
        if connected:
            self._guard(lambda: [self._runtime.beacon()])

    def _on_arrivals(self, batch: list[Arrival]) -> None:
        for arrival in batch:
            self._guard(
                lambda: self._runtime.receive(
                    arrival.topic,  # noqa: B023 - called before the next one
                    arrival.payload,  # noqa: B023
                    time.monotonic(),
                    link_idle=self._link.pending_bytes == 0,
                )
            )

    def _on_time(self) -> None:
        self._timer = None
        self._guard(lambda: self._runtime.tick(time.monotonic()))

    def _guard(self, step: Callable[[], list[Outward]]) -> None:
        """Take one step; a failure ends the process with its error, not the callback."""
        if self._error is not None or not self._started:
            return
        try:
            self._do(step())
            self._arm()
        except Exception as error:  # noqa: BLE001 - raised again by `run`
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._over.set()

    async def _careful(self, work: Coroutine[None, None, None]) -> None:
        """Run a helper; its failure is the process's."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - raised again by `run`
            self._fail(error)

    def _arm(self) -> None:
        """Have `_on_time` called when the runtime wants it."""
        due = self._runtime.next_due()
        if self._timer is not None:
            if due is not None and abs(self._timer.when() - due) < 1e-4:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._on_time)

    def _do(self, outward: list[Outward]) -> None:
        """Do what the runtime asks for, in order."""
        todo = deque(outward)
        while todo:
            match todo.popleft():
                case Publish() as item:
                    self._link.publish(item.topic, item.payload)
                case CrashPoint() as mark:
                    checkpoint(mark.name)
                case Event() as event:
                    self._report(event.name, dict(event.fields))
                case Finished() as finished:
                    self._nothing_learnt = finished.nothing_learnt
                    if finished.conclusion:
                        _log.info("%s", finished.conclusion)
                    self._over.set()
                case (CheckPart() | MergeModels() | EvaluateModel()) as job:
                    if job.small:
                        result: JobResult = job.run()
                        todo.extend(self._runtime.job_done(result, time.monotonic()))
                    else:
                        work = self._careful(self._in_thread(job))
                        self._tasks.create_task(work, name=type(job).__name__)

    async def _in_thread(self, job: Job) -> None:
        result: JobResult = await asyncio.to_thread(job.run)
        self._guard(lambda: self._runtime.job_done(result, time.monotonic()))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEACON_MS / 1000.0)
            self._guard(lambda: [self._runtime.beacon()])

    # ------------------------------------------------------------------ stdout

    def _emit_ready(
        self, identity: Identity, recipe: Recipe, address: BrokerAddress, kind: str
    ) -> None:
        run = self._runtime.run
        self._report(
            "ready",
            {
                "id": identity.id,
                "broker": str(address),
                "broker_kind": kind,
                "site": self._config.site,
                "run": run.run_id,
                "recipe": recipe.name,
                "policy": recipe.policy.name,
                "rounds": run.recipe.rounds.count,
                "resumed": run.resumed,
                "primary_metric": next((one.key for one in measures_of(recipe)), None),
            },
        )

    def _report(self, name: str, fields: dict[str, object]) -> None:
        _log.log(_level(name, fields), "%s", _in_words(name, fields))
        if self._config.json_events:
            self._emit(msgspec.json.encode({"event": name, **fields}) + b"\n")

    def _print(self, line: bytes) -> None:
        try:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            # Whoever read our events is gone.
            self.stop()


def _level(name: str, fields: dict[str, object]) -> int:
    """Return how loud an event is: what costs the run its rounds is a warning."""
    loud = (
        name in {"edge_lost", "edge_refused", "warning"}
        or (name == "round" and not fields["used"])
        or (name == "waiting" and fields["reason"] == DECLINED)
        or (name == "opinions" and not fields.get("answered", fields.get("volunteers")))
        or (name == "declined" and float(str(fields["seconds"])) >= OFTEN_S)
    )
    return logging.WARNING if loud else logging.INFO


def _in_words(name: str, fields: dict[str, object]) -> str:
    """Return an event with its short fields for a person."""
    if name == "waiting" and "wanted" in fields:
        why = str(fields["reason"])
        return f"waiting for {why}: {fields[why]} of {fields['wanted']}"
    if name == "waiting" and fields["reason"] == STATISTICS:
        return f"waiting for the samples of {fields['agents']} agents to be added up"
    if name == "edge_refused":
        return f"edge {fields['edge']} {fields['reason']}"
    if name == "warning":
        return f"samples {fields['reason']} (agents {_joined(fields['agents'])})"
    return f"{name}: " + " ".join(
        f"{key}={value}"
        for key, value in fields.items()
        if value not in ("", None) and not _long(value)
    )


def _joined(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else ""


def _long(value: object) -> bool:
    return isinstance(value, dict | list) and bool(value)


async def _briefly(discovery: Discovery) -> None:
    """Withdraw the advert, but do not wait long for the network."""
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_S):
            await discovery.stop()
