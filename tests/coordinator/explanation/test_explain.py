"""Rounds that a real engine booked: they are solved again as they were recorded."""

from pathlib import Path

import pytest

from fedagent_coordinator.books.reader import open_reader
from fedagent_coordinator.errors import UnknownRoundError
from fedagent_coordinator.explanation.explain import explain
from tests.fakes.written_runs import write_run
from tests.world.kinds import SETS, world

POLICIES = {
    "plain": ("policy.name=adaptive", "rounds.count=30", "budget.per_edge=0.25"),
    "evaluated": ("rounds.count=25",),
    "peers": (),
    "placed": (),
}


@pytest.mark.parametrize("kind", SETS)
def test_every_round_is_solved_again_as_it_was_recorded(kind: str, tmp_path: Path) -> None:
    here = world(kind, tmp_path, 5, *POLICIES[kind])
    here.run(seconds=900)
    with open_reader(here.coordinator.directory) as read:
        run = read.run().run_id
        last, devices = read.last_round(run), read.devices(run)
        for round_ in range(1, last + 1, 4):
            for device in devices[:2]:
                said = explain(read, device.agent, round_)
                assert said.solved
                view, selection = read.plan(run, round_)
                chosen = device.client in view.pair_client[selection.pairs]
                assert (said.state == "selected") == chosen
        assert explain(read, devices[0].agent) == explain(read, devices[0].agent, last)


def test_one_that_never_delivers_is_told_with_every_order(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=4)
    with open_reader(tmp_path) as read:
        said = explain(read, "agent-b")
    assert said.never_delivering
    assert (said.ordered, said.in_time) == (4, 0)
    assert [one.round for one in said.orders] == [4, 3, 2, 1]
    assert any("ordered in 4 rounds, in time in 0" in reason for reason in said.reasons)


def test_one_that_nobody_knows_and_a_round_that_is_none(tmp_path: Path) -> None:
    write_run(tmp_path)
    with open_reader(tmp_path) as read:
        assert explain(read, "nobody").state == "unknown_device"
        with pytest.raises(UnknownRoundError):
            explain(read, "agent-a", 99)


def test_a_round_that_this_version_decides_otherwise_is_told_as_recorded(tmp_path: Path) -> None:
    write_run(tmp_path)  # its rounds order everybody, whatever the policy would
    with open_reader(tmp_path) as read:
        said = explain(read, "agent-a", 2)
    assert said.state == "selected"
    assert not said.nearest_change
