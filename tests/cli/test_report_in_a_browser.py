"""The report in a real browser: from a file, as wide as a phone and as a desk, and on paper."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fedagent_cli.report.page import write_report
from fedagent_cli.report.run_report import read_run_report
from tests.fakes.written_runs import write_evaluated

if TYPE_CHECKING:
    from playwright.sync_api import Browser

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium (apt-get install chromium)"),
]
SHOWN = "[...document.querySelectorAll('canvas')].filter(one => one.clientWidth)"
DRAWN = f"""{SHOWN}.map(one => one.getContext("2d")
    .getImageData(0, 0, one.width, one.height).data.some(value => value))"""
PAPER: Any = {"width": 720, "height": 1000}
INK = "getComputedStyle(document.body).color"
FIRST = f"{SHOWN}[0].toDataURL()"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_evaluated(folder)
    return write_report(read_run_report(folder), folder)


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.parametrize("width", [390, 1200])
def test_a_file_draws_all_and_asks_nobody(browser: "Browser", report: Path, width: int) -> None:
    size: Any = {"width": width, "height": 844}
    page, troubles, asked = browser.new_page(viewport=size, color_scheme="dark"), [], []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda line: troubles.append(line.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    drawn = page.evaluate(DRAWN)
    assert len(drawn) > 8
    assert all(drawn)
    for title in ("Learning", "The run"):
        assert page.get_by_role("heading", name=title, exact=True).is_visible()
    for summary in page.locator("summary:visible").all():
        summary.click()
        summary.locator("xpath=..").locator("tbody tr").first.wait_for()
    page.emulate_media(media="print")
    page.set_viewport_size(PAPER)
    dark = page.evaluate(FIRST)
    assert page.evaluate(INK) == "rgb(228, 231, 235)"
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(INK) == "rgb(27, 31, 36)"  # for paper, although the screen is dark
    assert page.evaluate(FIRST) != dark
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER["width"]
    assert not page.locator("nav").is_visible()
    assert asked == [report.as_uri()]
    assert troubles == []
    page.close()
