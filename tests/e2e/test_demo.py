"""`fedagent demo` as a person runs it: real processes, brokers and zeroconf."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

SMALL = ("--agents", "4", "--edges", "2", "--json")


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
        raise AssertionError(f"never said {kind}: {self.rest()[1]}")

    def rest(self) -> tuple[list[dict[str, object]], str]:
        """Read the remaining lines and standard error, and wait for the end."""
        out, err = self.popen.communicate(timeout=600)
        return [json.loads(line) for line in out.splitlines()], err

    def family(self) -> list[psutil.Process]:
        """Return the demo's living descendants."""
        return psutil.Process(self.popen.pid).children(recursive=True)

    def left_over(self) -> list[str]:
        """Return the living processes that work in the demo's folder."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            line = " ".join(process.info["cmdline"] or ())
            if str(self.directory) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(line[:200])
        return found


@pytest.fixture
def demos() -> Iterator[list[Running]]:
    started: list[Running] = []
    yield started
    for demo in started:
        if demo.popen.poll() is None:
            os.killpg(demo.popen.pid, signal.SIGKILL)
        demo.popen.wait(600)
        for pipe in (demo.popen.stdout, demo.popen.stderr):
            if pipe is not None:
                pipe.close()


def all_gone(demo: Running) -> list[str]:
    """Return who is left over, if it has not ended after a patience that no machine needs."""
    deadline = time.monotonic() + 600
    while (left := demo.left_over()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def test_a_whole_demo_beside_another(tmp_path: Path, demos: list[Running]) -> None:
    demos += [
        Running(tmp_path / "d", "--agents", "8", "--rounds", "8", "--seed", "3", "--json"),
        Running(tmp_path / "e", "--agents", "3", "--edges", "1", "--rounds", "5", "--json"),
    ]
    demo, other = demos
    for running, agents, edges in ((demo, 8, 2), (other, 3, 1)):
        lines, errors = running.rest()
        assert running.popen.returncode == 0, errors
        report = json.loads((running.directory / "report.json").read_text())
        assert len(report["agents"]) <= agents
        assert all(row["name"].startswith("agent-") for row in report["agents"])
        assert len(report["edges"]) <= edges
        assert lines[-1]["ledger_balanced"] is True
        if running is demo:
            _check_whole(demo, lines)


def _check_whole(demo: Running, lines: list[dict[str, object]]) -> None:
    result = lines[-1]
    assert result["rounds_done"] == 8
    assert result["ledger_balanced"] is True
    assert (result["agents"], result["edges"], result["seed"]) == (8, 2, 3)
    assert isinstance(result["accuracy"], float)
    assert result["accuracy"] > 0.4
    assert result["policy"] == "adaptive"
    assert isinstance(result["spent_micro"], int)
    assert result["spent_micro"] > 0
    assert result["broker"] in ("mosquitto", "embedded")
    assert result["killed"]
    first = result["seconds_to_first_round"]
    assert isinstance(first, float)
    html = Path(str(result["report"])).read_text()
    assert all(f"agent-{n}" in html for n in range(1, 9))
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", html), "it asks for nothing"
    assert any(line.get("event") == "round" for line in lines)
    assert not all_gone(demo)
    kept = {path.name for path in demo.directory.iterdir()}
    assert {"report.html", "report.json", "coordinator", "coordinator.log"} <= kept
    assert "agent-1" in kept


def test_a_placed_demo_ends_when_the_rents_are_gone(tmp_path: Path, demos: list[Running]) -> None:
    shipped = (Path(__file__).parents[2] / "deploy" / "recipes" / "bas-digits.toml").read_text()
    recipe = tmp_path / "short.toml"
    recipe.write_text(shipped.replace("total = 850", "total = 45"))
    demo = Running(tmp_path / "d", "--recipe", str(recipe), "--json")
    demos.append(demo)
    lines, errors = demo.rest()
    assert demo.popen.returncode == 0, errors
    result = lines[-1]
    rounds = [line for line in lines if line.get("event") == "round"]
    assert result["rounds_done"] == len(rounds) < 160
    assert str(result["conclusion"]).startswith(
        "the budget is too low for another rented round: stopped after"
    )
    assert result["ledger_balanced"] is True
    assert result["edges"] == 3
    assert isinstance(result["spent_micro"], int)
    assert result["spent_micro"] <= 45_000_000
    assert all(line["rented"] for line in rounds)
    assert len({line["rented"] for line in rounds}) > 1
    assert len({line["iterations"] for line in rounds}) > 1
    end = next(line for line in lines if line.get("event") == "end" and line["from"] != "demo")
    assert end["reason"] == "budget"
    assert "final model" in (demo.directory / "coordinator.log").read_text()
    html = Path(str(result["report"])).read_text()
    assert "the budget is too low for another rented round" in html


@pytest.mark.parametrize("moment", ["folder", "round"])
def test_ctrl_c_ends_cleanly_in_one_object(
    tmp_path: Path, demos: list[Running], moment: str
) -> None:
    demo = Running(tmp_path / "d", *SMALL, "--rounds", "500")
    demos.append(demo)
    if moment == "round":
        demo.wait_for("round")
        os.killpg(demo.popen.pid, signal.SIGINT)
    else:
        while not demo.directory.exists():
            assert demo.popen.poll() is None
            time.sleep(0.005)
        demo.popen.send_signal(signal.SIGINT)
    lines, errors = demo.rest()
    assert demo.popen.returncode == 130, errors
    assert "Traceback" not in errors
    assert not all_gone(demo)
    result = lines[-1]
    assert result["interrupted"] is True
    if moment == "folder":
        # Nothing is wrong with books that were never begun.
        assert result["ledger_balanced"] is (True if result["report"] else None)
        assert result["rounds_done"] == 0
    if moment == "round":
        assert result["ledger_balanced"] is True
        assert Path(str(result["report"])).is_file()


def test_listeners_are_on_loopback_only_and_kill_9_leaves_nobody(
    tmp_path: Path, demos: list[Running]
) -> None:
    demo = Running(tmp_path / "d", *SMALL, "--rounds", "500")
    demos.append(demo)
    demo.wait_for("round")
    family = demo.family()
    listening = [
        connection.laddr.ip
        for process in family
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1"}
    assert len(family) >= 7  # coordinator, two edges, four agents; brokers and trainers
    demo.popen.kill()
    demo.popen.wait(600)
    _, alive = psutil.wait_procs(family, timeout=600)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
