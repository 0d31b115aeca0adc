"""Transfers over a network that loses, repeats and reorders, under credit."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_protocol.errors import ChunkError, OversizeError
from fedagent_protocol.transfer import (
    CREDIT_WINDOW,
    Broadcast,
    CreditPool,
    Layout,
    Receiver,
    Sender,
    to_ranges,
)


@given(st.integers(1, 10**6), st.integers(1, 4096))
def test_chunks_tile_the_object(size: int, chunk_bytes: int) -> None:
    if -(-size // chunk_bytes) > 65_536:
        with pytest.raises(OversizeError):
            Layout(size, chunk_bytes)
        return
    layout = Layout(size, chunk_bytes)
    spans = [layout.span(i) for i in range(layout.count)]
    assert spans[0][0] == 0
    assert spans[-1][1] == size
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    for index in (-1, layout.count):
        with pytest.raises(ChunkError):
            layout.span(index)
    with pytest.raises(ChunkError):
        layout.check(0, spans[0][1] + 1)


@given(st.sets(st.integers(0, 60)))
def test_ranges_hold_exactly_their_indices(indices: set[int]) -> None:
    ranges = to_ranges(sorted(indices))
    assert [i for a, b in ranges for i in range(a, b)] == sorted(indices)
    assert all(b < c for (_, b), (c, _) in itertools.pairwise(ranges))


@given(
    count=st.integers(1, 60),
    window=st.integers(1, 8),
    loss=st.floats(0, 0.6),
    have=st.sets(st.integers(0, 59)),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=50, deadline=None)
def test_everything_arrives_within_the_window(
    count: int, window: int, loss: float, have: set[int], seed: int
) -> None:
    rng = random.Random(seed)
    layout = Layout(count * 10, 10)
    receiver = Receiver(layout, window=window, have={i for i in have if i < count})
    before = set(receiver.have)
    sender = Sender(layout)
    wire: list[int] = []
    now = 0.0
    # One chunk at a time with 60 % lost each way needs six requests 15 s apart for each.
    for _ in range(100_000):
        if receiver.complete:
            break
        now += 0.1
        asked = receiver.ask(now)
        assert receiver.outstanding <= window
        if asked and rng.random() >= loss:
            assert not any(i in receiver.have for a, b in asked for i in range(a, b))
            sender.authorise(asked, link_idle=not wire)
        while (index := sender.next()) is not None:
            assert index not in before, "sent what was never asked for"
            wire += [index] * (2 if rng.random() < 0.2 else 1)
        rng.shuffle(wire)
        if wire:
            index = wire.pop()
            if rng.random() >= loss:
                receiver.accept(index, 10, now)
    assert receiver.complete
    assert receiver.outstanding == 0


def test_a_transfer_without_loss_sends_each_chunk_once_and_asks_every_half_window() -> None:
    layout = Layout(100 * 256, 256)
    receiver, sender, asks, sent = Receiver(layout, window=4), Sender(layout), 0, 0
    while not receiver.complete:
        asked = receiver.ask(0.0)
        asks += bool(asked)
        sender.authorise(asked, link_idle=False)
        while (index := sender.next()) is not None:
            sent += 1
            assert receiver.accept(index, 256, 0.0)
            more = receiver.ask(0.0)
            asks += bool(more)
            sender.authorise(more, link_idle=False)
    assert sent == 100
    assert asks <= 51


def test_a_slow_link_is_not_asked_twice_while_a_chunk_is_under_way() -> None:
    receiver = Receiver(Layout(40, 10), window=2)
    assert receiver.ask(0.0) == ((0, 2),)
    assert receiver.ask(1.0) == ()
    assert receiver.ask(2.0) == ((0, 2),)
    receiver.accept(0, 10, 30.0)
    assert receiver.ask(60.0) == ((2, 3),), "a slow chunk makes patient, up to a minute"
    assert receiver.ask(89.9) == ()
    assert receiver.ask(90.0) == ((1, 3),)


def test_a_repeated_request_is_ignored_while_the_link_is_busy() -> None:
    sender = Sender(Layout(40, 10))
    sender.authorise(((0, 2),), link_idle=True)
    assert [sender.next(), sender.next(), sender.next()] == [0, 1, None]
    sender.authorise(((0, 2),), link_idle=False)
    assert sender.next() is None
    sender.authorise(((0, 2),), link_idle=True)
    assert [sender.next(), sender.next()] == [0, 1]


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


@given(
    count=st.integers(1, 40),
    receivers=st.integers(1, 6),
    silent=st.integers(0, 5),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=40, deadline=None)
def test_a_broadcast_publishes_each_chunk_once_at_the_pace_of_the_credit(
    count: int, receivers: int, silent: int, seed: int
) -> None:
    rng = random.Random(seed)
    layout = Layout(count, 1)
    ends = {f"a{i}": Receiver(layout, window=4) for i in range(receivers)}
    mute = f"a{silent}" if silent < receivers - 1 else ""
    broadcast = Broadcast(layout)
    published: list[int] = []
    now = 0.0
    for name, end in ends.items():
        broadcast.authorise(name, end.ask(now), now)
    for _ in range(5000):
        if all(end.complete for name, end in ends.items() if name != mute):
            break
        now += 0.05
        while (index := broadcast.next(now)) is not None:
            published.append(index)
            for name, end in ends.items():
                if name != mute and rng.random() < 0.9:
                    end.accept(index, 1, now)
        for name, end in ends.items():
            asked = () if name == mute else end.ask(now)
            for index in broadcast.authorise(name, asked, now) if asked else ():
                end.accept(index, 1, now)
            if end.complete:
                broadcast.leave(name)
    assert all(end.complete for name, end in ends.items() if name != mute)
    assert published == sorted(set(published))


needs = st.lists(
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 65_536)), min_size=1, max_size=4).map(
        tuple
    ),
    min_size=1,
    max_size=8,
)


@given(steps=st.lists(needs, min_size=1, max_size=6), slow=st.integers(0, 60))
def test_a_receiver_that_authorises_everything_goes_one_window_ahead_of_a_slow_one(
    steps: list[list[tuple[tuple[int, int], ...]]], slow: int
) -> None:
    """However many requests are read at once; the slow one is not heard of again."""
    broadcast = Broadcast(Layout(100, 1))
    broadcast.authorise("slow", ((slow, slow + 4),), 0.0)
    for step, asked in enumerate(steps):
        read_at = float(step)
        published: list[int] = []
        alone: list[int] = []
        for number, ranges in enumerate(asked):
            now = read_at + 0.1 + number / 100
            behind = broadcast.authorise("greedy", ranges, now, asked_at=read_at)
            for _ in behind:
                broadcast.sent("greedy", now)
            alone += behind
            while (index := broadcast.next(now)) is not None:
                published.append(index)
        unasked = [index for index in published if not slow <= index < slow + 4]
        assert len(unasked) + len(alone) <= CREDIT_WINDOW
        if step == 0:
            assert not [index for index in published if index >= slow + 4], "it is not silent yet"


def test_a_sender_honours_a_window_and_forgets_the_rest() -> None:
    sender = Sender(Layout(100, 1))
    for _ in range(3):
        sender.authorise(((0, 65_536),), link_idle=True)
        sender.authorise(((50, 65_536),), link_idle=True)
    assert sender.pending == CREDIT_WINDOW
    assert [sender.next() for _ in range(9)] == [*range(8), None]


@given(
    count=st.integers(1, 60),
    receivers=st.integers(1, 4),
    asks=st.sampled_from(["all", "not there", "went out"]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=50, deadline=None)
def test_one_that_asks_for_all_or_for_nothing_of_use_keeps_the_model_from_nobody(
    count: int, receivers: int, asks: str, seed: int
) -> None:
    rng = random.Random(seed)
    layout = Layout(count, 1)
    ends = {f"a{i}": Receiver(layout, window=4) for i in range(receivers)}
    broadcast = Broadcast(layout)
    now = 0.0
    for _ in range(5000):
        if all(end.complete for end in ends.values()):
            break
        now += 0.05
        first = {"all": rng.randrange(count), "not there": 65_000, "went out": 0}[asks]
        last = 65_536 if asks == "all" else first + 1
        broadcast.authorise("greedy", ((first, last),), now)
        for name, end in ends.items():
            # Slow ones are silent for long.
            asked = end.ask(now) if rng.random() < 0.2 else ()
            for alone in broadcast.authorise(name, asked, now) if asked else ():
                end.accept(alone, 1, now)
        while (index := broadcast.next(now)) is not None:
            for end in ends.values():
                if rng.random() < 0.9:
                    end.accept(index, 1, now)
    assert all(end.complete for end in ends.values())
