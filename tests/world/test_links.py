"""Devices behind slow links: what an exchange costs them, and what it costs the others.

A model of 1.7 MB over links of a rate each way, in packets that have headers and get lost.
"""

import re
from pathlib import Path

import pytest

from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.books.rows import OutcomeRow
from fedagent_coordinator.explanation.explain import explain
from fedagent_coordinator.picture.devices import devices_of
from fedagent_testbed.kernel import Line
from fedagent_testbed.world import VirtualFederation

from .kinds import world

CHUNK = 32 * 1024
MODEL_BYTES = 1_700_000
SIZE = ("model.features=42499", "model.classes=10")
MBIT = 1e6 / 8
SLOW = 0.256 * MBIT


def field_of(directory: Path, lines: dict[str, Line], *sets: str, agents: int) -> VirtualFederation:
    """Return a federation with lines, and all orders of magnitude of a real model."""
    usual = ("rounds.merge_every=100", "budget.per_edge=10", "budget.total=1000")
    here = world("plain", directory, 1, *SIZE, *usual, *sets, agents=agents, chunk_bytes=CHUNK)
    for name, line in lines.items():
        here.network.lines[here.agents[name].id] = line
    return here


def downloaded(here: VirtualFederation) -> dict[str, float]:
    """Return the bytes that each device got, in models."""
    carried = here.network.carried
    return {name: carried["down", one.id] / MODEL_BYTES for name, one in here.agents.items()}


@pytest.mark.parametrize("loss", [0.0, 0.01])
def test_no_byte_goes_down_twice_without_need(tmp_path: Path, loss: float) -> None:
    """Models of devices whose links have nothing in common but the edge."""
    kinds = [(mbit, delay) for delay in (0.0, 0.03, 0.1) for mbit in (20.0, 5.0, 1.0, 0.256)]
    lines = {f"agent-{i}": Line(mbit * MBIT, delay, loss) for i, (mbit, delay) in enumerate(kinds)}
    sets = ("rounds.count=1", "rounds.deadline_s=600", "rounds.max_wait_s=600")
    here = field_of(tmp_path, lines, *sets, "rounds.min_updates=12", agents=12)
    assert here.run(seconds=700.0).rounds_done == 1
    found = dict(zip(kinds, downloaded(here).values(), strict=True))
    assert max(found.values()) <= (1.2 if loss else 1.1), found


def outcomes_of(here: VirtualFederation) -> dict[str, list[OutcomeRow]]:
    found: dict[str, list[OutcomeRow]] = {name: [] for name in here.agents}
    with open_reader(here.coordinator.directory) as read:
        for row in read.outcomes(read.run().run_id):
            found[here.names[row.agent]].append(row)
    return found


@pytest.mark.parametrize("dies", [False, True], ids=["slow", "dead"])
def test_a_slow_or_dead_device_delays_nobody(tmp_path: Path, dies: bool) -> None:
    lines = {f"agent-{i}": Line(20 * MBIT, 0.01) for i in range(3)}
    lines["agent-3"] = Line(SLOW, 0.01)
    sets = ("rounds.count=20", "rounds.deadline_s=6", "rounds.max_wait_s=6")
    here = field_of(tmp_path, lines, *sets, "policy.name=all", agents=4)
    if dies:
        far = here.agents["agent-3"]
        here.kernel.after(4.0, lambda: setattr(far, "away", True))
    assert here.run(seconds=300.0).rounds_done == 20
    ends = outcomes_of(here)
    for name in ("agent-0", "agent-1", "agent-2"):
        assert [row.status for row in ends[name]] == ["arrived"] * 20


@pytest.mark.parametrize(("deadline_s", "rounds"), [(30, 6), (6, 30)])
def test_a_device_behind_a_hopeless_link_takes_part_by_late_rounds_and_is_named(
    tmp_path: Path, deadline_s: int, rounds: int
) -> None:
    lines = {f"agent-{i}": Line(20 * MBIT, 0.01) for i in range(3)}
    lines["agent-3"] = Line(SLOW, 0.03)
    until = f"rounds.deadline_s={deadline_s}", f"rounds.max_wait_s={deadline_s}"
    sets = (f"rounds.count={rounds}", *until)
    here = field_of(tmp_path, lines, *sets, "policy.name=all", agents=4)
    assert here.run(seconds=300.0).rounds_done == rounds
    far = outcomes_of(here)["agent-3"]
    assert any(row.used for row in far), "its work enters by late rounds"
    assert downloaded(here)["agent-3"] <= 2.5
    with open_reader(here.coordinator.directory) as read:
        agent = here.agents["agent-3"].id
        reasons = explain(read, agent, 3).reasons
    named = re.compile(rf"needs 1\d\d s at 2\d\d kbit/s, the deadline is {deadline_s} s")
    assert named.search(" ".join(reasons))


def test_who_misses_for_its_link_is_shown_with_that(tmp_path: Path) -> None:
    lines = {"agent-1": Line(SLOW, 0.03)}
    sets = ("rounds.count=3", "rounds.deadline_s=5", "rounds.max_wait_s=5")
    here = field_of(tmp_path, lines, *sets, "policy.name=all", agents=2)
    here.run(seconds=60.0)
    with open_reader(here.coordinator.directory) as read:
        cards = {one.name: one.note for one in devices_of(read, read.run())}
    assert not cards["agent-0"]
    assert "kbit/s, the deadline is 5 s" in cards["agent-1"]
