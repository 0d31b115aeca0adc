"""Processes of a comparison: they end with their parent, at Ctrl-C, and never half way."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from fedagent_testbed.study.jobs import WorkerLostError, run_tasks, workers

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

LONG = "rounds.count=200000"
PATIENCE_S = 600.0


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def deafness(*_: object) -> tuple[bool, bool]:
    """Return whether Ctrl-C was held back before this process ran a line, and is since."""
    blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return blocked, signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_worker_is_deaf_to_ctrl_c_from_its_first_moment() -> None:
    before = deafness()
    two = [(None, "random", 0)] * 2
    found: object = run_tasks(deafness, two, jobs=2, pool=None, done=lambda *_: None)  # type: ignore[arg-type]
    assert found == [(True, True)] * 2
    assert deafness() == before == (False, False)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_a_typed_error() -> None:
    with pytest.raises(WorkerLostError, match="--jobs"), workers(1) as pool:
        pool.submit(die).result()


def test_an_error_ends_running_jobs_at_once() -> None:
    def broken() -> None:
        with workers(2) as pool:
            pool.submit(os.getpid).result()
            pool.submit(time.sleep, 1000.0)
            raise KeyError

    with pytest.raises(KeyError):
        broken()


@contextmanager
def comparing(folder: Path) -> "Iterator[subprocess.Popen[str]]":
    """Run a comparison that takes minutes, on two processes, as a console script does."""
    script = folder / "fedagent"
    script.write_text(
        "import sys\nfrom fedagent_cli.__main__ import main\n"
        "if __name__ == '__main__':\n    sys.exit(main())\n"
    )
    here = folder / "here"
    here.mkdir(exist_ok=True)
    arguments = ("compare", "cocs-decisions", "--policies", "random,cheapest", "--seeds", "2")
    process = subprocess.Popen(
        [sys.executable, str(script), "testbed", *arguments, "--jobs", "2", "--set", LONG],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)


def spawned(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Return the workers; other children come and go."""
    found = []
    for child in psutil.Process(process.pid).children():
        with suppress(psutil.Error):
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


def busy(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Return the workers, once both of them compute."""

    def computing() -> bool:
        assert process.poll() is None, process.communicate()[1]
        found = spawned(process)
        return len(found) == 2 and all(child.cpu_times().user > 1.5 for child in found)

    until(computing)
    return spawned(process)


@pytest.mark.parametrize(
    "sign", [pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL]
)
def test_workers_end_with_their_parent(tmp_path: Path, sign: signal.Signals) -> None:
    # The current folder is not where workers import from.
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "types.py").write_text("raise SystemExit('the wrong types')\n")
    with comparing(tmp_path) as process:
        found = busy(process)
        process.send_signal(sign)
        process.wait(PATIENCE_S)
        gone, alive = psutil.wait_procs(found, timeout=PATIENCE_S)
        assert not alive, gone


@pytest.mark.parametrize("early", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_ctrl_c_is_one_line_and_an_end(tmp_path: Path, early: bool) -> None:
    with comparing(tmp_path) as process:
        if early:
            until(lambda: spawned(process))
        else:
            busy(process)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert len(errors.splitlines()) <= 1, errors
