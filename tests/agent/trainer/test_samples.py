"""Samples held out: never given twice, never lost, never scored after; and how large they are."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedagent_agent.trainer.samples import (
    HeldOutSamples,
    Part,
    Proportions,
)
from fedagent_task.models import Floats

STEP = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 9)),
    st.tuples(st.just("newest"), st.integers(0, 12)),
    st.tuples(st.just("give"), st.integers(0, 12)),
    st.tuples(st.sampled_from(["scored", "release", "train"]), st.just(0)),
)


def _ids(parts: list[Part]) -> list[int]:
    assert all(len(x) == len(y) for x, y in parts)
    return [int(y) for _, labels in parts for y in labels]


@given(st.lists(STEP, max_size=40))
def test_a_sample_is_given_once_in_order_and_never_seen_after(steps: list[tuple[str, int]]) -> None:
    held, came, gone = HeldOutSamples(), 0, 0
    for what, count in steps:
        if what == "put":
            ids = np.arange(came, came + count)
            held.put(ids[:, None].astype(np.float32), ids, start=came)
            came += count
        elif what == "newest":
            seen = _ids(list(held.newest(count)))
            assert sorted(seen) == list(range(max(gone, came - count), came))
        elif what == "give":
            parts = list(held.give(count))
            assert _ids(parts) == list(range(gone, min(came, gone + count)))
            gone = min(came, gone + count)
        elif what == "train":
            ready = held.ready
            assert _ids(list(held.give(ready))) == list(range(gone, gone + ready))
            gone += ready
        else:
            getattr(held, what)()
            assert held.ready == len(held)
        assert len(held) == came - gone
        assert 0 <= held.ready <= len(held)
        assert held.offset(came) <= gone if gone < came else held.offset(came) == came


# ---------------------------------------------------------------------- proportions


def looked(x: Floats) -> Proportions:
    proportions = Proportions()
    proportions.names = [f"f{i}" for i in range(x.shape[1])]
    size = len(x) // 7 + 1
    told = [proportions.look(x[i : i + size]) for i in range(0, len(x), size)]
    assert told.count(True) == bool(proportions.note), "once"
    return proportions


def test_large_and_tiny_features_are_named() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal((0, 101_325, 1, 0), (1, 500, 1, 1e-7), (200, 4))
    proportions = looked(x)
    assert proportions.note == "out of proportion: f1, f3"
