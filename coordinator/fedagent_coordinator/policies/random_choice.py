"""`random`: a uniformly random order of pairs, filled into the budgets."""

import numpy as np

from .base import RoundView, Selection, StatelessPolicy
from .selection import explained, fill


class RandomPolicy(StatelessPolicy):
    """Take visible pairs in random order while they fit (COCS, baseline 4)."""

    needs: frozenset[str] = frozenset()

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round; the score of a pair is minus its place in the draw."""
        order = rng.permutation(len(view.pair_client)).astype(np.int64)
        scores = np.empty(len(order))
        scores[order] = -np.arange(len(order), dtype=np.float64)
        return explained(view, fill(view, order), scores)
