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

from fedagent_testbed.study.jobs import WorkerLostError, pool_of

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

LONG = "rounds.count=200000"
PATIENCE_S = 600.0


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_a_typed_error() -> None:
    with pytest.raises(WorkerLostError, match="--jobs"), pool_of(2) as pool:
        pool.submit(die).result()  # type: ignore[union-attr,arg-type] # there is one, for any job


@contextmanager
def comparing(folder: Path) -> "Iterator[subprocess.Popen[str]]":
    """Run a comparison that takes minutes, on two processes, as a console script does."""
    script = folder / "fedagent"
    script.write_text(
        "import sys\nfrom fedagent_cli.__main__ import main\n"
        "if __name__ == '__main__':\n    sys.exit(main())\n"
    )
    arguments = ("compare", "cocs-decisions", "--policies", "random,cheapest", "--seeds", "2")
    process = subprocess.Popen(
        [sys.executable, str(script), "testbed", *arguments, "--jobs", "2", "--set", LONG],
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


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    with comparing(tmp_path) as process:
        found = busy(process)
        process.kill()
        process.wait(PATIENCE_S)
        gone, alive = psutil.wait_procs(found, timeout=PATIENCE_S)
        assert not alive, gone
