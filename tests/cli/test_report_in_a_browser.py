"""The report in a real browser, as wide as a phone and as a desk."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import pytest

from fedagent_cli.report.page import render
from fedagent_cli.report.plots import draw_all
from tests.fakes.run_reports import everything, numbers

pytest.importorskip("matplotlib", reason="plots need matplotlib (extra report)")

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--disable-default-apps"),
)
# A window is at least 500 px wide; a frame in it is not.
FRAME = '<iframe style="width:{width}px;height:844px;border:0" srcdoc="{page}"></iframe>'
MEASURE = """<pre id="found"></pre><script>
const box = one => one.getBoundingClientRect();
const crowded = texts => {
  const found = [], boxes = texts.map(box);
  boxes.forEach((a, i) => boxes.slice(0, i).forEach((b, j) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 5) found.push(texts[i].textContent + " | " + texts[j].textContent);
  }));
  return found;
};
const size = text => {
  const at = text.getScreenCTM();
  const font = text.ownerDocument.defaultView.getComputedStyle(text).fontSize;
  return parseFloat(font) * Math.hypot(at.c, at.d);
};
const picture = one => {
  const texts = [...one.querySelectorAll("text")].filter(text => text.textContent.trim());
  const all = box(one);
  const out = at => at.left < all.left - 2 || at.right > all.right + 2
    || at.top < all.top - 2 || at.bottom > all.bottom + 2;
  return {
    role: one.getAttribute("role"),
    name: one.getAttribute("aria-label") || "",
    smallest: Math.min(...texts.map(size)),
    outside: texts.filter(text => out(box(text))).map(text => text.textContent),
    crowded: crowded(texts),
  };
};
onload = () => {
  const pages = [...document.querySelectorAll("iframe")].map(one => one.contentDocument);
  document.getElementById("found").textContent = JSON.stringify(pages.map(page => ({
    width: page.documentElement.clientWidth,
    needed: page.documentElement.scrollWidth,
    pictures: [...page.querySelectorAll("svg")].filter(one => box(one).width).map(picture),
  })));
};
</script>
"""


class Picture(TypedDict):
    """One picture as it is on the screen; `smallest` is of its letters, in px of the screen."""

    role: str | None
    name: str
    smallest: float
    outside: list[str]
    crowded: list[str]


class Shown(TypedDict):
    """A page on the screen, and how wide it would like to be; its pictures that are seen."""

    width: int
    needed: int
    pictures: list[Picture]


def shown(pages: Sequence[tuple[str, int]], folder: Path) -> list[Shown]:
    """Open each page in a frame of its width, and measure it."""
    assert PROGRAM is not None
    frames = (FRAME.format(width=width, page=html.escape(page)) for page, width in pages)
    wrapper = folder / "frames.html"
    wrapper.write_text(
        f'<!doctype html><meta charset="utf-8">{"".join(frames)}{MEASURE}', encoding="utf-8"
    )
    done = subprocess.run(
        [
            *(PROGRAM, *FLAGS, f"--user-data-dir={folder / 'profile'}"),
            *("--window-size=1400,900", "--dump-dom", wrapper.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.search(r'<pre id="found">(\[.*?\])</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-500:] + done.stderr[-500:]
    read: list[Shown] = json.loads(html.unescape(found[1]))
    return read


PHONE, DESK = 390, 1200
READABLE = 11.0
"""Least size of a plot's letters in px of the screen."""


@pytest.mark.browser
@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
def test_every_picture_can_be_read_and_nothing_scrolls_sideways(tmp_path: Path) -> None:
    run_reports = (everything(), numbers(60))
    drawn = [draw_all(story) for story in run_reports]
    pages = [render(story, plots) for story, plots in zip(run_reports, drawn, strict=True)]
    found = shown([(page, width) for width in (PHONE, DESK) for page in pages], tmp_path)
    for index, page in enumerate(found):
        assert page["width"] == (PHONE, DESK)[index // 2]
        assert page["needed"] <= page["width"]
        assert len(page["pictures"]) == len(drawn[index % 2])
        for picture in page["pictures"]:
            assert picture["role"] == "img"
            assert len(picture["name"]) > 10
            assert picture["smallest"] >= READABLE, picture["name"]
            assert picture["outside"] == [], picture["name"]
            assert picture["crowded"] == [], picture["name"]
