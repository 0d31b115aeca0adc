"""Eight devices that start over two minutes: does every one of them take part?

Types the quickstart's lines as they stand, eight times the last one, and reads
`fedagent devices` when the run is over. It finds its peers by zeroconf like anybody else, so
give it a network of its own:

    unshare --net sh -c 'ip link set lo up && python -m bench.latecomers'
    ... python -m bench.latecomers --coordinator 'coordinator start --recipe digits'   # no wait
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLI = (sys.executable, "-m", "fedagent_cli")
COORDINATOR = "coordinator start --recipe digits --wait-agents 8"
EDGE = "edge start --name hall"
AGENT = "start --name {name} --stream digits"


def field(coordinator: str, agents: int, over_s: float, home: Path) -> dict[str, object]:
    """Run one field to its end; return how often each device was ordered."""
    environment = {**os.environ, "FEDAGENT_HOME": str(home)}
    running: list[subprocess.Popen[bytes]] = []

    def start(line: str) -> subprocess.Popen[bytes]:
        with (home / f"{len(running)}.log").open("wb") as log:
            process = subprocess.Popen(
                [*CLI, *line.split()], stdout=log, stderr=log, env=environment
            )
        running.append(process)
        return process

    began = time.monotonic()
    try:
        first = start(coordinator)
        start(EDGE)
        for i in range(agents):
            time.sleep(max(0.0, began + i * over_s / (agents - 1) - time.monotonic()))
            start(AGENT.format(name=f"device-{i + 1}"))
        first.wait(timeout=3600)
    finally:
        for process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait(timeout=30)
    seconds = time.monotonic() - began
    shown = [
        json.loads(
            subprocess.run(
                [*CLI, command, "--json"], env=environment, capture_output=True, check=True
            ).stdout
        )
        for command in ("devices", "status")
    ]
    ordered = {str(device["label"]): device["ordered"] for device in shown[0]["devices"]}
    return {
        "typed": coordinator,
        "rounds": shown[1]["rounds_done"],
        "seconds": round(seconds, 1),
        "accuracy": shown[1]["accuracy"],
        "ordered": dict(sorted(ordered.items())),
        "all_took_part": len(ordered) == agents and min(ordered.values()) > 0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.latecomers", description=__doc__)
    parser.add_argument("--coordinator", default=COORDINATOR)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--over", type=float, default=120.0, help="seconds until the last starts")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedagent-latecomers-") as home:
        found = field(given.coordinator, given.agents, given.over, Path(home))
    print(json.dumps(found))
    return 0 if found["all_took_part"] else 1


if __name__ == "__main__":
    sys.exit(main())
