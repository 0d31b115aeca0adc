"""The README's three terminals, typed as there: nothing but names."""

import asyncio
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

from fedagent_protocol import SOFTWARE
from fedagent_protocol.transport.broker import Broker, BrokerSpec

pytestmark = pytest.mark.slow
CLI = (sys.executable, "-m", "fedagent_cli.main")


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
        return subprocess.run(
            [*CLI, *line.split()],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.environment,
        )


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    typed = Terminals(tmp_path)
    yield typed
    for process in reversed(typed.running):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in typed.running:
        assert process.wait(60) in (0, 75)
        assert process.stdout is not None
        process.stdout.close()


def short(rounds: int) -> str:
    """Return what makes few rounds of a recipe, one right after the other."""
    return f"--set rounds.count={rounds} --set rounds.every_s=0"


def until(process: subprocess.Popen[str], kind: str) -> dict[str, object]:
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        assert isinstance(event, dict)
        if event["event"] == kind:
            return event
    raise AssertionError(f"ended with {process.wait(60)} and never said {kind}")


def test_three_terminals(terminals: Terminals) -> None:
    agent = terminals.start("start --name kitchen --stream digits")
    edge = terminals.start("edge start --name hall")
    coordinator = terminals.start(f"coordinator start --recipe digits {short(3)}")
    assert until(coordinator, "ready")["rounds"] == 3
    until(edge, "agent_joined")
    assert until(coordinator, "end")["rounds_done"] == 3
    assert coordinator.wait(60) == 0
    status = json.loads(terminals.call("status --json").stdout)
    assert (status["rounds_done"], status["rounds"], status["agents"]) == (3, 3, 1)
    (kitchen,) = json.loads(terminals.call("devices --json").stdout)["devices"]
    assert (kitchen["label"], kitchen["software"], kitchen["why"]) == ("kitchen", SOFTWARE, "")
    assert kitchen["address"]
    assert kitchen["last_seen_ms"] is not None
    assert terminals.call("ledger verify").returncode == 0
    assert json.loads(terminals.call("models list --json").stdout)["models"]
    second = terminals.call(f"start --name kitchen --stream digits --site {terminals.site}")
    assert second.returncode == 75
    assert "kitchen" in second.stderr
    # The process has become the role: no typer, no rich in a device's memory.
    assert psutil.Process(agent.pid).cmdline()[1:3] == ["-m", "fedagent_agent"]


def test_one_shared_broker(terminals: Terminals, tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(90):
            broker = Broker(BrokerSpec(data_dir=tmp_path / "broker", kind="embedded"))
            await broker.start()
            try:
                await asyncio.to_thread(through, f"mqtt://{broker.address}")
            finally:
                await broker.stop()

    def through(url: str) -> None:
        terminals.start("start --name one --stream digits", "--broker", url)
        terminals.start("edge start --name hall", "--broker", url)
        coordinator = terminals.start(
            f"coordinator start --recipe digits {short(2)}", "--broker", url
        )
        assert until(coordinator, "ready")["broker_kind"] not in ("mosquitto", "embedded")
        assert until(coordinator, "end")["rounds_done"] == 2
        assert coordinator.wait(60) == 0

    asyncio.run(run())
