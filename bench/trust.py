"""What signatures and TLS cost: seconds per round against a tree without them, side by side.

Every case runs in turn in this tree, and with TLS between members of a site, and in the other
tree, so that what else the machine does falls on all of them. The figure is the ratio of medians.

    python -m bench.trust --against TREE          # with its own .venv; before version 3
    python -m bench.trust --against TREE --times 5 --case 22KB
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from .rows import show

BARS = {"22KB": 1.5, "2.34MB": 1.3}
AGENTS = 10


def seconds(case: str, broker: str, *, tree: Path | None = None, secure: bool = False) -> float:
    """Return the seconds per round of one run, in a process of its own."""
    python = sys.executable if tree is None else str(tree / ".venv" / "bin" / "python")
    command = [python, "-m", "bench.rounds", "--case", case, "--agents", str(AGENTS)]
    command += ["--broker", broker, *(["--secure"] if secure else [])]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["updates_used"] == [AGENTS], found
    return float(found["seconds_per_round"])


def measure(case: str, broker: str, against: Path, times: int) -> dict[str, object]:
    """Run one case `times` times in each way, in turn."""
    ways = {"plain": against, "signed": None, "signed_tls": None}
    runs: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(times):
        for way, tree in ways.items():
            runs[way].append(seconds(case, broker, tree=tree, secure=way == "signed_tls"))
    medians = {way: statistics.median(each) for way, each in runs.items()}
    ratios = {f"{way}_ratio": round(medians[way] / medians["plain"], 3) for way in list(ways)[1:]}
    return {
        "bench": "trust",
        "size": case,
        "agents": AGENTS,
        "broker": broker,
        "times": times,
        **{way: round(value, 5) for way, value in medians.items()},
        **ratios,
        "bar": BARS[case],
        "met": ratios["signed_tls_ratio"] <= BARS[case],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, required=True)
    parser.add_argument("--case", choices=list(BARS))
    parser.add_argument("--broker", choices=["mosquitto", "embedded"])
    parser.add_argument("--times", type=int, default=3)
    chosen = parser.parse_args()
    for case in BARS:
        for broker in ("mosquitto", "embedded"):
            if chosen.case in (None, case) and chosen.broker in (None, broker):
                show([measure(case, broker, chosen.against.resolve(), chosen.times)])


if __name__ == "__main__":
    main()
