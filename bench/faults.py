"""Die at every crash point of every role, with many seeds, in virtual time."""

import tempfile
import time
from pathlib import Path

from tests.world.test_kills import HERE, die_at

SEEDS = 20


def rows(seeds: int = SEEDS) -> dict[str, object]:
    """Return how many runs were lost, of how many; the first trouble is told."""
    began, kills, failed = time.monotonic(), 0, []
    for point in HERE:
        for seed in range(seeds):
            with tempfile.TemporaryDirectory(prefix="fedagent-faults-") as folder:
                try:
                    kills += die_at(Path(folder), point, 1 + seed % 2, seed)
                except AssertionError as error:
                    failed.append(f"{point} seed {seed}: {str(error)[:200]}")
    return {
        "bench": "faults",
        "points": len(HERE),
        "seeds": seeds,
        "runs": len(HERE) * seeds,
        "kills": kills,
        "violations": len(failed),
        "first": failed[:1],
        "seconds": round(time.monotonic() - began),
        "bar": 0,
        "met": not failed,
    }


if __name__ == "__main__":
    import json
    import sys

    sys.stdout.write(json.dumps(rows(int((sys.argv[1:] or [str(SEEDS)])[0]))) + "\n")
