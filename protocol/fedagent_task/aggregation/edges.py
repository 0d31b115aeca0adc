"""Which edge models a merge takes, and how far each may have moved: an edge lies as devices do.

Held-out samples tell a liar from an honest edge, also of two. Without them three directions do,
of two neither; then a move is still no longer than the devices' own.
"""

import math
import statistics
from collections.abc import Callable, Collection, Sequence

import numpy as np

from .alignment import Flags, Floats, cosines

CLIP = 1.5
"""An edge may move so many times as far as is usual."""
FASTER = 1.1
"""By how much what is usual grows or shrinks from one merge to the next, at most."""
PARTS = 8
"""Parts of the judging samples: by how much they differ, a difference is sure or not."""
LARGEST_LOSS = 1e30
"""What stands for a loss that is no number."""
_SURE = 3.0
"""Standard errors."""
_WORSE, _NEWEST = 0.1, 0.3
"""Share of the best loss that a merge may lose on it before anybody is suspected; see `harmful`."""
_UNDONE = 0.5
"""Share of its own share of what a merge gains that an edge may undo."""
_AGREED, _AGAINST = 0.1, -0.3


def usual_move(told: float, moves: Sequence[float], before: float) -> float:
    """Return how far an edge usually moves; 0 for not known.

    A mean is no longer than its parts: `told` is the median norm of the devices' updates, 0 where
    edges see none. Where it is smaller than most moves, as FedNova's steps can be, those count.
    """
    known = sorted(move for move in moves if 0 < move < math.inf)
    others = statistics.median_low(known) if len(known) > 1 or (known and not told) else 0.0
    found = max(told, others) or before
    return min(max(found, before / FASTER), before * FASTER) if before else found


def opposed(gram: Floats) -> Flags:
    """Return which moves point against the others, bool[n], by inner products float64[n, n].

    Fewer than half, and only where those that remain agree: near an optimum of edges with
    different labels all point against each other.
    """
    there = np.diag(gram) > 0
    kept = there.copy()
    while 2 * ((there & ~kept).sum() + 1) < there.sum():
        rest = kept.copy()
        rest[np.where(kept, cosines(gram, kept), np.inf).argmin()] = False
        now, out = cosines(gram, rest), kept & ~rest
        if now[out][0] >= _AGAINST or np.median(now[rest]) <= _AGREED:
            break
        kept = rest
    return there & ~kept


def harmful(
    loss: Callable[[Collection[int]], Floats], best: Floats, costs: Floats, doubted: Flags
) -> tuple[Flags, Floats]:
    """Return which edges a merge is better without, bool[n], and what each costs, float64[n].

    Zeno's question, put at the margin: an edge that costs the merges is left out if it costs this
    one, beyond doubt, more than half of its share of what the merge gains on the best model so
    far, or anything where the merge is worse than that. Who was left out stays so until it costs
    no more. One alone is left out only as one that was.

    Args:
        loss: What the mean of some edges loses on each part of the judging samples, float64[p].
        best: The same of the best model so far.
        costs: What each edge has cost the merges, over the best loss, float64[n]: a mean in which
            the newest weighs `_NEWEST`; NaN of one that is new.
        doubted: Who was left out last, bool[n].
    """
    kept, now = list(range(len(costs))), costs.copy()
    scale = float(best.mean()) or 1.0  # a hinge's loss may be 0
    while len(kept) > 1 or (kept == [0] and len(costs) == 1 and doubted[0]):
        whole = loss(kept)
        more = whole - best
        worse = _sure(more) > _SURE and more.mean() > _WORSE * scale
        against: list[tuple[float, int]] = []
        for one in kept:
            without = loss([other for other in kept if other != one])
            cost, gain = whole - without, best - without
            fresh = cost.mean() / scale
            before = fresh if np.isnan(costs[one]) else costs[one]
            now[one] = before + _NEWEST * (fresh - before)
            undone = _sure(gain) > _SURE and cost.mean() > _UNDONE / len(costs) * gain.mean()
            sure = _sure(cost) > _SURE and (worse or undone)
            if now[one] > 0 and (doubted[one] or sure):
                against.append((_sure(cost), one))
        if not against:
            break
        kept.remove(max(against)[1])
    return ~np.isin(np.arange(len(costs)), kept), now


def _sure(difference: Floats) -> float:
    """Return a mean over the parts in standard errors."""
    error = float(difference.std(ddof=1)) / math.sqrt(len(difference))
    return float(difference.mean()) / max(error, 1e-12)
