"""The report in a real browser, as wide as a phone and as a desk."""

from pathlib import Path

import pytest

from fedagent_cli.report.page import render
from fedagent_cli.report.plots import draw_all
from tests.fakes.run_reports import everything, numbers

from .chromium import PROGRAM, shown

pytest.importorskip("matplotlib", reason="plots need matplotlib (extra report)")

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
