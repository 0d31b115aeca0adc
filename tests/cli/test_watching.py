"""A run that is watched: every event once, in lines or as JSON."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fedagent_cli.places import shortest
from fedagent_cli.read.drawn import picture
from fedagent_cli.read.look import Look, look_at
from fedagent_cli.read.runs import open_run
from fedagent_cli.read.watching import Watched, line_of
from fedagent_coordinator.books.queries import Queries
from tests.fakes.written_runs import write_run
from tests.typed import call


def look(folder: Path, run: str) -> Look:
    with open_run(Queries, folder, run) as (reader, chosen):
        return look_at(reader, chosen, watched=True)


def test_a_run_that_ended_is_told_and_watched_no_longer(home: Path) -> None:
    lines = [
        json.loads(line) for line in call(home, "status", "--watch", "--json").stdout.splitlines()
    ]
    kinds = [line.get("event") for line in lines]
    assert kinds == ["run", "round", "alarm", "end", None]
    assert lines[-1]["rounds_done"] == 3
    text = call(home, "status", "--watch").stdout
    assert "round 3 done: 1 of 2 in time" in text
    assert "alarm: device agent-b was ordered 3 times" in text


def test_a_mend_names_the_folder_from_here_where_that_is_shorter(home: Path) -> None:
    watched = ("status", "--watch", "--data-dir", str(home / "coordinator"))
    assert "agent-b --data-dir coordinator` shows" in call(home, *watched).stdout
    assert f"--data-dir {home}/coordinator` shows" in call(home, *watched, "--json").stdout
    assert shortest(Path("/a")) == "/a"


def test_every_event_is_told_once(tmp_path: Path) -> None:
    run, watched = write_run(tmp_path, rounds=2, end=False), Watched()
    first = [event["event"] for event in watched.events(look(tmp_path, run))]
    assert first == ["run", "round"]
    assert not list(watched.events(look(tmp_path, run)))
    other = write_run(tmp_path / "more", rounds=4)
    told = list(watched.events(look(tmp_path / "more", other)))
    assert [event["event"] for event in told] == ["round", "round", "alarm", "end"]
    assert all(line_of(event) for event in told)
    (over,) = watched.events(look(tmp_path, run))
    assert over["event"] == "alarm_over"


@pytest.mark.parametrize("width", [40, 160])
def test_the_picture_has_the_run_its_rounds_and_its_alarms(tmp_path: Path, width: int) -> None:
    run = write_run(tmp_path, rounds=4)
    out = io.StringIO()
    Console(file=out, width=width).print(picture(look(tmp_path, run)))
    assert "▁" in out.getvalue()
    assert "agent-b was ordered 4" in out.getvalue()
