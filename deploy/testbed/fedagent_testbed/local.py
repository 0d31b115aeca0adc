"""The local testbed: every role a real process, with real brokers, zeroconf on loopback and clocks.

Every process watches its standard input and ends when this one goes, however it goes.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from fedagent_node.process import piped

Event = dict[str, object]
MODULES = {role: f"fedagent_{role}" for role in ("agent", "edge", "coordinator")}
"""By their roles, in the order in which they are stopped."""
PATIENCE_S = 600.0
"""What takes longer hangs, on any machine."""
STOP_S = 60.0


class RoleProcess:
    """One role as a child process, and its events; each has ``at``, our monotonic clock."""

    def __init__(
        self,
        *,
        name: str,
        role: str,
        config: Mapping[str, object],
        log: Path,
        environment: Mapping[str, str] | None = None,
        prefix: Iterable[str] = (),
        on_event: Callable[["RoleProcess", Event], None] | None = None,
    ) -> None:
        self.name = name
        self.role = role
        self.config = dict(config)
        self.log = log
        self.events: list[Event] = []
        self._arrival = threading.Condition()
        self._on_event = on_event
        settings = piped(self.config)
        program = (sys.executable, "-m", MODULES[role], "--config", f"/dev/fd/{settings}")
        with log.open("ab") as stderr:
            self.popen = subprocess.Popen(
                [*prefix, *program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=None if environment is None else dict(environment),
                pass_fds=(settings,),
                # A Ctrl-C is for the one who started us: it ends the roles in its own order.
                start_new_session=True,
            )
        os.close(settings)
        self._reader = threading.Thread(target=self._read, name=f"read-{name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self.popen.pid

    def first(self, kind: str, **where: object) -> Event | None:
        """Return the first event of a kind with these values, if it has come."""
        for event in list(self.events):
            if event.get("event") == kind and all(event.get(k) == v for k, v in where.items()):
                return event
        return None

    def all(self, kind: str) -> list[Event]:
        """Return all events of a kind so far."""
        return [event for event in list(self.events) if event.get("event") == kind]

    def wait(self, kind: str, *, timeout_s: float = PATIENCE_S, **where: object) -> Event:
        """Wait for an event, or raise a `TimeoutError` with the end of the log."""
        deadline = time.monotonic() + timeout_s
        with self._arrival:
            while (event := self.first(kind, **where)) is None:
                left = deadline - time.monotonic()
                # A child may hold the pipe open longer than the process itself lives.
                if self.popen.poll() is not None:
                    deadline = min(deadline, time.monotonic() + 0.5)
                if left <= 0:
                    raise self._missed(f"{kind} {where}")
                self._arrival.wait(min(left, 0.5))
        return event

    def _missed(self, wanted: str) -> TimeoutError:
        code = self.popen.poll()
        state = "still runs" if code is None else f"ended with {code}"
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])
        return TimeoutError(
            f"{self.name} {state} and never emitted {wanted!r}; its log ends:\n{tail}"
        )

    def wait_exit(self, *, timeout_s: float = PATIENCE_S) -> int:
        """Wait until the process ends and all its events are read; return its code."""
        try:
            code = self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self._missed("exit") from None
        self._reader.join(STOP_S)
        return code

    def kill(self) -> None:
        """End the process with SIGKILL, as a power cut would."""
        self.popen.kill()
        self.popen.wait(STOP_S)

    def stop(self) -> int:
        """Ask the process to end, insist after a while; return its exit code."""
        self.popen.terminate()  # nothing if it has ended
        try:
            return self.close()
        except subprocess.TimeoutExpired:
            self.popen.kill()
            return self.close()

    def close(self) -> int:
        """Reap an ended process and close its pipes."""
        code = self.popen.wait(STOP_S)
        self._reader.join(STOP_S)
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()
        return code

    def cpu_seconds(self) -> float:
        """Return user and system time of the process itself so far."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def pss_bytes(self) -> int:
        """Return proportional memory of the process and its children."""
        own = psutil.Process(self.pid)
        family = [own, *own.children(recursive=True)]
        return sum(process.memory_full_info().pss for process in family)

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"event": "not-json", "line": line.decode(errors="replace")}
            event["at"] = time.monotonic()
            with self._arrival:
                self.events.append(event)
                self._arrival.notify_all()
            if self._on_event is not None:
                self._on_event(self, event)
        with self._arrival:
            self._arrival.notify_all()


@dataclass
class LocalField:
    """A coordinator, edges and agents as processes that find each other by zeroconf.

    `on_event` is called in a reader thread for every event of every process.
    """

    directory: Path
    site: str
    defaults: dict[str, object] = field(default_factory=dict)
    on_event: Callable[[RoleProcess, Event], None] | None = None
    processes: dict[str, RoleProcess] = field(default_factory=dict)

    def start(
        self,
        role: str,
        name: str,
        config: Mapping[str, object],
        *,
        environment: Mapping[str, str] | None = None,
        prefix: Iterable[str] = (),
    ) -> RoleProcess:
        """Start one role; the same name again reuses its data directory."""
        old = self.processes.get(name)
        if old is not None and old.popen.poll() is not None:
            old.close()
        data_dir = self.directory / name
        data_dir.mkdir(parents=True, exist_ok=True)
        full: dict[str, object] = {
            "data_dir": str(data_dir),
            "site": self.site,
            "name": name,
            "discovery": "loopback",
            "json_events": True,
            "watch_parent": True,
            **self.defaults,
            **config,
        }
        if role == "coordinator":
            full.pop("name")
        process = RoleProcess(
            name=name,
            role=role,
            config=full,
            log=self.directory / f"{name}.log",
            environment=environment,
            prefix=prefix,
            on_event=self.on_event,
        )
        self.processes[name] = process
        return process

    def coordinator(self, recipe: Path, name: str = "coordinator", **config: object) -> RoleProcess:
        """Start the coordinator for a recipe; it has a live page only if `web` says where."""
        page: dict[str, object] = {} if config.get("web") else {"no_web": True}
        return self.start("coordinator", name, {"recipe": str(recipe), **page, **config})

    def edge(self, name: str, **config: object) -> RoleProcess:
        """Start an edge aggregator."""
        return self.start("edge", name, config)

    def agent(
        self,
        name: str,
        stream: str,
        *,
        environment: Mapping[str, str] | None = None,
        **config: object,
    ) -> RoleProcess:
        """Start an agent on a stream; it asks for nothing unless it is given a price.

        The default price follows the free cores, so that a run would depend on the machine.
        """
        free = {"base": 0.0, "per_compute": 0.0}
        given = {"stream": stream, "price": free, **config}
        return self.start("agent", name, given, environment=environment)

    def close(self) -> None:
        """Stop everything: agents first, the coordinator last."""
        order = list(MODULES)
        processes = sorted(self.processes.values(), key=lambda process: order.index(process.role))
        for process in processes:
            process.popen.terminate()
        for process in processes:
            process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave no process behind."""
        self.close()
