"""Wall clocks may be anything: centuries apart, and stepped in the middle of a round.

libfaketime gives each process a wall clock of its own; monotonic time stays what it is.
"""

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from .support import DEMO, PATIENT, check_books, labels, new_field

LIBRARY = next(Path("/usr/lib").rglob("faketime/libfaketime.so.1"), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(LIBRARY is None or not shutil.which("faketime"), reason="needs faketime"),
]
ROUNDS = 8


def at(folder: Path, who: str, offset: str) -> Mapping[str, str]:
    """Return the environment of a process whose clock is what its file says."""
    path = folder / f"clock-{who}"
    path.write_text(offset + "\n")
    return {
        **os.environ,
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(path),
        # To read its file at each look at the clock costs most of a process's time.
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


@pytest.mark.parametrize(
    ("clocks", "steps"),
    [
        pytest.param({"agent-0": "-400d", "agent-1": "-20000d"}, {}, id="no clock at boot"),
        pytest.param({"agent-0": "+30d", "agent-1": "+3650d"}, {}, id="ahead"),
        pytest.param({"edge": "+300s"}, {}, id="edge five minutes ahead"),
        pytest.param({}, {"agent-0": "+1h", "edge": "-1d"}, id="stepped in a round"),
        pytest.param({}, {"coordinator": "-1h"}, id="coordinator stepped back"),
    ],
)
def test_clocks_decide_nothing(
    tmp_path: Path, clocks: dict[str, str], steps: dict[str, str]
) -> None:
    sets = (f"rounds.count={ROUNDS}", "learner.steps=2", "learner.step_s=0.15", *PATIENT)
    config = {"recipe": str(DEMO), "broker": "embedded", "wait_agents": 2, "sets": list(sets)}
    roles: list[tuple[str, str, dict[str, object]]] = [
        ("coordinator", "coordinator", config),
        ("edge", "edge", {"broker": "embedded"}),
        ("agent", "agent-0", {"stream": labels(0), "price": {"base": 1.0, "per_compute": 0.0}}),
        ("agent", "agent-1", {"stream": labels(1), "price": {"base": 1.0, "per_compute": 0.0}}),
    ]
    with new_field(tmp_path) as field:
        for role, name, given in roles:
            clock = at(tmp_path, name, clocks.get(name, "+0"))
            field.start(role, name, given, environment=clock)
        coordinator = field.processes["coordinator"]
        coordinator.wait("round", round=2, timeout_s=60)
        for name, offset in steps.items():
            (tmp_path / f"clock-{name}").write_text(offset + "\n")
        began = time.monotonic()
        end = coordinator.wait("end", timeout_s=60)
        assert time.monotonic() - began < 30
        rounds = coordinator.all("round")
        assert [event["used"] for event in rounds[1:]] == [2] * (ROUNDS - 1)
        assert max(float(str(event["seconds"])) for event in rounds) < 10.0
        assert end["ledger_balanced"] is True
        coordinator.wait_exit()
    check_books(coordinator)
