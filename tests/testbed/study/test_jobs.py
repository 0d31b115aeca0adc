"""Processes of a comparison: they end with their parent, and one that is killed is an error."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fedagent_testbed.study.jobs import WorkerLostError, pool_of

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

PATIENCE_S = 600.0
LONG_RUNS = """
import os, time
from fedagent_testbed.study.jobs import pool_of

def work(folder):
    open(f"{folder}/{os.getpid()}", "x").close()
    time.sleep(600)

if __name__ == "__main__":
    with pool_of(2) as pool:
        for _ in range(2):
            pool.submit(work, os.path.dirname(__file__) + "/pids")
        while len(os.listdir("pids")) < 2:
            time.sleep(0.02)
        print("busy", flush=True)
        time.sleep(600)
"""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_a_typed_error() -> None:
    with pytest.raises(WorkerLostError, match="--jobs"), pool_of(2) as pool:
        pool.submit(die).result()  # type: ignore[union-attr,arg-type] # there is one, for any job


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    script = tmp_path / "runs.py"
    script.write_text(LONG_RUNS)
    with subprocess.Popen(
        [sys.executable, str(script)], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        workers = [psutil.Process(int(path.name)) for path in (tmp_path / "pids").iterdir()]
        process.kill()
    _, alive = psutil.wait_procs(workers, timeout=PATIENCE_S)
    assert not alive
