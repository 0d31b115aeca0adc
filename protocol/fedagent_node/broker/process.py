"""A private broker of the edge or the coordinator: chosen, started, watched, ended."""

import asyncio
import importlib.util
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Literal

import msgspec
from msgspec import structs

from fedagent_node.address import BrokerAddress, is_loopback, is_wildcard
from fedagent_node.data_dir import store_port, stored_port
from fedagent_node.discovery.advert import reach
from fedagent_node.errors import COVER, LinkError, SettingError
from fedagent_node.network import (
    Backoff,
    bindable,
    cancelled,
    free_port,
    lan_addresses,
    listen_hint,
    owns_port,
)
from fedagent_protocol.errors import safe_text
from fedagent_protocol.extras import how_to_add

from .acl import BrokerSpec
from .mosquitto import config_path, cut_sessions, mosquitto_program, write_files

__all__ = ["Broker", "BrokerSpec"]

_log = logging.getLogger(__name__)

Kind = Literal["mosquitto", "embedded"]

READY_S = 15.0
STOP_S = 3.0
_HEAP = {"MALLOC_TRIM_THRESHOLD_": "8388608", "MALLOC_MMAP_THRESHOLD_": "1048576"}
"""A message of chunks is not mapped anew each time, which costs six times as much; what a flood
took the broker keeps, up to its `memory_limit`."""


class Told(msgspec.Struct, frozen=True):
    """A line of a running broker: what it counted, and whose session was taken over."""

    counts: dict[str, int] = {}
    taken_over: str = ""


class Broker:
    """One supervised private broker; `errors` says what keeps it from being made or started."""

    def __init__(self, spec: BrokerSpec) -> None:
        self.spec = spec
        self.kind: Kind = choose_kind(spec.kind)
        self.counters: Counter[str] = Counter()
        self.on_taken_over: Callable[[str], None] = lambda _: None
        """Told whenever a session ends because its identity came again."""
        if spec.tls is not None:
            spec.tls.server_context()
        elif not is_loopback(spec.listen):
            if not spec.insecure:
                problem = f"{spec.listen} without certificates would let in anyone on the network"
                raise SettingError("listen", problem, COVER)
            _log.warning(
                "the broker listens on %s without encryption or authentication (--insecure): "
                "anyone on this network can read and forge messages",
                spec.listen or "all interfaces",
            )
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._broker_pid = 0
        self._watcher: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None

    @property
    def address(self) -> BrokerAddress:
        """Where this process reaches the broker."""
        listen = self.spec.listen
        host = ("::1" if ":" in listen else "127.0.0.1") if is_wildcard(listen) else listen
        return BrokerAddress(host, self._port, "mqtts" if self.spec.tls else "mqtt")

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of wrapper and broker, for measuring their memory."""
        if self._process is None or self._process.returncode is not None:
            return ()
        return tuple(sorted({self._process.pid, self._broker_pid}))

    async def start(self) -> BrokerAddress:
        """Start the broker and wait until it answers; the stored port is tried first."""
        if elsewhere := listen_hint(self.spec.listen, ""):
            raise LinkError(elsewhere)
        stored = stored_port(self.spec.data_dir, self.spec.name)
        if not (stored and bindable(self.spec.listen, stored)):
            stored = free_port(self.spec.listen)
        self._port = self.spec.port or stored
        try:
            await self._launch()
        except LinkError as exc:
            if self.spec.port and not bindable(self.spec.listen, self.spec.port):
                why = "the port is in use; stop the program that uses it, or give another --port"
                raise self._failed(why) from exc
            if self.spec.port:
                raise
            _log.info("%s; trying another port", exc)
            self._port = free_port(self.spec.listen)
            await self._launch()
        store_port(self.spec.data_dir, self.spec.name, self._port)
        self._watcher = asyncio.create_task(self._watch(), name=f"{self.spec.name}-watch")
        # Where others reach it; where we do if that is nowhere else.
        own, hosts = self.address, reach(self.spec.listen, lan_addresses()).hosts
        places = [str(replace(own, host=host)) for host in hosts] or [str(own)]
        alone = ", for this machine only (for other machines: --listen 0.0.0.0)"
        _log.info(
            "%s broker at %s%s",
            *(self.kind, ", ".join(places), alone if is_loopback(self.spec.listen) else ""),
        )
        return own

    async def stop(self) -> None:
        """End the broker and wait until it is gone. Idempotent."""
        await cancelled(self._watcher)
        await self._end()

    async def reload(self, revoked: frozenset[str] = frozenset()) -> None:
        """Take in certificates and revocations as they are on disk now, and who is out by id."""
        self.spec = structs.replace(self.spec, revoked=revoked)
        if self.kind == "embedded":
            await self._command({"reload": True, "revoked": sorted(revoked)})
        elif not write_files(self.spec, self._port):
            # A list of revocations came into being: mosquitto reads its name at start alone.
            self._signal(signal.SIGTERM)
        else:
            self._signal(signal.SIGHUP)
        self.counters["reloads"] += 1

    async def cut(self, ids: Iterable[str]) -> None:
        """End the live sessions of these ids, whatever their role; `reload` keeps them out."""
        names = [f"{letter}/{ident}" for ident in ids for letter in "ae"]
        if self.kind == "embedded":
            await self._command({"cut": names})
        elif self.spec.certified:
            try:
                await cut_sessions(self.spec, names)
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as exc:
                _log.warning("a session could not be closed (%s): the broker restarts", exc)
                self._signal(signal.SIGTERM)
        self.counters["cuts"] += len(names) // 2

    def _signal(self, number: int) -> None:
        if self._process is not None and self._broker_pid:
            with suppress(ProcessLookupError):
                os.kill(self._broker_pid, number)

    async def _command(self, command: dict[str, object]) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return  # it reads everything again when it starts
        with suppress(ConnectionError):
            process.stdin.write(msgspec.json.encode(command) + b"\n")
            await process.stdin.drain()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            try:
                told = msgspec.json.decode(line, type=Told)
            except msgspec.DecodeError:
                continue
            self.counters.update(told.counts)
            if told.taken_over:
                self.counters["taken_over"] += 1
                self.on_taken_over(told.taken_over)

    async def _watch(self) -> None:
        """Start the broker again, on the same port, whenever it dies."""
        backoff = Backoff(first_s=0.1, cap_s=5.0)
        while self._process is not None:
            code = await self._process.wait()
            self.counters["restarts"] += 1
            _log.error("the %s broker ended (code %s); starting it again", self.kind, code)
            while True:
                try:
                    await self._launch()
                except LinkError as exc:
                    self.counters["failed_starts"] += 1
                    _log.error("%s; trying again", exc)
                    await asyncio.sleep(backoff.next())
                else:
                    backoff.reset()
                    break

    async def _launch(self) -> None:
        arguments = self._arguments()
        path = self.spec.data_dir / f"{self.spec.name}.log"
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            # A session of its own: Ctrl-C must reach us and not the broker.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **_HEAP},
                start_new_session=True,
            )
        finally:
            os.close(log)
        try:
            async with asyncio.timeout(READY_S):
                await self._ready(self._process)
        except TimeoutError as exc:
            await self._end()
            raise self._failed(f"no answer for {READY_S:.0f} s") from exc
        except BaseException:
            await self._end()
            raise
        if self.kind == "embedded" and self.spec.revoked:
            await self._command({"revoked": sorted(self.spec.revoked)})
        self._listener = asyncio.create_task(
            self._listen(self._process), name=f"{self.spec.name}-listen"
        )

    async def _ready(self, process: asyncio.subprocess.Process) -> None:
        """Wait until it listens; `LinkError` if it ends before."""
        assert process.stdout is not None
        line = await process.stdout.readline()
        self._broker_pid = int(line) if line.strip().isdigit() else 0
        while self._broker_pid and process.returncode is None:
            if owns_port(self._broker_pid, self._port):
                return
            await asyncio.sleep(0.02)
        path = self.spec.data_dir / f"{self.spec.name}.log"
        words = path.read_text("utf-8", errors="replace").split("\n") if path.exists() else []
        last = next(filter(str.strip, reversed(words)), "it exited without an error message")
        raise self._failed(safe_text(last))

    def _failed(self, why: str) -> LinkError:
        return LinkError(f"the {self.kind} broker did not start on port {self._port}: {why}")

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await cancelled(self._listener)

    def _arguments(self) -> list[str]:
        """Return the module that runs the broker, and what it is given."""
        if self.kind == "mosquitto":
            program = mosquitto_program()
            assert program is not None
            write_files(self.spec, self._port)
            return ["fedagent_node.broker.wrapper", program, str(config_path(self.spec))]
        self.spec.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Without the revoked: the kernel bounds the length of arguments.
        given = structs.replace(self.spec, port=self._port, revoked=frozenset())
        return ["fedagent_node.broker.embedded", msgspec.json.encode(given, enc_hook=str).decode()]


def choose_kind(kind: str) -> Kind:
    """Return which broker ``auto`` means here; raises `SettingError`."""
    embedded = importlib.util.find_spec("amqtt") is not None
    if kind in {"auto", "mosquitto"} and mosquitto_program() is not None:
        return "mosquitto"
    if kind in {"auto", "embedded"} and embedded:
        return "embedded"
    hint = {
        "mosquitto": "install mosquitto, or choose --broker embedded",
        "embedded": how_to_add("edge"),
    }.get(kind, f"install mosquitto, or the embedded broker: {how_to_add('edge')}")
    raise SettingError("broker", f"no {kind} broker is installed here", hint)
