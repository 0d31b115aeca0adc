"""The report and `fedagent opinions`: what they say in words, and that the page is whole."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fedagent_cli.report.page import render, write_report
from fedagent_cli.report.run_report import NOT_ENDED, RunReport, read_run_report
from fedagent_coordinator.books.write import Books
from fedagent_task.scoring.measures import RMSE, TRAIN_ERROR
from tests.fakes.written_runs import SCORES, write_evaluated, write_run
from tests.typed import call, fedagent, last_object


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


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("reported")
    write_evaluated(home / "coordinator", epsilon=0.5)
    return home


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("peers")
    write_evaluated(home / "coordinator", mode="peers")
    return home


def rows_of(home: Path, *arguments: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = last_object(call(home, "opinions", *arguments, "--json"))[
        "evaluations"
    ]
    return rows


def test_each_evaluated_model_is_a_row(reported: Path) -> None:
    rows = rows_of(reported)
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert [row["mean"] for row in rows] == pytest.approx([0.2, 0.4, 0.65, 2 / 3])
    assert (rows[1]["least"], rows[1]["most"], rows[1]["metric"]) == (0.1, 0.6, "accuracy")
    assert (rows[2]["answered"], rows[2]["asked"]) == (2, 3)
    assert (rows[2]["reasons"], rows[2]["epsilon"]) == ({"late": 1}, 0.5)
    assert rows[3]["scores"] == dict(zip(("agent-a", "agent-b", "agent-c"), SCORES[3], strict=True))
    text = call(reported, "opinions").stdout
    assert "1 late" in text
    assert "epsilon" in text
    kitchen = next(line for line in text.splitlines() if line.startswith("kitchen"))
    assert kitchen.split() == ["kitchen", "0.30", "0.50", "0.70", "0.90", "0.600"]
    silent = next(line for line in text.splitlines() if line.startswith("agent-c"))
    assert silent.split()[3] == "."


def test_one_round(reported: Path) -> None:
    assert [row["round"] for row in rows_of(reported, "--round", "2")] == [2]
    assert [row["round"] for row in rows_of(reported, "--last", "2")] == [2, 3]
    done = call(reported, "opinions", "--round", "9")
    assert done.returncode == 43
    assert "the newest evaluated ones: 0, 1, 2, 3" in done.stderr


def test_peers_show_who_volunteered_and_no_opinion(peers: Path, tmp_path: Path) -> None:
    rows = rows_of(peers)
    assert [row["volunteers"] for row in rows][:2] == [
        ["agent-a", "agent-b"],
        ["agent-a", "agent-c"],
    ]
    assert all(row["mean"] is None and row["scores"] == {} for row in rows)
    text = call(peers, "opinions").stdout
    assert "opinions never left the devices" in text
    assert "kitchen" in text.splitlines()[1]
    html = write_report(read_run_report(peers / "coordinator"), tmp_path).read_text()
    assert '"volunteers":2' in html
    assert '"opinion":' not in html


def test_a_run_that_nobody_evaluated_says_what_to_set(tmp_path: Path) -> None:
    write_run(tmp_path / "coordinator")
    assert rows_of(tmp_path) == []
    assert 'opinions.mode = "report"' in call(tmp_path, "opinions").stdout
    assert read_run_report(tmp_path / "coordinator").evaluations == ()


def test_the_report_has_opinions(reported: Path, tmp_path: Path) -> None:
    story = read_run_report(reported / "coordinator")
    html = write_report(story, tmp_path).read_text()
    assert '"opinion":' in html
    assert len(html) < 300_000
    record = json.loads((tmp_path / "report.json").read_text())
    assert record["evaluations"][3]["scores"]["agent-a"] == 0.9
