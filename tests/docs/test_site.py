"""The site of the documents is built without a warning, and asks no other host for anything."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPTIONS = ("--fail-on-warning", "--keep-going", "--quiet")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it: a page in no list, a link or an anchor that leads nowhere are warnings."""
    made = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *OPTIONS, "-d", str(made / ".trees"), "docs", str(made)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return made


def test_every_page_is_in_the_list_of_pages(site: Path) -> None:
    listed = set(re.findall(r'toctree-l1.*?href="([^"#]+)"', (site / "index.html").read_text()))
    pages = {
        str(path.relative_to(ROOT / "docs").with_suffix(".html"))
        for path in (ROOT / "docs").rglob("*.md")
    }
    assert pages - listed == {"index.html"}


def test_nothing_is_asked_of_other_hosts(site: Path) -> None:
    outside = r"(?:https?:)?//[\w.]"
    asks = (
        rf'<(?:script|img|iframe|source|video)\b[^>]*\b(?:src|srcset)="{outside}',
        rf'<link\b(?![^>]*rel="(?:canonical|next|prev)")[^>]*href="{outside}',
        rf"url\(['\"]?{outside}|@import\s+['\"]{outside}",
    )
    for path in site.rglob("*"):
        if path.suffix in {".html", ".css", ".svg"}:
            for pattern in asks:
                assert not re.search(pattern, path.read_text(encoding="utf-8")), path.name


@pytest.mark.parametrize(
    "name",
    ["fedagent.run_local", "fedagent_coordinator.policies.RoundView", "fedagent.Task"],
)
def test_the_interface_is_drawn_from_the_code(site: Path, name: str) -> None:
    assert f'id="{name}"' in (site / "api.html").read_text(encoding="utf-8")
