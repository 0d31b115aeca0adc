"""Processes that stand still for a while, get hardly any processor, or no files."""

import contextlib
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

import psutil
import pytest

from fedagent_testbed.local import RoleProcess

from .support import DEMO, check_books, labels, new_field, start_small

pytestmark = pytest.mark.slow
SLOW = ("learner.steps=2", "learner.step_s=0.3", "rounds.min_updates=1")


def stop(process: RoleProcess, seconds: float) -> None:
    """Let a process and its children stand still."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in family:
        one.suspend()
    time.sleep(seconds)
    for one in family:
        one.resume()


def test_a_device_that_wakes_up_drops_its_stale_round_and_takes_part_again(tmp_path: Path) -> None:
    sets = ("rounds.deadline_s=1", "rounds.max_wait_s=2", *SLOW)
    with new_field(tmp_path) as field:
        coordinator = start_small(field, rounds=100_000, agents=2, sets=sets)
        sleeper = field.processes["agent-1"]
        sleeper.wait("ordered")
        first = int(str(sleeper.all("ordered")[-1]["round"]))
        stop(sleeper, 3.0)
        woke = int(str(coordinator.all("round")[-1]["round"]))
        assert woke > first
        sleeper.wait("receipt", status="accepted", round=woke + 8, timeout_s=40)
        for receipt in sleeper.all("receipt"):
            if first < int(str(receipt["round"])) < woke:
                assert receipt["status"] != "accepted"
        coordinator.popen.send_signal(signal.SIGTERM)
        assert coordinator.wait_exit() == 0
    check_books(coordinator, still_open=1)


def test_a_coordinator_that_stands_still_keeps_its_books_to_itself(tmp_path: Path) -> None:
    config: dict[str, object] = {
        "recipe": str(DEMO), "broker": "embedded", "wait_agents": 2,
        "sets": ["rounds.count=8", "rounds.deadline_s=1", "rounds.max_wait_s=2", *SLOW],
    }  # fmt: skip
    with new_field(tmp_path) as field:
        coordinator = field.start("coordinator", "coordinator", config)
        field.edge("edge", broker="embedded")
        for i in range(2):
            field.agent(f"agent-{i}", labels(i))
        coordinator.wait("round", round=2)
        stopped = threading.Thread(target=stop, args=(coordinator, 6.0))
        stopped.start()
        time.sleep(0.3)
        second = RoleProcess(
            name="second", role="coordinator", config=coordinator.config, log=tmp_path / "second"
        )
        assert second.wait_exit() == 75
        second.close()
        stopped.join()
        assert coordinator.wait("end", timeout_s=60)["ledger_balanced"] is True
        assert coordinator.wait_exit() == 0
    check_books(coordinator)


def test_an_edge_with_a_tenth_of_a_processor_delays_and_breaks_nothing(tmp_path: Path) -> None:
    sets = ("rounds.deadline_s=2", "rounds.max_wait_s=4", "rounds.min_updates=1")
    with new_field(tmp_path) as field:
        coordinator = start_small(field, rounds=100_000, agents=3, sets=sets)
        coordinator.wait("round", round=3)
        edge = field.processes["edge-0"]
        for _ in range(20):
            stop(edge, 0.18)
            time.sleep(0.02)
        before = len(coordinator.all("round"))
        coordinator.wait("round", round=before + 10, used=3, timeout_s=30)
        seconds = [float(str(event["seconds"])) for event in coordinator.all("round")]
        assert max(seconds) < 8.0
        coordinator.popen.send_signal(signal.SIGTERM)
        assert coordinator.wait_exit() == 0
    check_books(coordinator, still_open=1)


@pytest.mark.skipif(not shutil.which("prlimit"), reason="needs prlimit")
@pytest.mark.parametrize(
    "broker", ["embedded", pytest.param("mosquitto", marks=pytest.mark.mosquitto)]
)
def test_an_edge_with_64_descriptors_sheds_strangers_and_recovers(
    tmp_path: Path, broker: str
) -> None:
    sets = ("rounds.deadline_s=2", "rounds.max_wait_s=4", "rounds.min_updates=1")
    with new_field(tmp_path) as field:
        coordinator = start_small(
            field, rounds=100_000, edges=0, agents=2, broker=broker, sets=sets
        )
        edge = field.start("edge", "edge-0", {"broker": broker}, prefix=("prlimit", "--nofile=64"))
        port = int(str(edge.wait("ready")["port"]))
        coordinator.wait("round", round=2)
        with contextlib.ExitStack() as strangers:
            for _ in range(150):
                with contextlib.suppress(OSError):
                    one = socket.create_connection(("127.0.0.1", port), timeout=1)
                    strangers.enter_context(one)
            time.sleep(1.0)
        before = len(coordinator.all("round"))
        coordinator.wait("round", round=before + 10, used=2, timeout_s=40)
        assert edge.popen.poll() is None
        coordinator.popen.send_signal(signal.SIGTERM)
        assert coordinator.wait_exit() == 0
    check_books(coordinator, still_open=1)
