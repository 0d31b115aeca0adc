"""`fedagent opinions` and the report of evaluated runs, on directories that the store wrote."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedagent_cli.report.page import write_report
from fedagent_cli.report.run_report import read_run_report
from tests.fakes.written_runs import SCORES, write_evaluated, write_run
from tests.typed import call, last_object


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
