"""Reading somebody else's run: one line with the hint, an exit code, never a traceback."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.written_runs import write_run

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
