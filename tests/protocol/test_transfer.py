"""Transfers over a network that loses, repeats and reorders, under credit."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.transfer import (
    AHEAD_S,
    PIECE_BYTES,
    WINDOW_BYTES,
    CreditPool,
    Layout,
    Pace,
    Receiver,
    Sender,
    to_ranges,
)


@given(st.integers(1, 10**6), st.integers(1, 4096))
def test_chunks_tile_the_object(size: int, chunk_bytes: int) -> None:
    if -(-size // chunk_bytes) > 65_536:
        with pytest.raises(ProtocolError, match="the limit is"):
            Layout(size, chunk_bytes)
        return
    layout = Layout(size, chunk_bytes)
    spans = [layout.span(i) for i in range(layout.count)]
    assert spans[0][0] == 0
    assert spans[-1][1] == size
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    for index in (-1, layout.count):
        with pytest.raises(ProtocolError, match="chunk"):
            layout.span(index)
    with pytest.raises(ProtocolError, match="chunk"):
        layout.check(0, layout.size + 1)
    assert layout.check(0, layout.size) == range(layout.count)


@given(st.sets(st.integers(0, 60)))
def test_ranges_hold_exactly_their_indices(indices: set[int]) -> None:
    ranges = to_ranges(sorted(indices))
    assert [i for a, b in ranges for i in range(a, b)] == sorted(indices)
    assert all(b < c for (_, b), (c, _) in itertools.pairwise(ranges))


CHUNK = 32 * 1024


@given(
    count=st.integers(1, 60),
    rate=st.sampled_from([1e4, 1e5, 1e8]),
    loss=st.floats(0, 0.6),
    have=st.sets(st.integers(0, 59)),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=50, deadline=None)
def test_everything_arrives_within_the_window(
    count: int, rate: float, loss: float, have: set[int], seed: int
) -> None:
    rng = random.Random(seed)
    layout = Layout(count * CHUNK, CHUNK)
    receiver = Receiver(layout, Pace(rate), {i for i in have if i < count})
    before = set(receiver.have)
    sender = Sender(layout)
    wire: list[tuple[int, int]] = []
    now = 0.0
    for _ in range(100_000):
        if receiver.complete:
            break
        now += 0.1
        asked = receiver.ask(now)
        assert receiver.outstanding <= WINDOW_BYTES // CHUNK
        if asked and rng.random() >= loss:
            assert not any(i in receiver.have for a, b in asked for i in range(a, b))
            sender.authorise(asked, link_idle=not wire)
        while (message := sender.next()) is not None:
            assert message[1] <= PIECE_BYTES
            assert before.isdisjoint(layout.check(*message)), "sent what was never asked for"
            wire += [message] * (2 if rng.random() < 0.2 else 1)
        rng.shuffle(wire)
        if wire:
            message = wire.pop()
            if rng.random() >= loss:
                receiver.accept(*message, now)
    assert receiver.complete
    assert receiver.outstanding == 0


@pytest.mark.parametrize("rate", [32e3, 125e3, 2.5e6, 1e8])
@pytest.mark.parametrize("round_trip_s", [0.0, 0.2])
@pytest.mark.parametrize("bucket", [0, 64 * 1024])
def test_a_link_is_never_asked_for_more_than_it_carries_in_two_seconds_nor_twice(
    rate: float, round_trip_s: float, bucket: int
) -> None:
    """As soon as it has shown what that is, nor is it left idle; the first bytes may come at once,
    as out of a token bucket.
    """
    layout = Layout(4 << 20, CHUNK)
    receiver, sent, now, free_at = Receiver(layout), 0, 0.0, 0.0
    queue: list[tuple[float, int, int]] = []
    while not receiver.complete:
        ahead = receiver.outstanding * CHUNK
        for start, stop in receiver.ask(now):
            begin, end = layout.span(start, stop)
            sent += end - begin
            slow = max(0, min(end - begin, sent - bucket))
            free_at = max(free_at, now + round_trip_s) + slow / rate
            queue.append((free_at, start, end - begin))
        if receiver.outstanding * CHUNK > ahead:
            fits = max(1.5 * AHEAD_S * rate, 64 * 1024 + 2 * bucket)
            assert receiver.outstanding * CHUNK <= min(fits, WINDOW_BYTES)
        at, index, length = queue[0]
        if receiver.due is not None and receiver.due < at:
            now = receiver.due
            continue
        del queue[0]
        now = at
        receiver.accept(index, length, now)
    assert sent == layout.size
    assert now <= 1.2 * layout.size / rate + 10 * round_trip_s


def test_over_a_hopeless_link_a_transfer_ends_though_all_is_asked_for_again() -> None:
    layout, free_at, now, rate = Layout(300_000, CHUNK), 0.0, 0.0, 1000.0
    receiver, queue = Receiver(layout), list[tuple[float, int, int]]()
    while not receiver.complete:
        for start, stop in receiver.ask(now):
            begin, end = layout.span(start, stop)
            free_at = max(free_at, now) + (end - begin) / rate
            queue.append((free_at, start, end - begin))
        assert receiver.due is not None
        now = min(queue[0][0], receiver.due)
        if now == queue[0][0]:
            receiver.accept(*queue.pop(0)[1:], now)
    assert free_at <= 5 * layout.size / rate


def test_a_receiver_that_hears_nothing_for_days_asks_on_and_for_less() -> None:
    receiver = Receiver(Layout(WINDOW_BYTES, 10_000), Pace(5e5))
    asked = [receiver.ask(0.0)]
    while receiver.due is not None and receiver.due < 2 * 86_400:
        asked.append(receiver.ask(receiver.due))
    assert [sum(b - a for a, b in one) for one in asked[:4]] == [100, 50, 25, 12]
    assert asked[-1] == ((0, 1), (1, 2))


def test_the_short_end_of_an_object_makes_no_fast_link_slow() -> None:
    pace = Pace(WINDOW_BYTES)
    pace.note(1000, 0.1)
    assert pace.window_bytes == WINDOW_BYTES
    for nbytes, seconds in ((1, 0.0), (WINDOW_BYTES, -1.0), (1, 1e9), (0, 1.0)):
        pace.note(nbytes, seconds)
        assert 16 * 1024 <= pace.window_bytes <= WINDOW_BYTES


def test_a_repeated_request_is_ignored_while_the_link_is_busy() -> None:
    sender = Sender(Layout(40, 10))
    sender.authorise(((0, 2),), link_idle=True)
    assert [sender.next(10), sender.next(10), sender.next()] == [(0, 10), (1, 10), None]
    sender.authorise(((0, 2),), link_idle=False)
    assert sender.next() is None
    sender.authorise(((0, 2),), link_idle=True)
    assert sender.next() == (0, 20)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=60))
def test_the_pool_is_never_overdrawn(steps: list[tuple[bool, int]]) -> None:
    pool, out = CreditPool(100), 0
    for take, size in steps:
        if take and pool.chunks(size) > 0:
            pool.take(size)
            out += size
        elif not take and out:
            pool.take(-min(size, out))
            out -= min(size, out)
        assert pool.used_bytes == out <= 100


def test_a_sender_honours_a_window_and_forgets_the_rest() -> None:
    sender = Sender(Layout(100 * CHUNK, CHUNK))
    for _ in range(3):
        sender.authorise(((0, 65_536),), link_idle=True)
        sender.authorise(((50, 65_536),), link_idle=True)
    assert sender.pending * CHUNK == WINDOW_BYTES
    assert [sender.next() for _ in range(5)] == [*((16 * i, PIECE_BYTES) for i in range(4)), None]
