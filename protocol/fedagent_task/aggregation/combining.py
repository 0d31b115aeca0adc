"""A round's updates to one: what a robust rule makes of them, in memory of a few blocks.

Each update is given by what opens it, so that none has to be in memory: an edge's are on disk.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .base import Weighed
from .robust import Floats, Robust, Selected, Trimmed
from .sums import ALL_TRAIN, Arrays, Rules, RunningMean, blocks

Opened = Callable[[], Arrays]
"""Opens an update: its tensors by name."""
_AT_ONCE = 1 << 19
"""Numbers of a block over all updates, in float64."""


def combine(
    rule: Robust, updates: Sequence[tuple[Opened, Weighed]], rules: Rules = ALL_TRAIN
) -> RunningMean:
    """Return the sum that stands for these updates, in the order in which they came."""
    if updates and isinstance(rule, Trimmed):
        return _trimmed(rule, updates, rules)
    if updates and isinstance(rule, Selected):
        return _selected(rule, updates, rules)
    mean = RunningMean(rules)
    for opened, term in updates:
        add(mean, opened(), term)
    return mean


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


def _trimmed(rule: Trimmed, updates: Sequence[tuple[Opened, Weighed]], rules: Rules) -> RunningMean:
    newest = updates[-1][0]()
    found: dict[str, list[Floats]] = {name: [] for name in newest}
    for name, values in _columns(updates, rules):
        found[name].append(rule.location(values))
    sums = {
        name: np.concatenate(parts) if parts else newest[name].reshape(-1).astype(np.float64)
        for name, parts in found.items()
    }
    return RunningMean.of(sums, 1.0, rules)


def _columns(
    updates: Sequence[tuple[Opened, Weighed]], rules: Rules
) -> Iterator[tuple[str, Floats]]:
    """Yield blocks of all updates, float64[n, b], tensor by tensor."""
    opened = [one() for one, _ in updates]
    ratios = np.array([[term.coefficient / term.weight] for _, term in updates])
    length = max(64, _AT_ONCE // len(updates))
    for name in opened[0].keys() - rules.latest:
        flat = [delta[name].reshape(-1) for delta in opened]
        for block in blocks(flat[0].size, length):
            values = np.stack([one[block].astype(np.float64) for one in flat])
            yield name, values * (1.0 if name in rules.mean else ratios)
