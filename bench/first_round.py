"""From nothing to the first round with a small network of one's own: fedagent and Flower.

The same model, data, learner and three clients: `bench/first/fedagent` and `bench/first/flower`,
each as short as we could write it. Counted are the lines that are no comment and not empty, the
commands, and the seconds from typing the (last) command to the end of the first round; neither
installs anything meanwhile. Flower runs in its simulation engine, on Ray, in an environment of
its own that has torch; fedagent's devices are processes that find each other.

    python -m bench.first_round --flower ENV [--times 3]     # ENV has flwr[simulation] and torch
    python -m bench.first_round                              # fedagent alone
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from fedagent_task.readers.binary import DIGITS

HERE = Path(__file__).parent / "first"
LIMIT_S = 180.0


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to the first round."""

    name: str
    files: tuple[str, ...]
    command: str
    first_round: str  # what is printed when it is done

    @property
    def lines(self) -> int:
        """Lines that a person writes."""
        texts = [(HERE / self.name / file).read_text("utf-8") for file in self.files]
        every = [line.strip() for text in texts for line in text.splitlines()]
        return sum(bool(line) and not line.startswith(("#", '"""')) for line in every)


FEDAGENT = Contestant("fedagent", ("digits.py",), "python digits.py", "round 1/1 ")
FLOWER = Contestant(
    "flower",
    ("app.py", "pyproject.toml"),
    "flwr run . --stream --federation-config num-supernodes=3 --run-config 'digits=\"{digits}\"'",
    "aggregate_train: Received 3 results",
)


def seconds(one: Contestant, binaries: Path) -> dict[str, float]:
    """Return the seconds to the first round, and to the end.

    Raises:
        RuntimeError: It did not come to a first round, or not in time.
    """
    with tempfile.TemporaryDirectory(prefix="first-round-") as made:
        folder = Path(made) / "project"
        shutil.copytree(HERE / one.name, folder)
        digits = shutil.copy(DIGITS, folder / "digits.npz")
        words = shlex.split(one.command.format(digits=digits))
        began = time.monotonic()
        process = subprocess.Popen(
            [str(binaries / words[0]), *words[1:]],
            cwd=folder,
            env=_environment(binaries, Path(made)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        shown, first = [], 0.0
        try:
            for line in process.stdout:
                shown.append(line)
                if one.first_round in line and not first:
                    first = time.monotonic() - began
                if time.monotonic() - began > LIMIT_S:
                    break
            code = process.wait(10)
        finally:
            _end(process, Path(made))
        if code or not first:
            raise RuntimeError(f"{one.name} ended with {code}:\n{''.join(shown[-20:])}")
        return {"first_round": first, "end": time.monotonic() - began}


def _environment(binaries: Path, home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "FLWR_HOME": str(home / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _end(process: "subprocess.Popen[str]", home: Path) -> None:
    """End what was started: Flower's SuperLink goes on after its command."""
    import psutil

    mine = [p for p in psutil.process_iter(["environ"]) if _is_of(p, home)]
    for one in mine:
        if one.pid != os.getpid():
            one.send_signal(signal.SIGTERM)
    psutil.wait_procs(mine, 5)
    if process.poll() is None:
        process.kill()
        process.wait()


def _is_of(process: object, home: Path) -> bool:
    environment = getattr(process, "info", {}).get("environ") or {}
    return bool(environment.get("FLWR_HOME") == str(home / "flower"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flower", type=Path, help="an environment with flwr[simulation], torch")
    parser.add_argument("--times", type=int, default=3)
    chosen = parser.parse_args()
    own = Path(sys.executable).parent
    runs = [(FEDAGENT, own)]
    if chosen.flower is not None:
        runs.append((FLOWER, chosen.flower.absolute() / "bin"))
    taken: dict[str, list[dict[str, float]]] = {one.name: [] for one, _ in runs}
    for _ in range(chosen.times):
        for one, binaries in runs:  # in turns, so that both meet the same load
            taken[one.name].append(seconds(one, binaries))
    for one, _ in runs:
        medians = {
            key: round(statistics.median(run[key] for run in taken[one.name]), 1)
            for key in ("first_round", "end")
        }
        record = {"name": one.name, "files": len(one.files), "lines": one.lines, "commands": 1}
        print(json.dumps({**record, "times": chosen.times, "seconds": medians}), flush=True)


if __name__ == "__main__":
    main()
