"""Failpoints: silent unless asked, and deadly exactly then."""

import os
import subprocess
import sys

import pytest

from fedagent_protocol.failpoints import VARIABLE

PROGRAM = """
from fedagent_protocol.failpoints import hit
for name in ("one", "two", "one", "one"):
    print(name, flush=True)
    hit(name)
"""


def _run(value: str | None) -> tuple[int, list[str]]:
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE}
    if value is not None:
        environment[VARIABLE] = value
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=False
    )
    return done.returncode, done.stdout.decode().split()


@pytest.mark.parametrize(
    ("value", "code", "lines"),
    [
        (None, 0, 4),
        ("other:kill", 0, 4),
        ("one:kill", -9, 1),
        ("one:kill@2", -9, 3),
        ("other:kill,two:kill", -9, 2),
    ],
)
def test_a_process_dies_at_the_named_hit(value: str | None, code: int, lines: int) -> None:
    returncode, said = _run(value)
    assert (returncode, len(said)) == (code, lines)
