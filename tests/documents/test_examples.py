"""What is in examples/, run as its page says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.coordinator.web.served import served
from tests.docs.test_write_your_own import as_installed
from tests.fakes.written_runs import write_run

from .pages import ROOT, Page

EXAMPLES = ROOT / "examples"
PAGE = Page("examples/README.md")
PAGE.skips("laid down as pip would: no network here", "pip install examples/lab-package")
LAB, WATCH = PAGE.takes("python examples/lab.py", "python examples/watch.py")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = ("lab_package.py", "pyproject.toml")
    files = {name: (EXAMPLES / "lab-package" / name).read_text("utf-8") for name in names}
    return as_installed(tmp_path_factory.mktemp("package"), files)


def python(where: Path, line: str, *more: str, package: Path | None = None) -> str:
    (name, *words), paths = shlex.split(line), [package] if package else []
    assert name == "python"
    done = subprocess.run(
        [sys.executable, *(word.replace("examples", str(EXAMPLES)) for word in words), *more],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        cwd=where,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_broken_sensor_spoils_one_model_and_not_the_other(tmp_path: Path, package: Path) -> None:
    said = python(tmp_path, LAB, package=package)
    error = {name: float(value) for name, value in re.findall(r"(\S+): error (\S+)", said)}
    assert error["lab-package:huber"] < 0.2
    assert error["linear"] > 0.5


def test_the_policy_keeps_the_rules_of_all_and_likes_a_strong_signal(package: Path) -> None:
    rules = f"python -m pytest -q -p no:xdist -p no:cacheprovider {ROOT}/tests/checks -k strongest"
    assert re.search(r"\b\d\d passed", python(ROOT, rules, package=package))


def test_a_running_coordinator_is_read(tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=5, end=False)
    with served(tmp_path / "run") as page:
        said = python(tmp_path, WATCH, page.url)
    assert re.search(r"^round 5: [1-9]\d* of \d+ in time$", said, re.MULTILINE)
    assert re.search(r" [\d.]+ credits", said)
