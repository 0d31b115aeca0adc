"""docs/python.md, run as it stands, in one go."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedagent

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_page_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[3, 3, 3, 3, 3, 3, 3, 3]" in done.stdout  # the budget of its second run
    assert "[1 0]" in done.stdout  # what its own task has learnt
    assert "15 credits were spent" in done.stdout


def test_the_first_screen_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", block],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.findall(r"^(0\.\d+) ", done.stdout, re.MULTILINE)[-1]) > 0.6


def test_it_names_what_there_is() -> None:
    named = set(re.findall(r"fedagent\.(\w+)", PAGE)) - {"toml"}
    assert named <= set(fedagent.__all__)
    arguments = PAGE.partition("| argument | |")[2].partition("\n\n")[0]
    listed = {
        word
        for row in re.findall(r"^\| (.*?) \|", arguments, re.MULTILINE)
        for word in re.findall(r"`(\w+)`", row)
    }
    assert listed == set(fedagent.run_local.__annotations__) - {"task", "return"}
