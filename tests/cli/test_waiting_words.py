"""What people are told while a run waits: how many are there, and when the next round is due."""

import time

import pytest

from fedagent_cli.output import rounds_text
from fedagent_cli.runs import next_round_s
from fedagent_coordinator.daemon import words_of
from fedagent_coordinator.status_files import RunStatus
from fedagent_node.process import boot_id


def test_the_log_counts_those_that_are_waited_for() -> None:
    waiting: dict[str, object] = {"reason": "agents", "edges": 2, "agents": 3, "wanted": 8}
    assert words_of("waiting", waiting) == "waiting for agents: 3 of 8"
    assert words_of("waiting", {**waiting, "reason": "edges"}) == "waiting for edges: 2 of 8"
    plain = {"reason": "prices", "edges": 2, "agents": 3}
    assert words_of("waiting", plain) == "waiting: reason=prices edges=2 agents=3"


def test_a_round_is_due_by_the_clock_of_this_boot_only() -> None:
    soon = RunStatus(run="r", next_at=time.monotonic() + 1e6, boot=boot_id())
    left = next_round_s(soon)
    assert left is not None
    assert left <= 1e6
    assert next_round_s(RunStatus(run="r", next_at=soon.next_at, boot="another")) is None
    assert next_round_s(RunStatus(run="r", next_at=time.monotonic() - 1, boot=boot_id())) is None
    assert next_round_s(RunStatus(run="r", boot=boot_id())) is None


@pytest.mark.parametrize(
    ("done", "wanted", "text"), [(3, 60, "3 of 60"), (3, 0, "3, no end set"), (3, None, "3 of ?")]
)
def test_roundswords_of(done: int, wanted: int | None, text: str) -> None:
    assert rounds_text(done, wanted) == text


def test_statistics_and_warnings_are_saidwords_of() -> None:
    waiting: dict[str, object] = {"reason": "statistics", "edges": 2, "agents": 3}
    assert words_of("waiting", waiting) == "waiting for the samples of 3 agents to be added up"
    warning: dict[str, object] = {"agents": ["a1", "b2"], "reason": "out of proportion: pa"}
    assert words_of("warning", warning) == "samples out of proportion: pa (agents a1 b2)"
