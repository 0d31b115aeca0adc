"""Loops that are not compiled yet hold up no task: numpy learns while a process compiles."""

import fcntl
import json
import logging
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fedagent_agent.learners import strsaga
from fedagent_agent.learners.strsaga_loops import compiled
from fedagent_agent.trainer.frames import Open, Opened
from fedagent_agent.trainer.training import Trainer
from fedagent_task.recipe.text import parse_recipe, task_bytes

pytestmark = pytest.mark.skipif(compiled() is None, reason="numba is not installed")

ROOT = Path(__file__).parents[3]
RECIPE = (ROOT / "deploy" / "recipes" / "demo.toml").read_text()
TASK = task_bytes(parse_recipe(RECIPE, ("learner.name=strsaga", "learner.rate=0.01")))

_OPENS = """
import json, sys
from fedagent_agent.trainer.frames import Open
from fedagent_agent.trainer.training import Trainer
trainer = Trainer(lambda job, wait: False)
trainer.answer(Open(job=1, task=sys.stdin.buffer.read(), stream="digits", seed=1))
print(json.dumps(["numba" in sys.modules, trainer._open.learner._loops is not None]))
"""


@pytest.fixture(autouse=True)
def nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(strsaga, "_started", [])


def _opened() -> list[bool]:
    """Return whether a new trainer loaded numba, and whether its learner uses it."""
    command = (sys.executable, "-c", _OPENS)
    done = subprocess.run(command, input=TASK, capture_output=True, timeout=600, check=True)
    said: list[bool] = json.loads(done.stdout)
    return said


def test_a_task_that_finds_no_compiled_loops_is_opened_in_numpy(tmp_path: Path) -> None:
    assert _opened() == [False, False]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_what_is_compiled_is_used_as_long_as_it_is_true(tmp_path: Path) -> None:
    # Not by the module itself, which stays behind everything else on a machine that is busy.
    code = "from fedagent_agent.learners import strsaga; strsaga.compile_all()"
    subprocess.run((sys.executable, "-c", code), timeout=600, check=True)
    kept = set(tmp_path.rglob("*.nbc"))
    assert kept
    assert _opened() == [True, True]
    assert set(tmp_path.rglob("*.nbc")) == kept
    (marker,) = tmp_path.glob("*.ready")
    marker.rename(marker.with_stem("fedagent-strsaga.of-another-numba"))
    assert _opened() == [False, False]


def test_one_process_compiles_for_all_agents_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(strsaga, "compiled", lambda: asked.append(True))
    with strsaga.marker().with_suffix(".lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        strsaga.compile_all()
        assert not asked
    strsaga.compile_all()
    assert asked


def test_one_process_is_started_that_stays_behind_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(strsaga.VARIABLE)
    caplog.set_level(logging.INFO)
    trainer = Trainer(lambda job, wait: False)
    try:
        for job in (1, 2):
            opened = trainer.answer(Open(job=job, task=TASK, stream="digits", seed=1))
            assert isinstance(opened, Opened)
        (process,) = strsaga._started
        found = psutil.Process(process.pid)
        until = time.monotonic() + 600
        while found.nice() != 19 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        assert found.nice() == 19
        assert [line.levelname for line in caplog.records if "strsaga" in line.message] == ["INFO"]
    finally:
        trainer.close()
        for process in strsaga._started:
            process.kill()
            process.wait()
