"""Seconds per round of Flower, with no training: the same model sizes as `bench.rounds`.

A deployment (not the simulation engine) on loopback. Prints one JSON object per case;
the rounds are stamped on the server's side, after Flower's own FedAvg has averaged.

    python -m bench.peers.flower_rounds                     # every case of the table
    python -m bench.peers.flower_rounds --size 22KB --agents 4 --rounds 4
"""

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Never

import msgspec
import psutil

from bench.peers import process_tree
from bench.peers.flower_field import FlowerField, PeerError, install
from bench.peers.tether import adopt_orphans

DEFAULT_ENV = Path(__file__).parent.parent / ".peers" / "flower"
SHAPES = {"22KB": (549, 10), "2.34MB": (58_499, 10), "25MB": (62_499, 100)}
ROUNDS = {"22KB": 8, "2.34MB": 6, "25MB": 5}
START_LIMIT_S = 120.0
ROUND_LIMIT_S = 90.0
LOOK_S = 0.25
IDLE_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    size: str
    agents: int
    rounds: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of the model: float32 weights and one bias per class."""
        features, classes = SHAPES[self.size]
        return 4 * (features + 1) * classes


class Stamp(msgspec.Struct, frozen=True):
    """The end of one round as the server app saw it; round 0 is the start."""

    round: int
    at: float
    replies: int
    weight: float


@dataclass(slots=True)
class Watch:
    """What is read off the processes while the rounds run."""

    stamps: list[Stamp]
    cpu_first: list[float]
    cpu_last: list[float]
    server_peak_pss_bytes: int


def measure(case: Case, env: Path, version: str) -> dict[str, object]:
    """Run one deployment through one case and return its figures.

    Raises:
        PeerError: It does not start, does not finish in time, or loses an update.
    """
    features, classes = SHAPES[case.size]
    with tempfile.TemporaryDirectory(prefix="fedagent-peer-", ignore_cleanup_errors=True) as folder:
        field = FlowerField(env, Path(folder), case.agents)
        try:
            began = time.monotonic()
            field.start()
            run = field.submit({"rounds": case.rounds, "features": features, "classes": classes})
            watch = _watch(field, run, case)
            _check(watch.stamps, case)
            idle = [process_tree.pss_bytes(node) for node in _when_idle(field.nodes)]
        finally:
            field.stop()
    first, *later = (b.at - a.at for a, b in zip(watch.stamps, watch.stamps[1:], strict=False))
    cpu = [b - a for a, b in zip(watch.cpu_first, watch.cpu_last, strict=True)]
    return {
        "peer": "flower",
        "version": version,
        "case": {**asdict(case), "payload_bytes": case.payload_bytes},
        "seconds_per_round": {
            "median": round(statistics.median(later), 3),
            "min": round(min(later), 3),
            "max": round(max(later), 3),
            "first": round(first, 3),
        },
        "seconds_to_first_round": round(watch.stamps[1].at - began, 2),
        "node_cpu_seconds_per_round": round(statistics.median(cpu) / (case.rounds - 1), 3),
        "node_idle_pss_bytes": int(statistics.median(idle)),
        "server_peak_pss_bytes": watch.server_peak_pss_bytes,
    }


def _watch(field: FlowerField, run: psutil.Popen, case: Case) -> Watch:
    """Wait for every round; take the nodes' processor time after the first and the last."""
    assert field.server is not None
    watch = Watch([], [], [], 0)
    end = time.monotonic() + START_LIMIT_S + ROUND_LIMIT_S * case.rounds
    while len(watch.stamps) <= case.rounds:
        if time.monotonic() > end:
            log = field.log_tail("superlink")
            raise PeerError(f"{len(watch.stamps)} of {case.rounds + 1} stamps in time:\n{log}")
        field.check(run)
        watch.stamps = _read(field.stamps)
        if len(watch.stamps) >= 2 and not watch.cpu_first:
            watch.cpu_first = [process_tree.cpu_seconds(node) for node in field.nodes]
        pss = process_tree.pss_bytes(field.server)
        watch.server_peak_pss_bytes = max(watch.server_peak_pss_bytes, pss)
        time.sleep(LOOK_S)
    watch.cpu_last = [process_tree.cpu_seconds(node) for node in field.nodes]
    return watch


def _read(path: Path) -> list[Stamp]:
    if not path.exists():
        return []
    text = path.read_text("utf-8")
    whole = text[: text.rfind("\n") + 1]
    return [msgspec.json.decode(line, type=Stamp) for line in whole.splitlines()]


def _check(stamps: list[Stamp], case: Case) -> None:
    """Refuse figures of a run that lost an update: each round adds one to every weight."""
    for number, stamp in enumerate(stamps):
        replies = case.agents if number else 0
        if (stamp.round, stamp.replies) != (number, replies) or abs(stamp.weight - number) > 1e-3:
            raise PeerError(f"round {number}: not what {case.agents} clients send: {stamp}")


def _when_idle(nodes: list[psutil.Popen]) -> list[psutil.Popen]:
    """Wait until no node runs a client app any more."""
    end = time.monotonic() + IDLE_LIMIT_S
    while any(process_tree.busy(node) for node in nodes):
        if time.monotonic() > end:
            raise PeerError(f"the nodes are still busy {IDLE_LIMIT_S:.0f} s after the last round")
        time.sleep(LOOK_S)
    return nodes


def _exit_on_signal(number: int, frame: FrameType | None) -> Never:
    del frame
    sys.exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", type=Path, default=DEFAULT_ENV, help="the peer's environment")
    parser.add_argument("--size", choices=list(SHAPES))
    parser.add_argument("--agents", type=int)
    parser.add_argument("--rounds", type=int, help="2 or more; the first is not in the median")
    chosen = parser.parse_args()
    if chosen.rounds is not None and chosen.rounds < 2:
        parser.error("--rounds: 2 or more, since the first round is not in the median")
    signal.signal(signal.SIGTERM, _exit_on_signal)
    adopt_orphans()
    sizes = [chosen.size] if chosen.size else list(SHAPES)
    agents = [chosen.agents] if chosen.agents else [10, 4]
    try:
        version = install(chosen.env)
        for case in (Case(s, n, chosen.rounds or ROUNDS[s]) for n in agents for s in sizes):
            print(json.dumps(measure(case, chosen.env, version)), flush=True)
    except PeerError as exc:
        sys.exit(str(exc))


if __name__ == "__main__":
    main()
