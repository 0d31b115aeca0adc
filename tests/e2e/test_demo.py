"""`fedagent demo` as a person runs it: real processes, brokers and zeroconf."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

SMALL = ("--agents", "4", "--edges", "2", "--json", "--rounds", "500")


class Running:
    """A demo in a process of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        where = ("--dir", str(directory))
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "fedagent_cli", "demo", *where, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, kind: str) -> dict[str, object]:
        """Read events until one of a kind comes."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            event = json.loads(line)
            assert isinstance(event, dict)
            if event.get("event") == kind:
                return event
        raise AssertionError(f"never said {kind}: {self.rest(1)}")

    def rest(self, code: int) -> list[dict[str, object]]:
        """Read the remaining lines, and wait for the end with an exit code."""
        out, err = self.popen.communicate(timeout=600)
        assert self.popen.returncode == code, err
        assert "Traceback" not in err
        return [json.loads(line) for line in out.splitlines()]

    def family(self) -> list[psutil.Process]:
        """Return the demo's living descendants."""
        return psutil.Process(self.popen.pid).children(recursive=True)


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[list[Running]]:
    started: list[Running] = []
    yield started
    for demo in started:
        if demo.popen.poll() is None:
            os.killpg(demo.popen.pid, signal.SIGKILL)
        demo.popen.wait(600)
        for pipe in (demo.popen.stdout, demo.popen.stderr):
            if pipe is not None:
                pipe.close()


def gone(family: list[psutil.Process]) -> bool:
    """Whether all have ended after a patience that no machine needs."""
    _, alive = psutil.wait_procs(family, timeout=600)
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


def test_a_whole_demo(tmp_path: Path, demos: list[Running]) -> None:
    demo = Running(tmp_path / "d", "--agents", "8", "--rounds", "8", "--seed", "3", "--json")
    demos.append(demo)
    demo.wait_for("round")
    family = demo.family()
    # Asked of all at once: the demo kills some, at any moment.
    ours = {process.pid for process in family}
    listening = [
        socket.laddr[:1]
        for socket in psutil.net_connections("tcp")
        if socket.status == psutil.CONN_LISTEN and socket.pid in ours
    ]
    assert listening
    assert all(ip in (("127.0.0.1",), ("::1",)) for ip in listening)
    lines = demo.rest(0)
    result = lines[-1]
    assert result["rounds_done"] == 8
    assert result["ledger_balanced"] is True
    assert (result["agents"], result["edges"], result["seed"]) == (8, 2, 3)
    assert float(str(result["accuracy"])) > 0.4
    assert result["policy"] == "adaptive"
    assert int(str(result["spent_micro"])) > 0
    assert result["broker"] in ("mosquitto", "embedded")
    assert result["killed"]
    assert isinstance(result["seconds_to_first_round"], float)
    html = Path(str(result["report"])).read_text()
    assert all(f"agent-{n}" in html for n in range(1, 9))
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", html), "it asks for nothing"
    assert gone(family)
    kept = {path.name for path in demo.directory.iterdir()}
    assert {"report.html", "report.json", "coordinator", "coordinator.log", "agent-1"} <= kept


def test_ctrl_c_ends_cleanly_in_one_object(tmp_path: Path, demos: list[Running]) -> None:
    demo = Running(tmp_path / "d", *SMALL)
    demos.append(demo)
    demo.wait_for("round")
    family = demo.family()
    assert len(family) >= 7  # coordinator, two edges, four agents; brokers and trainers
    os.killpg(demo.popen.pid, signal.SIGINT)
    result = demo.rest(130)[-1]
    assert gone(family)
    assert (result["interrupted"], result["ledger_balanced"]) == (True, True)
    assert Path(str(result["report"])).is_file()


@pytest.mark.nightly
def test_kill_9_leaves_nobody(tmp_path: Path, demos: list[Running]) -> None:
    demo = Running(tmp_path / "d", *SMALL)
    demos.append(demo)
    demo.wait_for("round")
    family = demo.family()
    demo.popen.kill()
    demo.popen.wait(600)
    assert gone(family)
