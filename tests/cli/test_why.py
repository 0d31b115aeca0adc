"""`fedagent why`, on a directory that the real store wrote."""

from pathlib import Path

from fedagent_coordinator.picture.status_files import DeviceBook
from fedagent_node.data_dir import hold_data_dir
from fedagent_protocol.messages import DeviceNote, EdgeStatus
from tests.fakes.written_runs import write_run
from tests.typed import call, last_object


def test_the_round_is_told_in_words_and_as_json(home: Path) -> None:
    text = call(home, "why", "agent-b").stdout
    assert "round 3: device agent-b was selected" in text
    assert "ordered in 3 rounds, in time in 0" in text
    read = last_object(call(home, "why", "agent-b", "--round", "2", "--json"))
    assert (read["round"], read["state"], read["never_delivering"]) == (2, "selected", False)
    assert [order["round"] for order in read["orders"]] == [2, 1]


def test_of_a_device_that_has_gone_it_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "coordinator"
    run = write_run(folder, rounds=1, end=False)
    book = DeviceBook(folder, run)
    notes = (DeviceNote(agent="agent-a"), DeviceNote(agent="agent-b", here=False, age_ms=1000))
    book.note("edge-0", EdgeStatus(run=run, epoch="e" * 32, devices=notes), 1_000_000)
    book.write(0.0)
    with hold_data_dir(folder):
        assert (
            "it has not been connected to any edge for" in call(tmp_path, "why", "agent-b").stdout
        )
        assert last_object(call(tmp_path, "why", "agent-b", "--json"))["away_s"] > 1000
        assert last_object(call(tmp_path, "why", "agent-a", "--json"))["away_s"] is None
        old = last_object(call(tmp_path, "why", "agent-b", "--round", "1", "--json"))
    ended = last_object(call(tmp_path, "why", "agent-b", "--json"))
    assert (old["away_s"], ended["away_s"]) == (None, None)
