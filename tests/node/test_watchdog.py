"""Watchdogs: systemd hears of a role that gets on, and of no other.

The sockets are real, and so are the roles and what stops them.
"""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from fedagent_node.driver import Driver
from fedagent_node.jobs import JobQueue
from fedagent_node.link import Link
from fedagent_node.process import Systemd, watch_loop
from fedagent_node.settings import NodeConfig
from fedagent_node.shell import LATE_S, LONGEST_JOB_S, Shell
from tests.e2e.support import DEMO, labels, new_field
from tests.fakes.links import eventually

PING = "WATCHDOG=1"


class Ear:
    """What systemd would hear, from a socket of its own."""

    def __init__(self, path: Path | str) -> None:
        self.name = str(path)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind("\0" + self.name[1:] if self.name.startswith("@") else self.name)
        self.sock.setblocking(False)

    def told(self) -> list[str]:
        """Return what came since the last call."""
        found: list[str] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(self.sock.recv(200).decode())
        return found


@pytest.fixture
def ear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ear]:
    one = Ear(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", one.name)
    monkeypatch.setenv("WATCHDOG_USEC", "60000")
    yield one
    one.sock.close()


@contextlib.asynccontextmanager
async def watched(stuck: list[str], counters: Counter[str]) -> AsyncIterator[None]:
    task = asyncio.create_task(
        watch_loop(
            "role",
            Systemd(),
            lambda: stuck[-1] if stuck else "",
            counters,
            beat_s=0.02,
            stall_s=0.15,
        )
    )
    await asyncio.sleep(0.1)
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_who_does_not_get_on_is_not_pinged_for(
    ear: Ear, caplog: pytest.LogCaptureFixture
) -> None:
    counters: Counter[str] = Counter()
    stuck: list[str] = []
    async with watched(stuck, counters):
        first = ear.told()
        assert first[0] == "READY=1"
        assert PING in first
        time.sleep(0.5)  # noqa: ASYNC251 - this is the fault
        assert ear.told() == []
        await asyncio.sleep(0.1)
        assert PING in ear.told()
        stuck.append("commit is at work for 700 s")
        await asyncio.sleep(0.05)
        ear.told()
        await asyncio.sleep(0.15)
        assert ear.told() == []
        stuck.clear()
        await asyncio.sleep(0.1)
        assert PING in ear.told()
    assert ear.told()[-1] == "STOPPING=1"
    for said in ("the event loop was blocked for", "commit is at work for 700 s"):
        assert caplog.text.count(said) == 1
    assert counters == {"loop_stalls": 1, "work_stalls": 1}


def test_what_does_not_get_on_is_named(tmp_path: Path) -> None:
    now, due = time.monotonic(), 0.0

    shell = Shell(NodeConfig(data_dir=str(tmp_path)), fatal=(), show=lambda _: None)
    shell.driver = cast("Driver", SimpleNamespace(next_due=lambda: due))
    due = now + 1.0
    assert shell._hindrance() == ""
    due = now - LATE_S - 20.0
    assert shell._hindrance() == "nothing was decided for 30 s"
    shell._watched_from, due = now, 0.0
    assert shell._hindrance() == "", "at its start a role is due since ever"
    due = now + 1.0
    shell.links["lan"] = cast("Link", SimpleNamespace(ended=True))
    assert shell._hindrance() == "the task of the link lan has ended"
    shell.links["lan"] = cast("Link", SimpleNamespace(ended=False))
    long = ("commit", LONGEST_JOB_S + 100.0)
    shell._jobs = cast("JobQueue", SimpleNamespace(longest=lambda _: long))
    assert shell._hindrance() == "commit is at work for 700 s"
    long = ("commit", 10.0)
    assert shell._hindrance() == ""


async def test_every_role_is_ready_pings_and_falls_silent_when_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ears = {role: Ear(tmp_path / role) for role in ("coordinator", "edge", "agent")}

    def environment(role: str) -> dict[str, str]:
        return {**os.environ, "NOTIFY_SOCKET": ears[role].name, "WATCHDOG_USEC": "300000"}

    with new_field(tmp_path) as field:
        sets: dict[str, object] = {"recipe": str(DEMO), "broker": "embedded"}
        processes = {
            "coordinator": field.start(
                "coordinator", "c", sets, environment=environment("coordinator")
            ),
            "edge": field.start(
                "edge", "e", {"broker": "embedded"}, environment=environment("edge")
            ),
            "agent": field.start(
                "agent", "a", {"stream": labels(0)}, environment=environment("agent")
            ),
        }
        heard: dict[str, list[str]] = {role: [] for role in ears}

        def all_ping() -> bool:
            for role, ear in ears.items():
                heard[role] += ear.told()
            return all(PING in one for one in heard.values())

        await eventually(all_ping)
        assert all(one[0] == "READY=1" for one in heard.values())
        for process in processes.values():
            process.popen.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.2)
        all_ping()
        heard = {role: [] for role in ears}
        await asyncio.sleep(0.6)
        all_ping()
        assert heard == {role: [] for role in ears}
        for process in processes.values():
            process.popen.send_signal(signal.SIGCONT)
        await eventually(all_ping)
    for ear in ears.values():
        ear.sock.close()
