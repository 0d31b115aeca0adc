"""LinUCB side by side: MABWiser, contextualbandits and ours, a thousand arms.

    python -m bench.peers.bandits

The peers run a number of rounds that fits a minute; their cost per round does not change
with the round. Ours runs all 1000.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from fedagent_coordinator.policies.linucb import LinearArms

HERE = Path(__file__).parent
FOLDER = HERE.parent / ".peers" / "bandits"
ARMS, ROUNDS, SIZE = 1000, 1000, 5
PEER_ROUNDS = 100
BARS = {"mabwiser": 500, "contextualbandits": 250}


def install() -> Path:
    """Make the peers' environment, unless it is there; return its Python."""
    python = FOLDER / "bin" / "python"
    wanted = (HERE / "bandit-requirements.txt").read_text("utf-8")
    done = FOLDER / "installed.txt"
    if not done.exists() or done.read_text("utf-8") != wanted:
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(FOLDER)],
            [
                str(python),
                "-m",
                "pip",
                "install",
                "-q",
                "-r",
                str(HERE / "bandit-requirements.txt"),
            ],
        ):
            subprocess.run(command, check=True, stdout=sys.stderr, timeout=900)
        done.write_text(wanted, "utf-8")
    return python


def ours() -> float:
    """Return our seconds per round, the median of three runs after a warm-up."""
    rng = np.random.default_rng(0)
    contexts, rewards = rng.random((ROUNDS, SIZE)), rng.random(ROUNDS)
    every = np.arange(ARMS)

    def run(rounds: int) -> float:
        arms = LinearArms(SIZE, 1.0).grown(ARMS)
        began = time.perf_counter()
        for t in range(rounds):
            shared = np.broadcast_to(contexts[t], (ARMS, SIZE))
            best = int(arms.upper(every, shared, 1.0).argmax())
            arms.learn(np.array([best]), contexts[t : t + 1], rewards[t : t + 1])
        return (time.perf_counter() - began) / rounds

    run(2)
    return statistics.median(run(ROUNDS) for _ in range(3))


def main() -> None:
    python = install()
    command = [str(python), str(HERE / "bandit_rounds.py"), str(ARMS), str(PEER_ROUNDS), str(SIZE)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    mine = ours()
    for line in done.stdout.splitlines():
        ((peer, theirs),) = json.loads(line).items()
        ratio = theirs / mine
        row = {
            "bench": "linucb",
            "peer": peer,
            "arms": ARMS,
            "features": SIZE,
            "peer_s_per_1000_rounds": round(1000 * theirs, 2),
            "ours_s_per_1000_rounds": round(1000 * mine, 4),
            "ratio": round(ratio),
            "bar": BARS[peer],
            "met": ratio >= BARS[peer],
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
