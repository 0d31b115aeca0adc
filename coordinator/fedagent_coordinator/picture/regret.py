"""An estimate of regret while a run goes on: true chances are unknown, estimates stand for them."""

import numpy as np

from fedagent_coordinator.policies.base import FloatArray, IntArray, RoundView
from fedagent_coordinator.policies.selection import fill


def round_regret(view: RoundView, pairs: IntArray, chance: FloatArray) -> float:
    """Return how many more updates in time a round could have had, by what is estimated.

    As many devices as were chosen, by their chances within the same budgets, against those
    that were chosen; never below 0.

    Args:
        view: The round as its policy saw it.
        pairs: int64[S], the chosen pairs.
        chance: float64[N], estimated chance of each client to be in time, the round included.
    """
    its = chance[view.pair_client]
    order = np.lexsort((view.pair_price, -its)).astype(np.int64)
    best = fill(view, order)[: len(pairs)]
    return max(0.0, float(its[best].sum() - its[pairs].sum()))


def chances(in_time: IntArray, ordered: IntArray) -> FloatArray:
    """Return the mean of a uniform prior after so many orders, float64[N]."""
    return np.asarray((in_time + 1.0) / (ordered + 2.0), dtype=np.float64)
