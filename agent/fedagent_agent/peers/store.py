"""What a device brings to the selection among neighbours: its keys, and what its books kept."""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping

from fedagent_agent.books import Books, DiskError
from fedagent_node.data_dir import Identity

from .core.selection import PeerAccess
from .core.transport import PeerTransport
from .seal import PeerSeal


class PeerDevice:
    """Opens keys and memory when neighbours are first needed.

    Args:
        identity: Signs the card; None: there are no neighbours.
        declared: Neighbours that the owner names, and how far they are in kilometres.
    """

    def __init__(
        self,
        books: Books,
        identity: Identity | None,
        declared: Mapping[str, float],
        *,
        seed: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._books, self._identity = books, identity
        self._declared, self._seed, self._clock = declared, seed, clock

    def open(self, counters: Counter[str]) -> PeerAccess | str:
        """Open keys and memory; return why that is impossible."""
        identity = self._identity
        if identity is None:
            return "no identity to seal envelopes with"
        try:
            start, arms = self._books.begin_peers(int(self._clock())), self._books.arms()
        except DiskError as error:
            return str(error)
        declared = {peer: far for peer, far in self._declared.items() if peer != identity.id}
        seal = PeerSeal(identity, start, reserved=frozenset(declared))
        return PeerAccess(
            me=identity.id,
            incarnation=start,
            transport=PeerTransport(seal, counters),
            rng=random.Random(self._seed),  # noqa: S311 - no secret
            arms=arms,
            declared=declared,
        )
