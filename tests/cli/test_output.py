"""The command line's own parts: where things are, how numbers are shown, what help loads."""

import os
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_cli import output, places
from fedagent_cli.errors import UsageError
from fedagent_protocol.errors import credits_text


def test_a_name_has_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAGENT_HOME", str(tmp_path))
    assert places.data_dir("agent") == tmp_path / "agent"
    assert places.data_dir("agent", "kitchen") == tmp_path / "agent-kitchen"
    for bad in ("../up", "", "a/b", "x" * 80):
        with pytest.raises(UsageError, match="not a name"):
            places.data_dir("agent", bad)


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_credits_are_shown_exactly(micro: int) -> None:
    text = credits_text(micro).replace(",", "")
    whole, _, part = text.lstrip("-").partition(".")
    assert (-1 if text.startswith("-") else 1) * int(whole + part.ljust(6, "0")) == micro


@given(st.text(max_size=40))
def test_a_table_has_one_line_for_each_row_and_nothing_that_a_terminal_obeys(name: str) -> None:
    row = [name, "123 456"]
    with redirect_stdout(StringIO()) as said:
        output.table(("name", "code"), [row])
    lines = said.getvalue().split("\n")
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)


def test_who_reads_no_more_is_no_error_of_ours(home: Path) -> None:
    """As in `| head -1`: the reader has gone before anything is written."""
    end, begin = os.pipe()
    os.close(end)
    done = subprocess.run(
        [sys.executable, "-m", "fedagent_cli", "status", "--rounds", "20", "--json"],
        env={**os.environ, "FEDAGENT_HOME": str(home)},
        stdout=begin,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(begin)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_role_starts_without_an_output(tmp_path: Path) -> None:
    line = f"{sys.executable} -m fedagent_cli agent --stream csv:/nope --data-dir {tmp_path} >&-"
    assert subprocess.run(["sh", "-c", line], check=False).returncode == 13, "no such stream"


def test_an_output_on_a_full_disk_is_one_line(home: Path) -> None:
    env = {**os.environ, "FEDAGENT_HOME": str(home)}
    line = [sys.executable, "-m", "fedagent_cli", "ledger", "show"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(line, env=env, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"fedagent: cannot write: No space left on device; ")
