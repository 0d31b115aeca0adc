"""Every template becomes a project, whose README is typed here line by line."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedagent_cli.errors import UsageError
from fedagent_cli.new import FOLDER, written
from fedagent_task.recipe.text import read_table
from tests.typed import fedagent, install, parse

NAME = "my-own"
MODULE = "my_own"
INSTALL = "pip install -e ."
SHOWS = {
    "policy": (f"{NAME} ", "agent-6: chosen", "accuracy 0.", "1 passed"),
    "stream": ("weights:", "1 passed"),
    "torch": ("accuracy 0.", "my-own.fedtask", "1 passed"),
    "sensor": ("outside 10, pump 60: 22.5 degrees", "1 passed"),
}
"""What is seen, beside no error."""


def commands(readme: str) -> list[list[str]]:
    """The commands of each block."""
    return [text.strip().splitlines() for text in re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)]


@pytest.mark.slow
@pytest.mark.parametrize("template", SHOWS)
def test_its_readme_can_be_typed(template: str, tmp_path: Path) -> None:
    done = fedagent("new", NAME, "--template", template, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    project, site = tmp_path / NAME, tmp_path / "site"
    first, *later = commands((project / "README.md").read_text())
    path = [str(site)]
    if INSTALL in first:
        install(site, (project / "pyproject.toml").read_text())
        path.append(str(project))
        first.remove(INSTALL)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    typed = subprocess.run(
        ["bash", "-ec", "\n".join(first)],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert typed.returncode == 0, typed.stdout + typed.stderr
    for wanted in SHOWS[template]:
        assert wanted in typed.stdout, typed.stdout
    for line in [line for block in later for line in block if line.startswith("fedagent ")]:
        parse(shlex.split(line)[1:])


@pytest.mark.parametrize("template", SHOWS)
def test_nothing_of_the_template_is_left_open(template: str) -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(SHOWS)
    files = written(NAME, template)
    assert {"README.md", "pyproject.toml", "recipe.toml", f"tests/test_{MODULE}.py"} <= set(files)
    for path, text in files.items():
        assert "{{" not in text, path
        assert "NAME" not in path
        if path.endswith(".py"):
            compile(text, path, "exec")
    lines = files["README.md"].splitlines()
    assert len([line for line in lines if not line.startswith("```")]) <= 12
    assert read_table(files["recipe.toml"])["name"] == NAME


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "mine").write_text("all my work")
    done = fedagent("new", NAME, "--template", "sensor", cwd=tmp_path)
    assert done.returncode == 2
    assert "already exists" in done.stderr
    assert [path.name for path in (tmp_path / NAME).iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "not a name"),
        ("../up", "not a name"),
        ("My-Own", "not a name"),
        ("a" * 41, "at most 40"),
        ("json", "is already a Python module"),
        ("lambda", "is already a Python module"),
        ("fedagent-task", "is already a Python module"),
    ],
)
def test_a_name_that_would_not_do_is_refused(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        written(name, "sensor")
