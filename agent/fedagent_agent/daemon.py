"""The agent as a process: its start, its links, its trainer, and the readings of the device."""

import functools
import json
import logging
import os
import time

from fedagent_node.data_dir import Identity
from fedagent_node.discovery.advert import Advert
from fedagent_node.effects import Emit
from fedagent_node.errors import JoinError
from fedagent_node.network import in_step
from fedagent_node.shell import Shell
from fedagent_node.site.enrolling import Joiner, join_first, renew

from .config import AgentConfig
from .context import ASK_S, Context, ask_host
from .core.effects import Measured, Stopping, TrainerEnded
from .core.worklog import LogLine, WorkLog
from .links import BrokerLinks
from .machine import MachineProbe
from .site import SiteVoucher
from .store import TrainerRequest, open_agent
from .streams import parse_stream
from .streams.spec import StreamError
from .trainer.client import TrainerClient
from .trainer.frames import Cancel, Evaluate, Mask, Open, Train

MEASURE_S = 5.0
REST_S = 40.0
"""How often the device is measured while it works for nobody."""

_log = logging.getLogger(__name__)


class AgentDaemon:
    """One agent on this device."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._shell = Shell(config, fatal=(), show=self._show)
        self._context = Context(MachineProbe(child=lambda: self._trainer.pid), limits=config.limits)
        self._worklog = WorkLog()
        self._measured_at, self._rests = 0.0, False

    async def run(self) -> None:
        """Run until stopped.

        Raises:
            DataDirBusyError, LinkError, DiskError: See `__main__.EXIT_CODES`.
        """
        await self._shell.run(self._serve)
        if samples := self._worklog.samples:
            totals = ", ".join(f"{reason} {n}" for reason, n in sorted(samples.items()))
            _log.info("%s: samples that were not trained on: %s", self._shell.id, totals)

    async def _serve(self) -> None:
        config, shell = self._config, self._shell
        identity = shell.identify()
        me = identity.id
        await join_first(shell, identity, "agent", config, name=config.name, must=False)
        if shell.stop.is_set():
            return
        shell.enrol(functools.partial(renew, shell.directory, identity))
        self._trainer = TrainerClient(
            nice=config.nice,
            memory_bytes=config.memory_bytes(),
            on_end=self._on_trainer_end,
            spawn=shell.spawn,
        )
        shell.at_close.append(self._trainer.close)
        core, store = open_agent(
            config,
            me,
            submit=self._submit,
            pending=self._pending_bytes,
            identity=identity,
            voucher=SiteVoucher(config.site, lambda: shell.membership),
        )
        links = BrokerLinks(shell, core, config.site)
        shell.drive(core, store, links.route, change=links.change)
        shell.tell_revocations()
        shell.emit(Emit("ready", {"id": me}))
        _log.info("%s: ready, looks for edges of site %s", me, config.site)
        self._measure()
        self._measuring = shell.spawn(self._keep_measuring(), "measure")
        shell.spawn(self._ask_programs(), "ask-programs")
        await self._connect(links, identity)
        await shell.be_observed("agent")
        shell.freeze()
        await shell.stop.wait()
        shell.receive(Stopping("stopping"))

    async def _connect(self, links: BrokerLinks, identity: Identity) -> None:
        config, shell = self._config, self._shell
        typed = config.typed_addresses()
        for address in typed:
            await links.add(address)
        if config.discovery != "off" and config.broker is None:
            discovery = await shell.discover()
            joiner = Joiner(shell, identity, "agent", config, name=config.name)

            def found(adverts: frozenset[Advert]) -> None:
                links.found(adverts)
                joiner.seen(adverts)

            links.joining = shell.membership is None and config.tls is None and not config.insecure
            discovery.browse("edge", found, needed=not typed)
            if links.joining:
                # A coordinator lets in before there is any edge.
                discovery.browse("coordinator", joiner.seen)
                shell.spawn(self._join(joiner, links, identity), "join")
        elif not typed:
            me = self._shell.id
            _log.warning(
                "%s: discovery is off and no address is given: there is no edge to connect to", me
            )

    async def _join(self, joiner: Joiner, links: BrokerLinks, identity: Identity) -> None:
        """Be let in where an edge of the site says that one can; then use its edges too."""
        shell = self._shell
        try:
            await joiner.run()
        except JoinError as error:
            _log.warning("%s: %s", shell.id, error)
            return
        finally:
            links.joining = False
        shell.enrol(functools.partial(renew, shell.directory, identity))
        shell.tell_revocations()
        links.again()

    def _pending_bytes(self, name: str) -> int:
        link = self._shell.links.get(name)
        return link.pending_bytes if link is not None else 0

    # ------------------------------------------------------- trainer and device

    def _submit(self, request: TrainerRequest) -> None:
        if isinstance(request, Cancel):
            self._trainer.cancel(request.job)
        else:
            self._shell.spawn(self._do(request), f"job-{request.job}")

    async def _do(self, job: Open | Train | Mask | Evaluate) -> None:
        self._shell.receive(await self._trainer.submit(job))

    def _on_trainer_end(self) -> None:
        if not self._shell.stop.is_set():
            self._shell.receive(TrainerEnded())

    async def _keep_measuring(self) -> None:
        while True:
            if time.monotonic() >= self._measured_at + MEASURE_S / 2:
                self._measure()
            self._rests = not self._shell.driver.core.urgent()
            await in_step(REST_S if self._rests else MEASURE_S)

    def _measure(self) -> None:
        self._measured_at = time.monotonic()
        readings = self._context.read(self._measured_at)
        self._shell.receive(Measured(readings))
        hindrance = "" if readings.available else readings.reason or "not available"
        self._log_lines(self._worklog.allow(hindrance))

    async def _ask_programs(self) -> None:
        known = ""
        while True:
            host = await ask_host()
            self._context.host = host
            if host.radio is not None and host.radio.interface != known:
                known = host.radio.interface
                _log.info("%s: Wi-Fi %s", self._shell.id, host.radio)
            await in_step(ASK_S)

    # --------------------------------------------------------------- for people

    def _show(self, event: Emit) -> None:
        self._log_lines(self._worklog.lines_for(event, time.monotonic()))
        if event.name == "ordered" and self._rests:  # what rested begins with the pauses of work
            self._measuring.cancel()
            self._measuring = self._shell.spawn(self._keep_measuring(), "measure")
        _log.debug("%s: %s", self._shell.id, event)

    def _log_lines(self, lines: list[LogLine]) -> None:
        for line in lines:
            level = logging.WARNING if line.loud else logging.INFO
            _log.log(level, "%s: %s", self._shell.id, line.text)


def check_stream(text: str) -> None:
    """Open and close the stream, where it is a file; better now than in every round.

    A forked child does it: reading a dataset loads libraries that the agent itself has no need of.
    Call this before any thread is started.

    Raises:
        StreamError: It cannot be read: no such file, column or label.
    """
    spec = parse_stream(text)
    if not spec.opened_at_start:
        return
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            stream = spec.create(seed=0)
            stream.open(time.monotonic())
        except StreamError as error:
            said = error.key, error.reason_here[:1000], error.hint[:1000]  # read here, never sent
            os.write(writer, json.dumps(said).encode())
        finally:
            # Nothing of the parent may run here: no handlers, no buffers.
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        problem = pipe.read()
    os.waitpid(child, 0)
    if problem:  # of a child that was killed there is none: then the first order will show it
        raise StreamError(*json.loads(problem))
