"""Episodes: as often and as long as asked for, by the seed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedagent_testbed.worlds.episodes import episodes, starts


@given(
    seed=st.integers(0, 2**32),
    rounds=st.integers(1, 300),
    every=st.integers(1, 100),
    length=st.integers(1, 400),
)
def test_they_start_half_to_one_and_a_half_gaps_apart(
    seed: int, rounds: int, every: int, length: int
) -> None:
    begun = starts(np.random.default_rng(seed), rounds=rounds, every=every)
    at = np.flatnonzero(begun)
    assert begun.shape == (rounds,)
    assert not begun[0]
    assert (np.diff(at) >= every // 2).all()
    assert (np.diff(at) <= 1.5 * every + 1).all()
    assert len(at) or rounds <= 1.5 * every + 1
    going = episodes(np.random.default_rng(seed), rounds=rounds, every=every, length=length)
    wanted = [any(t - length < start <= t for start in at) for t in range(rounds)]
    assert going.tolist() == wanted
