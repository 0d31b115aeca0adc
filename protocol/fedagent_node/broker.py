"""A private broker of the edge or the coordinator: chosen, started, watched, ended (ADR 2)."""

import asyncio
import importlib.util
import logging
import os
import shutil
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from fedagent_protocol.errors import safe_text
from fedagent_protocol.extras import how_to_add

from .address import BrokerAddress, TlsFiles, is_loopback, is_wildcard
from .advert import LOOPBACK, reach
from .data_dir import store_port, stored_port, write_private
from .errors import BrokerMissingError, BrokerStartError, InsecureListenError, ListenAddressError
from .network import Backoff, answers, bindable, free_port, lan_addresses, owns_port

MAX_QUEUED_BYTES = 48 << 20
"""Per subscriber. The receivers' credit keeps honest roles far below."""


def mosquitto_program() -> str | None:
    """Return the mosquitto program; it is often outside a user's PATH."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def mosquitto_config(*, listen: str, port: int, tls: TlsFiles | None, max_packet_bytes: int) -> str:
    """Return the configuration of a private mosquitto, for version 2.0.11 and later."""
    lines = [
        "per_listener_settings true",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "persistence false",
        "set_tcp_nodelay true",
        f"max_packet_size {max_packet_bytes}",
        f"message_size_limit {max_packet_bytes}",
        # Application credit bounds what is under way; a small window here would
        # only add round trips.
        "max_inflight_messages 1000",
        "max_queued_messages 10000",
        f"max_queued_bytes {MAX_QUEUED_BYTES}",
        "max_keepalive 300",
        f"listener {port} {listen}".rstrip(),
    ]
    if os.geteuid() == 0:
        # Otherwise it becomes a user that may not read our files, and the change
        # of user would clear the signal that ends it with its parent.
        lines.insert(0, "user root")
    if tls is None:
        lines.append("allow_anonymous true")
    else:
        lines += [
            f"cafile {tls.ca.absolute()}",
            f"certfile {tls.cert.absolute()}",
            f"keyfile {tls.key.absolute()}",
            *([f"crlfile {tls.crl.absolute()}"] if tls.crl and tls.crl.exists() else []),
            "require_certificate true",
            "use_identity_as_username true",
            "allow_anonymous false",
        ]
    return "\n".join(lines) + "\n"


_log = logging.getLogger(__name__)

Kind = Literal["mosquitto", "embedded"]

READY_S = 15.0
STOP_S = 3.0
PORT_ATTEMPTS = 4
_WRAPPER = "fedagent_node.broker_wrapper"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSpec:
    """What kind of broker to run, and where; beyond loopback it needs `tls` or `insecure`."""

    data_dir: Path  # for the port, the configuration and the log
    kind: Literal["auto", "mosquitto", "embedded"] = "auto"
    listen: str = "127.0.0.1"
    port: int = 0  # the one used last, else a free one
    tls: TlsFiles | None = None
    insecure: bool = False
    max_packet_bytes: int = 1 << 20  # larger packets end the connection they come from
    name: str = "broker"


class Broker:
    """One supervised private broker; `errors` says what keeps it from being made or started."""

    def __init__(self, spec: BrokerSpec) -> None:
        self.spec = spec
        self.kind: Kind = choose_kind(spec.kind)
        self.counters: Counter[str] = Counter()
        if spec.tls is not None:
            spec.tls.server_context()
        elif not is_loopback(spec.listen):
            if not spec.insecure:
                raise InsecureListenError(spec.listen)
            _log.warning(
                "the broker listens on %s without encryption or authentication (--insecure): "
                "anyone on this network can read and forge messages",
                spec.listen or "all interfaces",
            )
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._broker_pid = 0
        self._watcher: asyncio.Task[None] | None = None

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
        if not bindable(self.spec.listen, 0):
            raise ListenAddressError(self.spec.listen, (LOOPBACK, *lan_addresses()))
        for attempt in range(PORT_ATTEMPTS):
            self._port = self._choose_port(first=attempt == 0)
            try:
                await self._launch()
            except BrokerStartError as exc:
                self.counters["failed_starts"] += 1
                if self.spec.port and not bindable(self.spec.listen, self.spec.port):
                    hint = "the port is in use; end who uses it, or give another --port"
                    raise BrokerStartError(self.kind, self._port, hint) from exc
                if self.spec.port or attempt == PORT_ATTEMPTS - 1:
                    raise
                _log.info("%s; trying another port", exc)
            else:
                break
        store_port(self.spec.data_dir, self.spec.name, self._port)
        self._watcher = asyncio.create_task(self._watch(), name=f"{self.spec.name}-watch")
        alone = is_loopback(self.spec.listen)
        _log.info(
            "%s broker at %s%s",
            self.kind,
            ", ".join(self._places()),
            ", for this machine alone (others: --listen 0.0.0.0)" if alone else "",
        )
        return self.address

    def _places(self) -> list[str]:
        """Return where others reach it; where we do if that is nowhere else."""
        try:
            hosts = reach(self.spec.listen, lan_addresses()).hosts
        except ValueError:  # a name
            hosts = ()
        own = self.address
        return [str(BrokerAddress(host, own.port, own.scheme)) for host in hosts] or [str(own)]

    async def stop(self) -> None:
        """End the broker and wait until it is gone. Idempotent."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None
        await self._end()

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
                except BrokerStartError as exc:
                    self.counters["failed_starts"] += 1
                    _log.error("%s; trying again", exc)
                    await asyncio.sleep(backoff.next())
                else:
                    backoff.reset()
                    break

    async def _launch(self) -> None:
        arguments = self._arguments()
        log = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            # A session of its own: Ctrl-C must reach us and not the broker.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _WRAPPER,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        ready = False
        try:
            async with asyncio.timeout(READY_S):
                ready = await self._ready(self._process)
        except TimeoutError as exc:
            raise BrokerStartError(self.kind, self._port, f"silent for {READY_S:.0f} s") from exc
        finally:
            if not ready:
                await self._end()
        if not ready:
            raise BrokerStartError(self.kind, self._port, self._last_words())

    async def _ready(self, process: asyncio.subprocess.Process) -> bool:
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line.strip().isdigit():
            return False
        self._broker_pid = int(line)
        while process.returncode is None:
            if await answers(self.address) and owns_port(self._broker_pid, self._port):
                return True
            await asyncio.sleep(0.02)
        return False

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

    def _arguments(self) -> list[str]:
        if self.kind == "mosquitto":
            program = mosquitto_program()
            assert program is not None
            text = mosquitto_config(
                listen=self.spec.listen,
                port=self._port,
                tls=self.spec.tls,
                max_packet_bytes=self.spec.max_packet_bytes,
            )
            path = self.spec.data_dir / f"{self.spec.name}.mosquitto.conf"
            write_private(path, text.encode())
            return ["mosquitto", program, str(path)]
        self.spec.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        tls = self.spec.tls
        config = {
            "host": self.spec.listen or "0.0.0.0",  # noqa: S104 - checked at construction
            "port": self._port,
            "max_packet_bytes": self.spec.max_packet_bytes,
            **(tls.as_text() if tls else {}),
        }
        return ["embedded", msgspec.json.encode(config).decode()]

    @property
    def _log_path(self) -> Path:
        return self.spec.data_dir / f"{self.spec.name}.log"

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = self._log_path.read_text("utf-8", errors="replace").strip().splitlines()
            if lines:
                return safe_text(lines[-1])
        return "it ended without a word"

    def _choose_port(self, *, first: bool) -> int:
        if self.spec.port:
            return self.spec.port
        stored = stored_port(self.spec.data_dir, self.spec.name) if first else 0
        return (
            stored if stored and bindable(self.spec.listen, stored) else free_port(self.spec.listen)
        )


def choose_kind(kind: str) -> Kind:
    """Return which broker ``auto`` means here; raises `BrokerMissingError`."""
    embedded = importlib.util.find_spec("amqtt") is not None
    if kind in {"auto", "mosquitto"} and mosquitto_program() is not None:
        return "mosquitto"
    if kind in {"auto", "embedded"} and embedded:
        return "embedded"
    hint = {
        "mosquitto": "install mosquitto, or choose --broker embedded",
        "embedded": how_to_add("edge"),
    }.get(kind, f"install mosquitto, or the embedded broker: {how_to_add('edge')}")
    raise BrokerMissingError(kind, hint)
