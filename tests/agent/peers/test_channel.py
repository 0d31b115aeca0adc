"""How states to one neighbour are spaced: by how long its acknowledgements take."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_agent.peers.core.channel import PER_INCARNATION, PeerChannel, SlotSettings

SETTINGS = SlotSettings(gap_s=0.03, silence_s=1e5, life_s=1e6, max_envelopes=1000)
RNG = random.Random(1)


def channel_of(settings: SlotSettings = SETTINGS) -> PeerChannel:
    return PeerChannel(settings, 0.0, PER_INCARNATION)


def send(channel: PeerChannel, now: float) -> int:
    """Send a state; return its number."""
    channel.wants_state(now)
    stamp = channel.stamp(now, RNG)
    assert stamp is not None
    return stamp[0]


def exchange(channel: PeerChannel, now: float, rtt_s: float) -> float:
    """Send a state that is acknowledged after `rtt_s`; return when that is."""
    seq = send(channel, now)
    assert not channel.receive(0, seq, now + rtt_s)
    return now + rtt_s


@given(rtts=st.lists(st.floats(0.001, 5.0), min_size=1, max_size=20))
def test_waits_follow_the_acknowledgements_within_their_bounds(rtts: list[float]) -> None:
    channel, now = channel_of(), 0.0
    for rtt in rtts:
        now = exchange(channel, now, rtt) + 1.0
    assert min(*rtts, 1.0) - 1e-9 <= channel.rtt_s <= min(max(rtts) + 1e-9, 1.0)
    send(channel, now)
    wait = channel.due - now
    assert 0.8 * SETTINGS.repeat_s <= wait <= 1.2 * SETTINGS.max_repeat_s
    assert wait >= 0.8 * min(2 * channel.rtt_s, SETTINGS.max_repeat_s)


def test_what_is_unanswered_holds_back_the_next_and_the_next_slot_remembers() -> None:
    channel = channel_of()
    now = exchange(channel, 0.0, 0.8)
    assert channel.rtt_s == pytest.approx(0.8)
    channel = channel.next_slot(SETTINGS, now, PER_INCARNATION)
    assert channel.rtt_s == pytest.approx(0.8)
    seq = send(channel, now)
    channel.wants_state(now + 0.01)
    assert channel.stamp(now + 0.3, RNG) is None
    channel.receive(0, seq, now + 0.3)
    assert channel.stamp(now + 0.3, RNG), "a quarter of the new mean, 0.55 s, is over"


def test_a_repeat_is_measured_from_the_first_time_it_was_sent() -> None:
    channel = channel_of()
    channel.receive(0, 0, 0.0)
    seq = send(channel, 0.0)
    assert channel.stamp(0.5, RNG) == (seq, 0)
    channel.receive(0, seq, 0.7)
    assert channel.rtt_s == pytest.approx(0.7 / 4), "a quarter: the first copy may have been lost"


@pytest.mark.parametrize("seq", [0, PER_INCARNATION + 1])
def test_what_a_neighbour_had_to_begin_the_slot_for_is_measured_from_the_last_copy(
    seq: int,
) -> None:
    channel = channel_of()
    sent = send(channel, 0.0)
    assert channel.stamp(0.5, RNG) == (sent, 0)
    channel.receive(seq, sent, 0.6)
    assert channel.rtt_s == pytest.approx(0.1)


def test_an_acknowledgement_waits_for_a_state_and_a_repeat_is_answered_at_once() -> None:
    channel = channel_of()
    assert channel.receive(9, 0, 1.0)
    assert channel.stamp(1.01, RNG) is None
    assert not channel.receive(9, 0, 1.02)
    assert channel.stamp(1.02, RNG) == (0, 9)
    assert channel.stamp(5.0, RNG) is None, "an acknowledgement is never answered"


def test_a_jump_of_numbers_is_a_restart_within_a_slot() -> None:
    channel = channel_of()
    channel.receive(PER_INCARNATION + 3, 0, 1.0)
    assert not channel.restarted
    channel.receive(2 * PER_INCARNATION + 1, 0, 2.0)
    assert channel.restarted


def test_a_neighbour_that_owes_an_answer_is_dropped_once_until_it_answers() -> None:
    channel = channel_of(SlotSettings())
    send(channel, 0.0)
    assert not channel.falls_silent(1.9)
    assert channel.falls_silent(2.0)
    assert not channel.falls_silent(9.0)
    assert channel.next_slot(SETTINGS, 9.0, PER_INCARNATION).dropped
    channel.receive(0, 0, 9.0)
    assert not channel.dropped
