"""A run that cannot be read, damaged or somebody else's: one line with its hint, no traceback."""

import json
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
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


READING = (
    "status",
    "status --rounds 20",
    "devices",
    "ledger verify",
    "export --ledger entries.csv",
    "models list",
    "report",
)
# Once as the owner, so that all is imported, errors too; then as somebody else.
SCRIPT = """
import contextlib, io, json, os, sys
from pathlib import Path
from fedagent_cli.__main__ import main

folder, mode, *lines = sys.argv[1:]

def call(line, folder=folder):
    sys.argv = ["fedagent", *line.split(), "--data-dir", folder]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return code, err.getvalue(), out.getvalue()

own = {line: call(line) for line in lines}
assert not any(code for code, _, _ in own.values()), own
assert call("status", "none")[0] == 40
if int(mode, 8) & 0o200 == 0:
    for left in Path(folder).glob("*.db-*"):
        left.unlink()
os.chmod(folder, int(mode, 8))
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(json.dumps({line: call(line) for line in lines}))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A coordinator's directory in a folder that other users reach."""
    home = Path(tempfile.mkdtemp())
    home.chmod(0o755)
    write_run(home / "coordinator", end=False)
    yield home / "coordinator"
    (home / "coordinator").chmod(0o700)
    shutil.rmtree(home)


def read_as_another(folder: Path, mode: int, cwd: Path) -> dict[str, tuple[int, str, str]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), f"{mode:o}", *READING],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr
    read: dict[str, tuple[int, str, str]] = json.loads(done.stdout)
    return read


@pytest.mark.parametrize("mode", [0o000, 0o555], ids=["closed", "not writable"])
def test_another_user_is_told_whose_run_it_is(folder: Path, mode: int, tmp_path: Path) -> None:
    """Where a folder may be looked into, sqlite still has to make files beside the database."""
    for line, (code, said, out) in read_as_another(folder, mode, tmp_path).items():
        assert (code, out) == (40, ""), line
        assert said.startswith(f"fedagent: this user may not read {folder}; run the command as ")
        assert said.count("\n") == 1
