"""`all`: everybody who is available, as far as the budgets go, in a random order."""

import numpy as np

from .base import RoundView, Selection, StatelessPolicy
from .selection import explained, fill


class AllPolicy(StatelessPolicy):
    """Take as many clients as the budgets pay for, one edge after the other's fill.

    Differs from `cheapest` in that nobody is preferred, and from `random` in that a client
    that does not fit at one edge is tried at the others before anybody new: the clients,
    not the pairs, are shuffled.
    """

    needs: frozenset[str] = frozenset()

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round; the score of a pair is minus its client's place in the draw."""
        place = rng.permutation(len(view.client_price))[view.pair_client]
        order = np.lexsort((rng.random(len(place)), place)).astype(np.int64)
        return explained(view, fill(view, order), -place.astype(np.float64))
