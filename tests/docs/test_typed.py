"""What pages give whole runs: Python blocks, a package of one's own, the site of the documents."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.typed import install

ROOT = Path(__file__).parents[2]
OUTSIDE = r"(?:https?:)?//[\w.]"
ASKS = rf'<(?:script|img|iframe)\b[^>]*\bsrc="{OUTSIDE}|url\([\'"]?{OUTSIDE}'
LISTED = r'toctree-l1.*?href="([^"#]+)"'
PACKAGES = (("policies/write-your-own.md", "thrifty"), ("aggregation.md", "clipped"))


def blocks(page: str, fence: str) -> list[str]:
    text = (ROOT / page).read_text("utf-8")
    return re.findall(rf"^```{fence}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def ran(*arguments: str, cwd: Path = ROOT, packages: Path | None = None) -> str:
    """Run Python; return what it printed."""
    env = os.environ if packages is None else {**os.environ, "PYTHONPATH": str(packages)}
    line = [sys.executable, *arguments]
    done = subprocess.run(
        line, env=env, cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(folder: Path, files: dict[str, str]) -> Path:
    """Lay down the files of a package, and beside them what pip would write."""
    install(folder, files["pyproject.toml"])
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_the_page_on_python_runs(tmp_path: Path) -> None:
    shown = ran("-c", "\n".join(blocks("docs/python.md", "python")), cwd=tmp_path)
    assert "[3, 3, 3, 3, 3, 3, 3, 3]" in shown  # the budget of its second run
    assert "15 credits were spent" in shown


def test_the_first_screen_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (block,) = blocks("README.md", "python")
    shown = ran("-c", block, cwd=tmp_path)
    assert float(re.findall(r"^(0\.\d+) ", shown, re.MULTILINE)[-1]) > 0.6


@pytest.mark.parametrize(("page", "name"), PACKAGES)
def test_a_package_of_ones_own_is_found_and_compared(page: str, name: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    files = re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    site = installed(tmp_path, dict(files))
    (block,) = blocks(f"docs/{page}", "python run")
    assert name in dict(map(str.split, ran("-c", block, packages=site).splitlines()))
    if name == "thrifty":
        rules = ran(
            "-m", "pytest", "-q", "tests/checks", "-k", name, "-p", "no:xdist", packages=site
        )
        assert re.search(r"\b[1-9]\d* passed", rules)


def test_the_examples_run(tmp_path: Path) -> None:
    folder = ROOT / "examples/lab-package"
    files = {path.name: path.read_text("utf-8") for path in folder.iterdir() if path.is_file()}
    shown = ran("examples/lab.py", packages=installed(tmp_path, files))
    error = {name: float(value) for name, value in re.findall(r"(\S+): error (\S+)", shown)}
    assert error["lab-package:huber"] < 0.2
    assert error["linear"] > 0.5


def test_the_site_is_built_without_a_warning_and_asks_no_other_host(tmp_path: Path) -> None:
    """A page in no list, a link or an anchor that leads nowhere are warnings."""
    options = ("--fail-on-warning", "--keep-going", "--quiet", "-d", str(tmp_path / ".trees"))
    ran("-m", "sphinx", *options, "docs", str(tmp_path))
    listed = set(re.findall(LISTED, (tmp_path / "index.html").read_text()))
    pages = {str(one.relative_to(ROOT / "docs"))[:-2] for one in (ROOT / "docs").rglob("*.md")}
    assert pages - {page.removesuffix("html") for page in listed} == {"index."}
    for path in (path for path in tmp_path.rglob("*") if path.suffix in {".html", ".css", ".svg"}):
        assert not re.search(ASKS, path.read_text("utf-8")), path.name
    assert 'id="fedagent.run_local"' in (tmp_path / "api.html").read_text("utf-8")
