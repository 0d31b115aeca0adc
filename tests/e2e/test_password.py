"""A broker that wants a password: every way to give it, and nobody else ever sees it."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import psutil
import pytest

from fedagent_node.broker import mosquitto_program
from fedagent_node.network import free_port
from fedagent_node.settings import PASSWORD_VARIABLE

from .terminals import Terminals, terminals, until

__all__ = ["terminals"]  # a fixture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.mosquitto,
    pytest.mark.skipif(
        mosquitto_program() is None or which("mosquitto_passwd") is None,
        reason="mosquitto is not installed",
    ),
]
CANARY = "k4n@ri/en:%"
WRITTEN = "k4n%40ri%2Fen%3A%25"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Yield the port of a broker that takes the user `fed` alone."""
    folder = tmp_path.parent / f"{tmp_path.name}-broker"
    folder.mkdir()
    made = ("mosquitto_passwd", "-c", "-b", str(folder / "users"), "fed", CANARY)
    subprocess.run(made, check=True, capture_output=True)
    number = free_port("127.0.0.1")
    lines = ("user root", f"listener {number} 127.0.0.1", f"password_file {folder / 'users'}")
    (folder / "conf").write_text("\n".join(lines) + "\n")
    program = mosquitto_program()
    assert program is not None
    with subprocess.Popen([program, "-c", str(folder / "conf")], stderr=subprocess.DEVNULL) as run:
        yield number
        run.terminate()


def seen_by_ps(process: psutil.Process) -> str:
    family = [process, *process.children(recursive=True)]
    return " ".join(word for one in family for word in one.cmdline())


def test_a_password_is_used_and_never_shown(terminals: Terminals, port: int) -> None:
    full, named = (f"mqtt://{who}@127.0.0.1:{port}" for who in (f"fed:{WRITTEN}", "fed"))
    (terminals.home.parent / "password").write_text(CANARY)
    file = str(terminals.home.parent / "password")
    coordinator = terminals.start(
        "coordinator start --recipe digits --set rounds.count=2", "--broker", full
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


def test_a_broker_that_wants_a_password_is_named_with_the_hint(
    terminals: Terminals, port: int
) -> None:
    agent = terminals.start("start --stream digits", "--broker", f"mqtt://127.0.0.1:{port}")
    until(agent, "ready")
    log = terminals.home / "0.log"
    with log.open() as lines:
        while "USER:PASSWORD@HOST" not in "".join(lines):
            assert agent.poll() is None
