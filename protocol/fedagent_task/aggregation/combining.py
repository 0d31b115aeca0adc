"""A round's updates to one: what a robust rule makes of them, in memory of a few blocks.

Each update is given by what opens it, so that none has to be in memory: an edge's are on disk.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from .base import Weighed
from .robust import Floats, Robust, Selected
from .sums import ALL_TRAIN, Arrays, Rules, RunningMean, blocks

T = TypeVar("T")
Opened = Callable[[], Arrays]
"""Opens an update: its tensors by name."""
_AT_ONCE = 1 << 19
"""Numbers of a block over all updates, in float64."""


def combine(
    rule: Robust, updates: Sequence[tuple[Opened, Weighed]], rules: Rules = ALL_TRAIN
) -> RunningMean:
    """Return the sum that stands for these updates, in the order in which they came."""
    if updates and isinstance(rule, Selected):
        return _selected(rule, updates, rules)
    mean = RunningMean(rules)
    for opened, term in in_order(updates):
        add(mean, opened(), term)
    return mean


def in_order(updates: Sequence[tuple[T, Weighed]]) -> list[tuple[T, Weighed]]:
    """Return those that are as they came, then those that are shortened or capped."""
    return sorted(updates, key=lambda one: not one[1].is_plain)


def add(mean: RunningMean, delta: Arrays, term: Weighed) -> None:
    """Add an update by its term."""
    mean.add(delta, term.weight, term.coefficient, clip=term.clip, control_clip=term.control_clip)


def _selected(
    rule: Selected, updates: Sequence[tuple[Opened, Weighed]], rules: Rules
) -> RunningMean:
    total = sum(term.weight for _, term in updates)
    mean = RunningMean(rules)
    for (opened, term), factor in zip(
        updates, rule.combination(_gram(updates, rules)).tolist(), strict=True
    ):
        if factor > 0:
            times = factor * total
            mean.add(opened(), times, times * term.coefficient / term.weight)
    mean.weight = total
    return mean


def _gram(updates: Sequence[tuple[Opened, Weighed]], rules: Rules) -> Floats:
    """Return the inner products of the updates, float64[n, n]; counters are not in them."""
    gram = np.zeros((len(updates), len(updates)))
    for _, values in _columns(updates, rules):
        gram += values @ values.T
    return gram


def _columns(
    updates: Sequence[tuple[Opened, Weighed]], rules: Rules
) -> Iterator[tuple[str, Floats]]:
    """Yield blocks of all updates, float64[n, b], tensor by tensor."""
    opened = [one() for one, _ in updates]
    ratios = np.array([[term.coefficient / term.weight] for _, term in updates])
    length = max(64, _AT_ONCE // len(updates))
    for name, first in opened[0].items():
        if name in rules.latest:
            continue
        by = None if name in rules.mean or (ratios == 1.0).all() else ratios
        for block in blocks(first.size, length):
            values = np.empty((len(opened), min(block.stop, first.size) - block.start))
            for row, delta in zip(values, opened, strict=True):
                row[:] = delta[name].reshape(-1)[block]
            yield name, values if by is None else values * by
