"""Shared pieces of the end-to-end tests: a field on loopback, and what must hold at its end."""

import asyncio
import secrets
import shutil
import subprocess
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedagent_coordinator.books.read import open_reader
from fedagent_node.broker.process import Broker, BrokerSpec
from fedagent_node.network import free_port
from fedagent_testbed.local import LocalField, RoleProcess

RECIPES = Path(__file__).parents[2] / "deploy" / "recipes"
DEMO = RECIPES / "demo.toml"
PATIENT = ("rounds.deadline_s=20", "rounds.max_wait_s=30")
"""A round is over when all have answered: no test waits so long, however busy the machine."""
MOSQUITTO = shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")
BROKERS = [
    "embedded",
    pytest.param(
        "mosquitto",
        marks=[
            pytest.mark.nightly,
            pytest.mark.mosquitto,
            pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"),
        ],
    ),
]


def new_field(directory: Path, **defaults: object) -> LocalField:
    """Return an empty field with a random site."""
    return LocalField(directory, f"test-{secrets.token_hex(4)}", defaults=dict(defaults))


def labels(index: int) -> str:
    """Return the stream of the index-th agent: two labels, each held by two agents of ten."""
    return f"digits:labels={index % 10}+{(index + 1) % 10},rate=40"


def start_small(
    field: LocalField,
    *,
    rounds: int = 5,
    edges: int = 1,
    agents: int = 3,
    broker: str = "embedded",
    sets: tuple[str, ...] = (),
    wait_agents: int | None = None,
    secure: bool = False,
) -> RoleProcess:
    """Start a coordinator, edges and agents for a short run of the demo's recipe.

    With `secure` their brokers listen with TLS of the site on loopback too.
    """
    cover: dict[str, Any] = {"secure": True} if secure else {}
    coordinator = field.coordinator(
        DEMO,
        broker=broker,
        wait_edges=max(1, edges),
        wait_agents=wait_agents or max(1, agents),
        sets=(f"rounds.count={rounds}", *PATIENT, *sets),
        **({**cover, "join_port": 0} if secure else {}),
    )
    for i in range(edges):
        field.edge(f"edge-{i}", broker=broker, **cover)
    for i in range(agents):
        field.agent(f"agent-{i}", labels(i))
    return coordinator


def check_books(coordinator: RoleProcess, *, still_open: int = 0) -> None:
    """Assert that the ledger balances and every round ended exactly once.

    Args:
        coordinator: A process that has ended.
        still_open: How many rounds may be left to the next start, because it was stopped.
    """
    with open_reader(Path(str(coordinator.config["data_dir"]))) as read:
        report = read.ledger.verify()
        assert report.balanced, report.problems
        for run in read.runs():
            rounds = read.rounds(run.run_id)
            assert len({row.round for row in rounds}) == len(rounds)
            states = [row.state for row in rounds]
            assert set(states) <= {"done", "void", "open"}
            assert states.count("open") <= still_open


NEEDS_PASSWORDS = [
    pytest.mark.slow,
    pytest.mark.mosquitto,
    pytest.mark.skipif(
        MOSQUITTO is None or shutil.which("mosquitto_passwd") is None,
        reason="mosquitto is not installed",
    ),
]


@contextmanager
def guarded(folder: Path, user: str, password: str) -> Iterator[int]:
    """Run a broker that takes one user alone; yield its port."""
    folder.mkdir()
    made = ("mosquitto_passwd", "-c", "-b", str(folder / "users"), user, password)
    subprocess.run(made, check=True, capture_output=True)
    port = free_port("127.0.0.1")
    lines = ("user root", f"listener {port} 127.0.0.1", f"password_file {folder / 'users'}")
    (folder / "conf").write_text("\n".join(lines) + "\n")
    program = [str(MOSQUITTO), "-c", str(folder / "conf")]
    with subprocess.Popen(program, stderr=subprocess.DEVNULL) as run:
        try:
            yield port
        finally:
            run.terminate()


@contextmanager
def shared_broker(directory: Path, *, kind: str = "auto") -> Iterator[str]:
    """Run a broker; give its address."""
    loop, broker = asyncio.new_event_loop(), Broker(BrokerSpec(data_dir=directory, kind=kind))  # type: ignore[arg-type]  # from a parameter
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(600)

    try:
        run(broker.start())
        yield f"mqtt://{broker.address}"
    finally:
        run(broker.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()
