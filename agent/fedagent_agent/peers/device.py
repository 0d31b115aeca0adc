"""What a device brings to the selection among neighbours: its keys and its memory."""

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedagent_agent.core.effects import StoreSlot
from fedagent_agent.errors import PeerStoreError

from .core.selection import PeerAccess

if TYPE_CHECKING:
    from fedagent_node.identity import Identity

    from .store import PeerStore


class PeerDevice:
    """Opens keys and memory when neighbours are first needed, and keeps slots.

    Args:
        identity: Signs the card; None: there are no neighbours.
        declared: Neighbours that the owner names, and how far they are in kilometres.
    """

    def __init__(
        self,
        directory: Path,
        identity: "Identity | None",
        declared: Mapping[str, float],
        *,
        seed: int,
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._declared = declared
        self._seed = seed
        self._store: PeerStore | None = None

    def open(self, counters: Counter[str]) -> PeerAccess | str:
        """Open keys and memory; return why that is impossible."""
        # Imported late: keys cost an idle agent several megabytes.
        from .core.transport import PeerTransport  # noqa: PLC0415
        from .seal import PeerSeal  # noqa: PLC0415
        from .store import PeerStore  # noqa: PLC0415

        identity = self._identity
        if identity is None:
            return "no identity to seal envelopes with"
        try:
            self._store = store = PeerStore(self._directory)
            arms = store.arms()
        except PeerStoreError as error:
            return str(error)
        declared = {peer: far for peer, far in self._declared.items() if peer != identity.id}
        seal = PeerSeal(identity, store.epoch, reserved=frozenset(declared))
        return PeerAccess(
            me=identity.id,
            incarnation=store.incarnation,
            transport=PeerTransport(seal, counters),
            rng=random.Random(f"{self._seed}/{store.incarnation}"),  # noqa: S311 - no secret
            arms=arms,
            declared=declared,
        )

    def keep(self, effect: StoreSlot) -> None:
        """Keep what only the owner may see.

        Raises:
            PeerStoreError: The disk refused; that costs the slot's memory alone.
        """
        if self._store is not None:
            self._store.keep(effect)

    def close(self) -> None:
        """Close what is open."""
        if self._store is not None:
            self._store.close()
