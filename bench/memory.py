"""Memory: an idle agent, and an edge with its broker while many updates come in.

Proportional set size (PSS), sampled every 20 ms; the figure is the highest sample
above the median of the idle time before the first order.

    python -m bench.memory                 # all rows
    python -m bench.memory --row slow-edge
"""

import argparse
import os
import secrets
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fedagent_testbed.local import LocalField, RoleProcess

from .rounds import RECIPE, SHAPES
from .rows import Rows, show

MIB = 1 << 20


@dataclass
class Sampler:
    """Samples the memory of processes in a thread."""

    groups: dict[str, list[psutil.Process]]
    samples: dict[str, list[int]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def now(self) -> dict[str, int]:
        return {
            name: sum(p.memory_full_info().pss for p in group)
            for name, group in self.groups.items()
        }

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            try:
                for name, value in self.now().items():
                    self.samples.setdefault(name, []).append(value)
            except psutil.NoSuchProcess:
                return


@contextmanager
def _field() -> Iterator[LocalField]:
    with tempfile.TemporaryDirectory(prefix="fedagent-bench-") as folder:
        local = LocalField(Path(folder), f"bench-{secrets.token_hex(4)}")
        local.defaults = {"log_level": "warning"}
        with local:
            yield local


def _idle_agent() -> dict[str, object]:
    with _field() as local:
        local.edge("edge-1")
        agents = [local.agent(f"agent-{i}", "digits:rate=1") for i in range(4)]
        for agent in agents:
            agent.wait("edge_joined")
        time.sleep(5)
        pss = [agent.pss_bytes() for agent in agents]
    value = statistics.median(pss) / 1e6
    return {"bench": "idle-agent", "pss_mb": round(value, 1), "bar": 60, "met": value <= 60}


def _updates(
    row: str, *, agents: int, size: str, bar_mb: float, group: str, slow: bool
) -> dict[str, object]:
    """Let `agents` updates come in at one edge for some rounds."""
    features, classes = SHAPES[size]
    sets = [f"model.features={features}", f"model.classes={classes}", "rounds.count=2"]
    sets += ["rounds.deadline_s=280", "rounds.max_wait_s=290"]
    with _field() as local:
        edge = local.edge("edge-1", broker="mosquitto")
        edge.wait("ready")
        coordinator = local.coordinator(
            RECIPE, broker="mosquitto", sets=sets, wait_agents=agents + 1
        )
        for i in range(agents):
            local.agent(f"agent-{i}", "digits:rate=1")
        _wait_joined(edge, agents)
        own = psutil.Process(edge.pid)
        broker = own.children(recursive=True)
        sampler = Sampler({"edge": [own], "broker": broker, "edge+broker": [own, *broker]})
        time.sleep(3)
        idle = sampler.now()
        sampler.start()
        brake = _Brake(own) if slow else None
        local.agent(f"agent-{agents}", "digits:rate=1")
        end = coordinator.wait("end", timeout_s=580)
        if brake:
            brake.stop()
        sampler.stop()
        used = [int(str(e["used"])) for e in coordinator.all("round")]
    peaks = {
        name: round((max(values) - idle[name]) / 1e6, 1) for name, values in sampler.samples.items()
    }
    above = peaks[group]
    lost = any(u != agents + 1 for u in used)
    return {
        "bench": row,
        "agents": agents + 1,
        "size": size,
        "idle_mb": round(idle[group] / 1e6, 1),
        "peak_above_idle_mb": above,
        "peaks_mb": peaks,
        "updates_used": used,
        "reason": end["reason"],
        "bar": bar_mb,
        "met": above <= bar_mb and not lost,
    }


class _Brake:
    """Stops a process for four fifths of the time: a slow machine."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.is_set():
            os.kill(self._process.pid, signal.SIGSTOP)
            self._done.wait(0.08)
            os.kill(self._process.pid, signal.SIGCONT)
            self._done.wait(0.02)


def _wait_joined(edge: RoleProcess, agents: int) -> None:
    deadline = time.monotonic() + 240
    while len({str(e["agent"]) for e in edge.all("agent_joined")}) < agents:
        if time.monotonic() > deadline:
            raise SystemExit(f"only {len(edge.all('agent_joined'))} of {agents} agents joined")
        time.sleep(0.1)


ROWS: dict[str, Callable[[], dict[str, object]]] = {
    "idle-agent": _idle_agent,
    "100-updates": lambda: _updates(
        "100-updates", agents=99, size="2.34MB", bar_mb=32, group="edge+broker", slow=False
    ),
    "slow-edge": lambda: _updates(
        "slow-edge", agents=19, size="25MB", bar_mb=64, group="broker", slow=True
    ),
}


def rows() -> Rows:
    return (row() for row in ROWS.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", choices=list(ROWS))
    chosen = parser.parse_args().row
    for name, row in ROWS.items():
        if chosen in (None, name):
            show([row()])


if __name__ == "__main__":
    main()
