"""The report: what it says in words, what it draws, and that its page is whole."""

import json
import re
from dataclasses import replace
from pathlib import Path

from fedagent_cli.report.curves import curves
from fedagent_cli.report.page import render, write_report
from fedagent_cli.report.run_report import NOT_ENDED, RunReport, read_run_report
from fedagent_coordinator.picture.records import Field
from fedagent_task.scoring.measures import ACCURACY, LOSS
from tests.fakes.run_reports import a_round, an_agent, classes, everything, numbers, with_rounds
from tests.fakes.written_runs import write_run


def said_of(run: RunReport) -> str:
    """Return what the page says by itself, without what its script draws."""
    html = render(run, Field(epoch="", version=1, at_ms=0))
    return html[html.index("<body") : html.index("<script")]


def test_a_regression_shows_its_error_and_no_accuracy() -> None:
    html = said_of(numbers())
    assert "accuracy" not in html
    assert "error, held-out samples" in html
    assert "not measured" not in html


def test_a_run_without_held_out_samples_shows_training_and_says_so() -> None:
    html = said_of(numbers(held_out=False))
    assert "training error, as devices report it" in html
    assert "not measured on held-out samples (evaluation.dataset)" in html
    silent = said_of(replace(classes(), measures=()))
    assert "devices report neither score nor loss" in silent


def a_run_report(rounds: int = 3) -> RunReport:
    rows = [
        a_round(number, **({} if number == 2 else {"accuracy": 0.5}))
        for number in range(1, rounds + 1)
    ]
    agent = an_agent("a1", "<b>kitchen", outcomes={"arrived": 3, "late": 1})
    plain = replace(classes(3), agents=(agent,), edges={"e1": "hall"}, measures=(ACCURACY, LOSS))
    return with_rounds(plain, *rows)


def test_the_page_says_how_far_a_run_is() -> None:
    story = a_run_report(3)
    going = {"state": NOT_ENDED}
    for made, says in (
        (story, "complete after 3 of 3 rounds"),
        (replace(story, rounds_wanted=9), "ended early after 3 of 9 rounds"),
        (replace(story, rounds_wanted=9, facts=going), "not over after 3 of 9 rounds"),
        (replace(story, rounds_wanted=0, facts=going), "not over after 3 rounds"),
        (replace(story, rounds_wanted=0), "ended after 3 rounds"),
    ):
        html = said_of(made)
        assert says in html
        assert ("no end set" in html) == (made.rounds_wanted == 0)


def test_the_page_is_whole_and_asks_nobody(tmp_path: Path) -> None:
    write_run(tmp_path / "coordinator")
    story = read_run_report(tmp_path / "coordinator")
    named = replace(story, agents=tuple(replace(one, label="</b>kitchen") for one in story.agents))
    page = write_report(named, tmp_path / "coordinator", tmp_path / "out").read_text()
    outside = page.replace("http://www.w3.org/", "")
    assert "http://" not in outside
    assert "https://" not in outside
    assert not re.search(r"<link|<script[^>]* src=|^import |^export ", page, re.MULTILINE)
    assert "</b>kitchen" not in page
    data = json.loads(page.partition('id="report">')[2].partition("</script>")[0])
    assert [one["round"] for one in data["field"]["rounds"]] == [1, 2, 3]
    assert {one["name"] for one in data["field"]["devices"]} == {"</b>kitchen"}
    assert json.loads((tmp_path / "out" / "report.json").read_text())["rounds_wanted"] == 3
    assert "device agent-b was ordered 3 times and never delivered in time" in page


def test_a_controlled_run_shows_iterations_rents_and_latency() -> None:
    story = replace(everything(), conclusion="the budget pays no more <rent>")
    titles = [one["title"] for one in curves(story)]
    assert titles == [
        *("Opinions", "Index", "Belief", "Local iterations", "Latency of the slowest device")
    ]
    html = said_of(story)
    assert "the budget pays no more &lt;rent&gt;" in html
    assert curves(a_run_report()) == []
