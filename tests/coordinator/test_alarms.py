"""Each alarm: what raises it, and that nothing else does."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs

from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.core.outcomes import SILENT
from fedagent_coordinator.picture import alarms as module
from fedagent_coordinator.picture.alarms import Alarm, alarms
from fedagent_coordinator.picture.status_files import Known, RunStatus, Word
from fedagent_coordinator.site.enrolment import Enrolment
from tests.fakes.stored_runs import small_plan, small_result, small_view
from tests.fakes.written_runs import RECIPE, begin, play, write_run

LATER = 4e9
"""A wall clock long after the tests."""


def raised(folder: Path, status: RunStatus | None = None, *, now: float = LATER) -> list[Alarm]:
    with open_reader(folder) as read:
        found = alarms(read, status, now)
    assert all(one.hint and one.text and one.subject for one in found)
    return found


def test_one_that_was_never_in_time_is_named_and_no_other(tmp_path: Path) -> None:
    write_run(tmp_path)
    (never,) = raised(tmp_path)
    assert (never.kind, never.subject) == ("never_delivering", "agent-b")
    assert f" --data-dir {tmp_path}` shows" in never.hint, "it is typed as it is"
    write_run(tmp_path / "short", rounds=2)
    assert not raised(tmp_path / "short")


@pytest.mark.parametrize("name", ["x` or `rm -rf ~", "-h", "$(reboot)", "two words"])
def test_a_name_makes_no_command(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path)
    with Books(tmp_path) as store:
        store.indices(run).label_clients({"agent-b": name})
    (never,) = raised(tmp_path)
    assert name in never.text
    assert never.hint.startswith("`fedagent why agent-b --data-dir ")
    assert "rounds.iterations" not in never.hint, "0, the default, leaves it to the learner"


def test_another_coordinator(tmp_path: Path) -> None:
    run = write_run(tmp_path, rounds=1)
    found = raised(tmp_path, RunStatus(run=run, others=("10.0.0.2:1883",)))
    assert [(one.kind, one.subject) for one in found] == [("second_coordinator", "10.0.0.2:1883")]


def test_a_clock_that_went_back(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=1)
    assert [one.kind for one in raised(tmp_path, now=1e9)] == ["clock"]


def test_a_device_whose_clock_is_wrong(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=1)
    with Enrolment(tmp_path) as site:
        site.admit(bytes(32), "agent", "kitchen", now=LATER)
        assert raised(tmp_path) == []
        site._connection.execute("UPDATE members SET ahead_s = -1096 * 86400.0")
    (one,) = raised(tmp_path)
    assert (one.kind, one.name, "1096.0 days behind" in one.text) == ("clock", "kitchen", True)


def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, rounds=1)
    full = SimpleNamespace(disk_usage=lambda _folder: SimpleNamespace(free=5 << 20))
    monkeypatch.setattr(module, "shutil", full)
    (one,) = raised(tmp_path)
    assert (one.kind, "5 MiB" in one.text) == ("disk", True)


def test_a_device_that_says_why_it_does_not_take_part(tmp_path: Path) -> None:
    run = write_run(tmp_path, rounds=1)
    word = Word(seen_ms=5000, reason="battery is at 9 %")
    heard = Known(run=run, words={"edge-0": {"agent-c": word}})
    heard.write(tmp_path)
    (one,) = raised(tmp_path)
    assert (one.kind, one.subject, one.since) == ("declining", "agent-c", 5.0)
    assert "battery is at 9 % (reported by edge hall)" in one.text


def test_an_edge_that_did_not_report(tmp_path: Path) -> None:
    with Books(tmp_path) as store:
        run = begin(store, RECIPE, ["agent-a"])
        plan = small_plan(small_view(1, [1_000_000], budgets=[4_000_000]))
        result = small_result(plan, {0})
        edges = [replace(one, failed=SILENT) for one in result.edges]
        play(store, run, plan, structs.replace(result, edges=edges), policy="random")
    (one,) = raised(tmp_path)
    assert (one.kind, one.subject, one.name) == ("silent_edge", "edge-0", "hall")


def test_edges_that_are_not_heard_or_take_no_part(tmp_path: Path) -> None:
    run = write_run(tmp_path, rounds=1)
    status = RunStatus(run=run, silent=("edge-0",), trouble={"edge-9": "the disk is full"})
    silent, troubled = raised(tmp_path, status)
    assert (silent.kind, silent.text) == ("silent_edge", "edge hall no longer answers")
    assert (troubled.kind, troubled.subject) == ("edge_trouble", "edge-9")
    assert "the disk is full" in troubled.text
