"""The tutorial "let clients judge the model", as it is written: demos, commands, recipes."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedagent_cli import places
from fedagent_cli.demo.plan import EVERY_DIGIT, FEW_DIGITS
from fedagent_task.recipe import parse_recipe

PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "opinions.md").read_text("utf-8")
ROUNDS = 8
SIZE = 2
"""Who trains in a round."""
KINDS = (EVERY_DIGIT, FEW_DIGITS)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def lines(word: str) -> list[list[str]]:
    """Return the arguments of the page's lines about the demo in this folder."""
    whole = [line for block in blocks("sh") for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in whole if re.search(rf"[ /]{word}(/|$| )", line)]


def call(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedagent_cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        cwd=folder,
    )


@pytest.mark.parametrize("block", blocks("toml"))
def test_the_pages_tables_fit_a_recipe(block: str) -> None:
    digits = places.find_recipe("digits").read_text()
    parse_recipe(f"{digits}\n{block}")


@pytest.mark.slow
@pytest.mark.parametrize(("word", "shown"), [("fa", "accuracy"), ("da", "volunteers")])
def test_the_page_from_the_demo_to_the_plot(tmp_path: Path, word: str, shown: str) -> None:
    demo, *reads = lines(word)
    assert demo[0] == "demo"
    done = call(tmp_path, [*demo, "--rounds", str(ROUNDS)])
    assert done.returncode == 0, done.stderr
    assert "all digits" in done.stdout
    assert reads
    for arguments in reads:
        read = call(tmp_path, arguments)
        assert read.returncode == 0, read.stderr
        assert shown in read.stdout
    agents = json.loads((tmp_path / word / "report.json").read_text())["agents"]
    chosen = {kind: [a["ordered"] for a in agents if a["kind"] == kind] for kind in KINDS}
    # Who of them trains more often takes longer to show: tests/e2e/test_judged_fleet.py.
    assert sum(map(sum, chosen.values())) == SIZE * ROUNDS
    assert (len(chosen[EVERY_DIGIT]), len(chosen[FEW_DIGITS])) == (SIZE + 1, 9 - SIZE)
    html = (tmp_path / word / "report.html").read_text()
    assert ("What the devices knew: opinion" if word == "da" else "<h2>Belief</h2>") in html
