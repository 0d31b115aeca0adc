"""How states to one neighbour are spaced: by how long its acknowledgements take."""

import random

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


def test_a_neighbour_that_owes_an_answer_is_dropped_once_until_it_answers() -> None:
    channel = channel_of(SlotSettings())
    send(channel, 0.0)
    assert not channel.falls_silent(1.9)
    assert channel.falls_silent(2.0)
    assert not channel.falls_silent(9.0)
    assert channel.next_slot(SETTINGS, 9.0, PER_INCARNATION).dropped
    channel.receive(0, 0, 9.0)
    assert not channel.dropped
