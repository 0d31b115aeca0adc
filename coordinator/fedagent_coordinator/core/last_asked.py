"""What clients asked when they were last heard: who is away now may be paid yet."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import IntArray, RoundView
from fedagent_coordinator.policies.state import grown

from .decision import NOBODY, least_round
from .settings import Settings

UNHEARD = -1
"""Instead of a price: the client, or the edge, has not said it."""


def _none() -> IntArray:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class LastAsked:
    """The last price of each client, int64[N], and the pairs of client and edge that were heard."""

    price: IntArray = field(default_factory=_none)
    _pairs: IntArray = field(default_factory=_none)  # int64[P], sorted: client << 32 | edge

    @classmethod
    def of(cls, shown: IntArray) -> "LastAsked":
        """Begin with the prices that a former process saw last, int64[N] with 0 of none."""
        return cls(np.where(shown > 0, shown, UNHEARD))

    def hear(self, view: RoundView, *, rents: bool) -> None:
        """Take in what is asked now; who is seen where counts for `rents` alone."""
        self.price = grown(self.price, len(view.client_price), UNHEARD)
        self.price[view.pair_client] = view.client_price[view.pair_client]
        if rents:
            pairs = view.pair_client.astype(np.int64) << 32 | view.pair_edge
            self._pairs = np.union1d(self._pairs, pairs)

    def forget(self, clients: npt.NDArray[np.int32]) -> None:
        """Expect these clients no more; what is no index is passed over."""
        self.price[clients[(clients >= 0) & (clients < len(self.price))]] = UNHEARD

    def pays_client(self, left_micro: int, settings: Settings) -> bool:
        """Return whether a client asked as little as the run and an edge may pay."""
        most = min(left_micro, settings.recipe.budget.per_edge_micro)
        return bool(((self.price != UNHEARD) & (self.price <= most)).any())

    def rounds(self, rent: IntArray, settings: Settings) -> IntArray:
        """Return int64[M], what a round at each edge cost, with its rent; `UNHEARD` if unknown."""
        client, edge = self._pairs >> 32, self._pairs & 0xFFFFFFFF
        known = self.price[client] != UNHEARD
        least = least_round(edge[known], self.price[client[known]], len(rent), settings)
        return np.where((rent != UNHEARD) & (least != NOBODY), rent + least, UNHEARD)
