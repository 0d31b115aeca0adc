"""Pictures of the live page for the documents: every view of a demo, beside its running.

``python -m bench.screens [FOLDER]`` writes page-*.png (docs/images); ``make screenshots``.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from fedagent_coordinator.picture.status_files import Page as Served

from .rows import ROOT

CHROMIUM = "/usr/bin/chromium"
DEMO = ("--web", "--rounds", "150")
LEARNT = 40
"""Rounds until the page has something to show."""
COLOURS = 128


@contextmanager
def demo(folder: Path) -> Iterator[str]:
    """Run a demo; yield its page's address."""
    command = [sys.executable, "-m", "fedagent_cli", "demo", *DEMO, "--dir", str(folder / "demo")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while (found := Served.read(folder / "demo" / "coordinator")) is None:
            assert time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.2)
        yield found.url
    finally:
        process.terminate()
        process.wait(60)


def opened(browser: Browser, url: str, *, width: int, height: int, dark: bool) -> Page:
    """Open the page, and wait until some rounds are there."""
    page = browser.new_page(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    page.goto(url)
    page.get_by_text("Rounds", exact=True).wait_for()
    return page


def keep(page: Page, path: Path, *, whole: bool = False) -> None:
    """Take a picture in few colours: documents are cloned by everybody."""
    page.wait_for_timeout(700)
    page.screenshot(path=path, full_page=whole)
    with Image.open(path) as shot:
        shot.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(f"{path} {path.stat().st_size / 1000:.0f} kB", flush=True)


def main(folder: Path) -> None:
    """Take all of them."""
    with (
        tempfile.TemporaryDirectory() as name,
        demo(Path(name)) as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        wide = opened(browser, url, width=1280, height=800, dark=False)
        time.sleep(max(8.0, LEARNT * 0.25))
        keep(wide, folder / "page-overview.png")
        for view in ("Round", "Learning", "Money"):
            wide.get_by_role("tab", name=view).click()
            keep(wide, folder / f"page-{view.lower()}.png")
        wide.get_by_role("tab", name="Devices").click()
        wide.get_by_role("button", name="agent-2").first.click()
        wide.locator("dialog[open]").get_by_text("asking").wait_for(state="hidden")
        keep(wide, folder / "page-card.png")
        dark = opened(browser, url, width=1920, height=1080, dark=True)
        keep(dark, folder / "page-dark.png")
        phone = opened(browser, url, width=360, height=740, dark=False)
        keep(phone, folder / "page-phone.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
