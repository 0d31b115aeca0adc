"""What is said of an edge is said in time, and no edge fills the log by what it does."""

import numpy as np
import pytest

from fedagent_coordinator.core.edges import TROUBLES, EdgeSession
from fedagent_node.effects import Effect, Emit


def _edge() -> EdgeSession:
    return EdgeSession("edge-1", 0, "life", 0.0, "m" * 64, name="hall")


def _said(effects: list[Effect], what: str) -> list[object]:
    return [one.fields[what] for one in effects if isinstance(one, Emit)]


@pytest.mark.parametrize("words", [("no room: {}",), ("no room: {}", "")])
def test_an_edge_whose_words_change_all_the_time_fills_no_log(words: tuple[str, ...]) -> None:
    edge, said, now = _edge(), [], 100.0
    for n in range(3600):
        now += 1.0
        said += _said(edge.in_trouble(words[n % len(words)].format(n), now), "reason")
    at_once, per_s = TROUBLES
    assert at_once <= len(said) <= at_once + 3600 * per_s
    # What is true in the end is said, late as it may be.
    last = "the disk is gone"
    late = [_said(edge.in_trouble(last, now + n), "reason") for n in range(round(1 / per_s) + 1)]
    assert [reason for one in late for reason in one] == [last]


def test_trouble_and_its_end_are_said_at_once() -> None:
    edge = _edge()
    assert _said(edge.in_trouble("no room", 1.0), "reason") == ["no room"]
    assert edge.in_trouble("no room", 2.0) == []
    assert _said(edge.in_trouble("", 3.0), "reason") == [""]


def test_an_edge_that_starts_again_in_good_order_is_said_to_take_part_again() -> None:
    edge = _edge()
    edge.in_trouble("no room", 1.0)
    edge.restart("another life")
    assert _said(edge.in_trouble("", 2.0), "reason") == [""]


def test_a_device_that_has_just_joined_is_no_stranger() -> None:
    edge = _edge()
    assert edge.named_strangers(np.array([3], dtype=np.int32)) == []
    assert edge.named_strangers(np.array([], dtype=np.int32)) == []
    assert edge.named_strangers(np.array([4], dtype=np.int32)) == []


def test_strangers_who_become_more_are_said_a_dozen_times_and_not_a_thousand() -> None:
    edge, said = _edge(), []
    for count in range(1, 3001):
        said += _said(edge.named_strangers(np.arange(count, dtype=np.int32)), "agents")
    assert said[0] == 1
    assert len(said) <= np.log2(3000) + 1
    assert float(str(said[-1])) >= 3000 / 2


def test_terms_that_nobody_signed_are_said_a_dozen_times_and_not_a_thousand() -> None:
    edge, said = _edge(), []
    for count in range(3001):
        said += _said(edge.told_unsigned("terms", count), "agents")
    assert said[0] == 1
    assert len(said) <= np.log2(3000) + 1
    assert _said(edge.told_unsigned("opinions", 1), "agents") == [1]


def test_the_sessions_of_another_life_are_others() -> None:
    edge = _edge()
    rows = np.array([0, 1], dtype=np.int32)
    edge.named_strangers(rows)
    edge.restart("another life")
    assert edge.named_strangers(rows) == []
    assert _said(edge.named_strangers(rows), "agents") == [2]
