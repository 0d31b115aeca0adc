"""`cheapest`: as many clients as the budgets pay for, cheapest first."""

import numpy as np

from .base import RoundView, Selection, StatelessPolicy
from .selection import explained, fill


class CheapestPolicy(StatelessPolicy):
    """Take visible pairs by increasing price while they fit; ties by chance."""

    needs: frozenset[str] = frozenset()

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round; the score of a pair is minus its price."""
        price = view.pair_price
        order = np.lexsort((rng.random(len(price)), price)).astype(np.int64)
        return explained(view, fill(view, order), -price.astype(np.float64))
