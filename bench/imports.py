"""What `import fedagent` costs in a fresh interpreter: ``python -m bench imports``.

Seconds of the statement alone, median of processes; what it loads is asserted in
tests/python/test_import.py.
"""

import statistics
import subprocess
import sys

from .rows import Rows

LOOK = """
import time
began = time.perf_counter()
import fedagent
print(time.perf_counter() - began)
"""
BAR_S = 0.05
TIMES = 11


def rows() -> Rows:
    """Return the one figure."""
    took = [
        float(
            subprocess.run(
                [sys.executable, "-c", LOOK], capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(TIMES)
    ]
    median = statistics.median(took)
    yield {
        "bench": "imports",
        "times": TIMES,
        "seconds": round(median, 4),
        "slowest_s": round(max(took), 4),
        "bar": BAR_S,
        "met": median < BAR_S,
    }
