"""Repeated calls walk all K-subsets in the exact order."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.policies.base import IntArray
from fedagent_coordinator.policies.sets.arms import keys_of
from fedagent_coordinator.policies.sets.subset_enumeration import (
    Played,
    RankedClients,
    best_unplayed,
)


def line_of(scores: dict[int, int], total: int) -> tuple[RankedClients, IntArray]:
    """The line and everybody's rank; clients without a score are not there."""
    order = sorted(range(total), key=lambda c: (-scores.get(c, 1), c))
    values = sorted({*scores.values(), 1}, reverse=True)
    there = np.zeros(total, dtype=np.bool_)
    there[list(scores)] = True
    line = RankedClients.of(
        there,
        order=np.array(order, dtype=np.int64),
        level=np.array([values.index(scores.get(c, 1)) for c in range(total)], dtype=np.int64),
        values=np.array(values, dtype=np.object_),
    )
    return line, np.argsort(order).astype(np.int64)


def best(
    scores: dict[int, int], size: int, played: Sequence[tuple[int, ...]]
) -> tuple[int, ...] | None:
    rows = np.array(played, dtype=np.int32).reshape(-1, size)
    totals = [sum(scores[c] for c in arm) for arm in played]
    ranked = np.array(sorted(range(len(totals)), key=lambda a: -totals[a]), dtype=np.int64)
    line, rank = line_of(scores, 401)
    known = Played.of(rows, rank, np.array(totals, dtype=np.object_), set(keys_of(rows)))
    subset = best_unplayed(line, size, known, ranked)
    if subset is None:
        return None
    arm = tuple(subset.clients.tolist())
    assert subset.total == sum(scores[c] for c in arm)
    return arm


clients_with_scores = st.dictionaries(
    st.integers(0, 400), st.one_of(st.integers(0, 3), st.integers(-(10**30), 10**30)), max_size=7
)


@given(scores=clients_with_scores, data=st.data())
def test_any_played_subsets_are_skipped(scores: dict[int, int], data: st.DataObject) -> None:
    if not scores:
        return
    size = data.draw(st.integers(1, len(scores)))
    every = list(combinations(sorted(scores), size))
    played = data.draw(st.lists(st.sampled_from(every), unique=True))
    left = [arm for arm in every if arm not in played]
    expected = min(left, key=lambda arm: (-sum(scores[c] for c in arm), arm), default=None)
    assert best(scores, size, played) == expected


def test_sums_that_floats_cannot_tell_apart_are_told_apart() -> None:
    scores = {0: 10**20, 1: 10**20 + 1, 2: 0, 3: 0}
    assert best(scores, 1, []) == (1,)
    assert best(scores, 2, [(0, 1)]) == (1, 2)
