"""What signatures and TLS cost: seconds per round against a field without them, side by side.

Every case runs in turn without signatures (`unsigned/`: messages of the same lengths), as it is,
and with TLS between members of a site, so that what else the machine does falls on all of them.
The figure is the ratio of medians.

    python -m bench.trust
    python -m bench.trust --times 5 --case 22KB
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from .rows import show

BARS = {"22KB": 1.5, "2.34MB": 1.3}
AGENTS = 10
UNSIGNED = Path(__file__).parent / "unsigned"


def one_run(
    case: str, broker: str, *, signed: bool = True, secure: bool = False
) -> tuple[float, float]:
    """Return seconds and processor milliseconds per round of one run, in processes of its own."""
    command = [sys.executable, "-m", "bench.rounds", "--case", case, "--agents", str(AGENTS)]
    command += ["--broker", broker, *(["--secure"] if secure else [])]
    here = [] if signed else [str(UNSIGNED)]
    path = os.pathsep.join([*here, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["updates_used"] == [AGENTS], found
    return float(found["seconds_per_round"]), float(found["cpu_ms_per_round"])


def measure(case: str, broker: str, times: int) -> dict[str, object]:
    """Run one case `times` times in each way, in turn."""
    ways = {"plain": {"signed": False}, "signed": {}, "signed_tls": {"secure": True}}
    runs: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(times):
        for way, options in ways.items():
            runs[way].append(one_run(case, broker, **options))
    medians = {way: np.median(each, axis=0) for way, each in runs.items()}
    of_plain = {way: (medians[way] / medians["plain"]).round(3).tolist() for way in list(ways)[1:]}
    ratios = {f"{way}_ratio": seconds for way, (seconds, _) in of_plain.items()}
    ratios |= {f"{way}_cpu_ratio": cpu for way, (_, cpu) in of_plain.items()}
    return {
        "bench": "trust",
        "size": case,
        "agents": AGENTS,
        "broker": broker,
        "times": times,
        **{way: round(float(value[0]), 5) for way, value in medians.items()},
        **{f"{way}_cpu_ms": float(value[1]) for way, value in medians.items()},
        **ratios,
        "bar": BARS[case],
        "met": ratios["signed_tls_ratio"] <= BARS[case],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=list(BARS))
    parser.add_argument("--broker", choices=["mosquitto", "embedded"])
    parser.add_argument("--times", type=int, default=3)
    chosen = parser.parse_args()
    for case in BARS:
        for broker in ("mosquitto", "embedded"):
            if chosen.case in (None, case) and chosen.broker in (None, broker):
                show([measure(case, broker, chosen.times)])


if __name__ == "__main__":
    main()
