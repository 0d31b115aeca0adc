"""A broker that wants a password: every way to give it, and nobody else ever sees it."""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fedagent_node.settings import PASSWORD_VARIABLE
from tests.typed import fedagent

from .support import NEEDS_PASSWORDS, guarded

pytestmark = NEEDS_PASSWORDS
CANARY = "k4n@ri/en:%"
WRITTEN = "k4n%40ri%2Fen%3A%25"


CLI = (sys.executable, "-m", "fedagent_cli")


class Terminals:
    """Commands typed in one home folder, on a site of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.site = f"test-{secrets.token_hex(4)}"
        self.environment = {**os.environ, "FEDAGENT_HOME": str(home)}
        self.running: list[subprocess.Popen[str]] = []

    def start(self, line: str, *more: str) -> subprocess.Popen[str]:
        """Type a start command; it runs on."""
        own = ("--site", self.site, "--discovery", "loopback", "--json", *more)
        with (self.home / f"{len(self.running)}.log").open("w") as log:
            process = subprocess.Popen(
                [*CLI, *line.split(), *own],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
            )
        self.running.append(process)
        return process

    def call(self, line: str) -> subprocess.CompletedProcess[str]:
        """Type a command and wait for its end."""
        return fedagent(*line.split(), env=self.environment)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    typed = Terminals(tmp_path)
    yield typed
    for process in reversed(typed.running):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in typed.running:
        assert process.wait(600) in (0, 75)
        assert process.stdout is not None
        process.stdout.close()


def until(process: subprocess.Popen[str], kind: str) -> dict[str, object]:
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        assert isinstance(event, dict)
        if event["event"] == kind:
            return event
    raise AssertionError(f"ended with {process.wait(600)} and never said {kind}")


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Yield the port of a broker that takes the user `fed` alone."""
    with guarded(tmp_path.parent / f"{tmp_path.name}-broker", "fed", CANARY) as number:
        yield number


def seen_by_ps(process: psutil.Process) -> str:
    family = [process, *process.children(recursive=True)]
    return " ".join(word for one in family for word in one.cmdline())


def test_a_password_is_used_and_never_shown(terminals: Terminals, port: int) -> None:
    full, named = (f"mqtt://{who}@127.0.0.1:{port}" for who in (f"fed:{WRITTEN}", "fed"))
    (terminals.home.parent / "password").write_text(CANARY)
    file = str(terminals.home.parent / "password")
    coordinator = terminals.start(
        "coordinator start --recipe digits --set rounds.count=2 --set rounds.every_s=0",
        "--broker",
        full,
    )
    edge = terminals.start("edge start --name hall", "--broker", named, "--password-file", file)
    terminals.environment[PASSWORD_VARIABLE] = CANARY
    agent = terminals.start("start --name kitchen --stream digits", "--broker", named)
    sensor = f"{full}/boiler?features=a&label=b"
    other = terminals.start("start --name boiler", "--stream", sensor, "--broker", full)
    del terminals.environment[PASSWORD_VARIABLE]
    for process in (coordinator, edge, agent, other):
        until(process, "ready")
    until(edge, "agent_joined")
    shown = [seen_by_ps(psutil.Process(p.pid)) for p in (coordinator, edge, agent, other)]
    assert until(coordinator, "end")["rounds_done"] == 2
    lines = ("status", "devices", "status --json", "devices --json", "rounds --json")
    shown += [terminals.call(line).stdout for line in lines]
    config = terminals.call(f"start --print-config --broker {full} --stream {sensor}")
    told = json.loads(config.stdout)["stream"]
    assert told == f"mqtt://fed:***@127.0.0.1:{port}/boiler?features=a&label=b"
    wrong = terminals.call(f"start --stream digits --broker mqtt://fed:{WRITTEN}@x@127.0.0.1")
    assert wrong.returncode == 2
    assert "write mqtt://USER:PASSWORD@HOST, with %40 for @" in wrong.stderr
    shown += [config.stdout, config.stderr, wrong.stdout, wrong.stderr]
    shown += [
        file.read_text(errors="replace") for file in terminals.home.rglob("*") if file.is_file()
    ]
    for text in shown:
        assert CANARY not in text
        assert WRITTEN not in text
