"""A damaged database is one line with its hint, never a traceback and never "no run"."""

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fedagent_coordinator.books.schema import DATABASE
from tests.fakes.written_runs import write_run
from tests.typed import fedagent


def flipped(data: bytes, seed: int, count: int = 300) -> bytes:
    chance, changed = random.Random(seed), bytearray(data)
    for _ in range(count):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda data: flipped(data, 1),
    "truncated": lambda data: data[: len(data) // 3],
    "foreign": lambda data: b"garbage " * (len(data) // 8),
    "empty": lambda _: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_command_says_so_in_one_line(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "coordinator"
    write_run(folder)
    path = folder / DATABASE
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    out = str(tmp_path / "out")
    commands: tuple[tuple[str, ...], ...] = (
        ("ledger", "verify", "--data-dir", str(folder)),
        ("status", "--data-dir", str(folder)),
        ("status", "--rounds", "5", "--data-dir", str(folder)),
        ("export", "--ledger", out, "--data-dir", str(folder)),
        ("report", "--data-dir", str(folder), "--out", out),
    )
    for command in commands if damage == "flipped" else commands[:1]:
        done = fedagent(*command, "--json")
        assert done.returncode == 33, (command, done.stderr)
        assert done.stderr.count("\n") == 1
        last = json.loads(done.stdout)
        assert DATABASE in last["error"]
        assert "restore" in last["hint"]


def test_a_database_of_another_release_is_one_line(tmp_path: Path) -> None:
    write_run(tmp_path / "coordinator")
    with closing(sqlite3.connect(tmp_path / "coordinator" / DATABASE)) as db:
        db.execute("PRAGMA user_version = 0")
    done = fedagent("status", "--data-dir", str(tmp_path / "coordinator"), "--json")
    assert done.returncode == 33
    assert done.stderr.count("\n") == 1
    last = json.loads(done.stdout)
    assert "was written by another fedagent" in last["error"]
    assert "another --data-dir" in last["hint"]
