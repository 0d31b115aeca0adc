"""The spacing of what one neighbour is told: by how long its acknowledgements take."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_agent.core.peer_channel import PER_INCARNATION, PeerChannel
from fedagent_agent.core.peer_settings import Pace

PACE = Pace(gap_s=0.03, repeat_s=0.2, longest_s=1.0, silence_s=1e5, life_s=1e6)
RNG = random.Random(1)


def told(line: PeerChannel, now: float, rtt_s: float) -> float:
    """Tell something, have it acknowledged after `rtt_s`; return when that is."""
    line.change(now)
    seq, _ = line.stamp(now, RNG, content=True)
    line.hear(0, seq, now + rtt_s)
    return now + rtt_s


@given(trips=st.lists(st.floats(0.001, 5.0), min_size=1, max_size=20))
def test_waits_follow_the_acknowledgements_within_their_bounds(trips: list[float]) -> None:
    line, now = PeerChannel(PACE, 0.0, PER_INCARNATION), 0.0
    for trip in trips:
        now = told(line, now, trip)
    assert min(*trips, PACE.longest_s) - 1e-9 <= line.rtt_s <= min(max(trips) + 1e-9, 1.0)
    line.change(now)
    line.stamp(now, RNG, content=True)
    wait = line.due - now
    assert 0.8 * PACE.repeat_s <= wait <= 1.2 * max(PACE.repeat_s, PACE.longest_s)
    assert wait >= 0.8 * min(2 * line.rtt_s, PACE.longest_s)


def test_what_is_unanswered_holds_back_the_next_and_the_next_slot_remembers() -> None:
    line = PeerChannel(PACE, 0.0, PER_INCARNATION)
    now = told(line, 0.0, 0.8)
    assert line.rtt_s == pytest.approx(0.8)
    line = line.next(now, PER_INCARNATION, PACE)
    assert line.rtt_s == pytest.approx(0.8)
    seq, _ = line.stamp(now, RNG, content=True)
    line.change(now + 0.01)
    assert not line.wants(now + 0.3)
    line.hear(0, seq, now + 0.3)
    assert line.wants(now + 0.3), "a quarter of the new mean, 0.55 s, is over"


def test_a_quick_neighbour_is_told_at_once() -> None:
    line = PeerChannel(PACE, 0.0, PER_INCARNATION)
    now = told(line, 0.0, 0.01)
    line.change(now)
    assert not line.wants(now)
    assert line.wants(now + PACE.gap_s)


def test_a_repeat_is_measured_from_the_first_time_it_was_said() -> None:
    line = PeerChannel(PACE, 0.0, PER_INCARNATION)
    seq, _ = line.stamp(0.0, RNG, content=True)
    assert line.stamp(0.3, RNG, content=True) == (seq, 0)
    line.hear(0, seq, 0.5)
    assert line.rtt_s == pytest.approx(0.5)
