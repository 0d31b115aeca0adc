"""The report: what it says in words, what it draws, and that its page is whole."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fedagent_cli.report.page import render
from fedagent_cli.report.run_report import NOT_ENDED, RunReport, read_run_report
from fedagent_coordinator.books.write import Books
from fedagent_task.scoring.measures import RMSE, TRAIN_ERROR
from tests.fakes.written_runs import write_run
from tests.typed import fedagent, last_object


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run = write_run(folder)
    with Books(folder) as store:
        store.indices(run).label_clients({"agent-a": "</b>kitchen"})
    return folder


@pytest.fixture(scope="module")
def story(folder: Path) -> RunReport:
    return read_run_report(folder)


def said_of(run: RunReport, **summary: Any) -> str:
    """Return what the page says by itself, without what its script draws."""
    html = render(replace(run, summary=structs.replace(run.summary, **summary)))
    return html[html.index("<body") : html.index("<script")]


def test_the_page_says_how_good_the_model_is_or_why_that_is_unknown(story: RunReport) -> None:
    assert "<td>0.800</td>" in said_of(story)
    regression = said_of(story, measures=(RMSE,), metrics={"rmse": 2.5})
    assert "2.500 (rmse)" in regression
    assert "accuracy" not in regression
    trained = said_of(story, measures=(TRAIN_ERROR,), metrics={"train_error": 1.5})
    assert "1.500 in training; not measured on held-out samples (evaluation.dataset)" in trained
    assert "devices report neither score nor loss" in said_of(story, measures=(), best=None)


def test_the_page_says_how_far_a_run_is(story: RunReport) -> None:
    going = replace(story, facts={"state": NOT_ENDED})
    for made, wanted, says in (
        (story, 3, "complete after 3 of 3 rounds"),
        (story, 9, "ended early after 3 of 9 rounds"),
        (going, 9, "not over after 3 of 9 rounds"),
        (going, 0, "not over after 3 rounds"),
        (story, 0, "ended after 3 rounds"),
    ):
        assert says in said_of(made, rounds_wanted=wanted)
    stopped = said_of(story, rounds_wanted=9, conclusion="the budget pays no more <rent>")
    assert "the budget pays no more &lt;rent&gt;" in stopped
    assert "complete after 3 of 9 rounds" in stopped


def test_the_page_is_whole_and_asks_nobody(folder: Path, tmp_path: Path) -> None:
    where = ("--data-dir", str(folder), "--out", str(tmp_path / "out"))
    told = last_object(fedagent("report", *where, "--json"))
    assert (told["rounds_done"], told["accuracy"]) == (3, 0.8)
    page = Path(str(told["report"])).read_text()
    outside = page.replace("http://www.w3.org/", "")
    assert "http://" not in outside
    assert "https://" not in outside
    assert not re.search(r"<link|<script[^>]* src=|^import |^export ", page, re.MULTILINE)
    assert "</b>kitchen" not in page
    data = json.loads(page.partition('id="report">')[2].partition("</script>")[0])
    assert [one["round"] for one in data["field"]["rounds"]] == [1, 2, 3]
    assert [one["name"] for one in data["field"]["devices"]] == ["</b>kitchen", "agent-b"]
    record = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (record["rounds_wanted"], record["accuracy"], record["ledger_balanced"]) == (
        3,
        0.8,
        True,
    )
    assert (record["agents"][1]["ordered"], record["agents"][1]["in_time"]) == (3, 0)
    assert record["rounds"][0]["seconds"] == pytest.approx(0.905)
    assert "device agent-b was ordered 3 times and never delivered in time" in page
