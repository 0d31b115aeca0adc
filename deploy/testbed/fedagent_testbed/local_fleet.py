"""A fleet on this machine, watched until its run is over: under `fedagent demo` and `run_local`."""

import os
import queue
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from fedagent_protocol.errors import FedagentError

from .local import Event, LocalField, RoleProcess

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STALL_S = 120.0
"""How long nothing may happen while the coordinator waits, or beyond a round's longest wait."""
QUIET_S = 30.0
"""How often it is said what goes on where nothing else is."""
REFRESH_S = 0.15
_ANSWERS = ("update", "declined", "abandoned")
"""What a device says last of an order, as far as the training goes."""
QUEUE = 10_000


class FleetError(FedagentError):
    """Raised when a process of a fleet failed, or nothing happened for too long."""

    template = "{problem}"

    problem: str
    hint: str


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is to be started.

    Attributes:
        recipe: File of the run's recipe; `sets` are overrides, ``key.path=value``.
        directory: For logs, and a data directory for each process.
        agents: Settings by name, with a `stream`; as in the configuration file of an agent.
        edges: Settings by name.
        web: Serve the live page.
    """

    recipe: Path
    sets: tuple[str, ...]
    seed: int
    directory: Path
    agents: Mapping[str, Mapping[str, object]]
    edges: Mapping[str, Mapping[str, object]]
    max_wait_s: float
    web: bool = False


class LocalFleet(LocalField):
    """The processes of a fleet; leaving it ends them all, and so does a signal in `stopped`."""

    def __init__(self, fleet: Fleet, *, stopped: Callable[[], int]) -> None:
        self.first_round_at: float | None = None  # by our monotonic clock
        self._fleet, self._stopped = fleet, stopped
        self._events: queue.Queue[tuple[str, Event]] = queue.Queue(QUEUE)
        super().__init__(
            fleet.directory,
            f"local-{secrets.token_hex(6)}",
            defaults={"log_level": "info"},
            on_event=lambda process, event: self._events.put((process.name, event)),
        )
        self._moved_at = self._said_at = time.monotonic()
        self._waits: Event = {}
        self._training: set[str] = set()
        self._gone = {"coordinator"}

    def start_all(self) -> None:
        """Start everything at once."""
        fleet = self._fleet
        self.coordinator(
            fleet.recipe,
            sets=fleet.sets,
            seed=fleet.seed,
            wait_edges=len(fleet.edges),
            wait_agents=len(fleet.agents),
            no_web=not fleet.web,
        )
        for name, settings in fleet.edges.items():
            self.edge(name, **settings)
        # As many devices as cores, or more, would each take all of them.
        threads = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        for index, (name, settings) in enumerate(fleet.agents.items()):
            own = {"seed": fleet.seed * 1000 + index, **settings}
            self.agent(name, str(own.pop("stream")), environment=threads, **own)

    def watch(self) -> Iterator[tuple[str, Event] | None]:
        """Yield process and event as they come, and None a few times a second, to the run's end.

        A process that ends by itself says ``{"event": "exited", "code": N}``, and ``fleet`` in
        long rounds ``{"event": "progress", "text": ...}``.

        Raises:
            FleetError: The coordinator failed, another process did before the first round, or
                nothing happened for too long.
        """
        coordinator = self.processes["coordinator"]
        while coordinator.popen.poll() is None and not self._stopped():
            try:
                until = time.monotonic() + REFRESH_S
                while (left := until - time.monotonic()) > 0:
                    yield self._took(*self._events.get(timeout=left))
            except queue.Empty:
                pass
            yield from self._exits()
            yield from self._progress(time.monotonic())
            yield None
        if self._stopped():
            return
        code = coordinator.close()
        while not self._events.empty():
            yield self._took(*self._events.get())
        if code != 0:
            raise _fallen(coordinator, code)

    def kill(self, name: str) -> bool:
        """End a process with SIGKILL, as a power cut would; False if it had ended already."""
        process = self.processes[name]
        if process.popen.poll() is not None:
            return False
        self._gone.add(name)
        process.kill()
        return True

    def _took(self, name: str, event: Event) -> tuple[str, Event]:
        at, kind = float(str(event["at"])), event.get("event")
        said = {key: value for key, value in event.items() if key != "at"}
        if kind != "declined" and said != self._waits:
            self._moved_at = at
        if kind == "waiting":
            self._waits = said
        elif kind in ("ordered", "round"):
            self._waits = {}
        if kind == "ordered":
            self._training.add(name)
        elif kind in _ANSWERS:
            self._training.discard(name)
        if kind == "round":
            self.first_round_at, self._said_at = self.first_round_at or at, at
        return name, event

    def _exits(self) -> Iterator[tuple[str, Event]]:
        for process in self.processes.values():
            code = process.popen.poll()
            if code is None or process.name in self._gone:
                continue
            self._gone.add(process.name)
            self._training.discard(process.name)
            if self.first_round_at is None:
                raise _fallen(process, code)
            yield process.name, {"event": "exited", "code": code}

    def _progress(self, now: float) -> Iterator[tuple[str, Event]]:
        """Say what goes on; raise `FleetError` where nothing does. Who trains takes its time."""
        what = f"{len(self._training)} of {len(self._fleet.agents)} devices train"
        if not self._training:
            reason = str(self._waits.get("reason", "the round's end"))
            there, wanted = self._waits.get(reason), self._waits.get("wanted")
            what = f"waiting for {reason}" + (f": {there} of {wanted}" if wanted else "")
            limit = STALL_S if self._waits else STALL_S + self._fleet.max_wait_s
            if now - self._moved_at > limit:
                hint = f"read the logs in {self._fleet.directory}, or run `fedagent doctor`"
                raise FleetError(f"nothing has happened for {limit:.0f} s, {what}", hint)
        if now - self._said_at >= QUIET_S:
            self._said_at = now
            yield "fleet", {"event": "progress", "text": what}


def tidy(directory: Path, names: Iterable[str]) -> None:
    """Remove the data directories of these agents and edges; logs stay."""
    for name in names:
        shutil.rmtree(directory / name, ignore_errors=True)


@contextmanager
def remembered() -> Iterator[Callable[[], int]]:
    """Take the signals of `ENDING`, so that no clean-up is interrupted.

    Yields what returns the first that came, 0 before it.
    """
    seen: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    before = {number: signal.signal(number, remember) for number in ENDING}
    try:
        yield lambda: seen[0] if seen else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fallen(process: RoleProcess, code: int) -> FleetError:
    tail = process.log.read_text(errors="replace").strip().splitlines()
    return FleetError(
        f"{process.name} ended with exit code {code}: {tail[-1][:300] if tail else 'no log'}",
        f"see {process.log} and docs/exit-codes.md",
    )
