"""What must survive, with many seeds in virtual time, and with real processes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SEEDS = 20


def run() -> dict[str, object]:
    """Run the survival tests with all their seeds; a failure names its seed."""
    tests = ["tests/testbed", "tests/e2e/test_survival.py", "tests/e2e/test_hostile.py"]
    command = [sys.executable, "-m", "pytest", "-q", f"--seeds={SEEDS}", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return {"bench": "survival", "seeds": SEEDS, "result": lines[-1], "met": done.returncode == 0}
