"""What talks with neighbours gets keys, memory and a generator here, when it is first needed."""

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .core.effects import StoreSlot
from .errors import PeerStoreError

if TYPE_CHECKING:
    from fedagent_node.identity import Identity

    from .core.peering import Peering
    from .peer_store import PeerStore


class PeerDesk:
    """The outside of `Peering`.

    Args:
        directory: The agent's data directory.
        identity: Signs the card; None: there are no neighbours.
        declared: Neighbours that the owner names, and how far they are in kilometres.
        seed: Of the generator that spreads repeats in time.
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
        me = identity.id if identity is not None else ""
        self._declared = {peer: far for peer, far in declared.items() if peer != me}
        self._seed = seed
        self._store: PeerStore | None = None

    def make(self, counters: Counter[str]) -> "Peering | str":
        """Return what talks with neighbours, or why there is nothing that does."""
        # Imported late: keys cost an idle agent several megabytes.
        from .cipher import PeerSeal  # noqa: PLC0415
        from .core.peering import Peering, PeeringSettings  # noqa: PLC0415
        from .peer_store import PeerStore  # noqa: PLC0415

        identity = self._identity
        if identity is None:
            return "no identity to seal envelopes with"
        try:
            self._store = store = PeerStore(self._directory)
            kept = store.standings()
        except PeerStoreError as error:
            return str(error)
        return Peering(
            PeeringSettings(identity.id, store.incarnation, self._declared),
            PeerSeal(identity, store.epoch, frozenset(), reserved=frozenset(self._declared)),
            random.Random(f"{self._seed}/{store.incarnation}"),  # noqa: S311 - no secret hangs on it
            kept=kept,
            counters=counters,
        )

    def keep(self, effect: StoreSlot) -> bool:
        """Keep what only the owner may see; a disk that refuses costs the slot's memory alone."""
        if self._store is None:
            return False
        try:
            self._store.keep(effect)
        except PeerStoreError:
            return False
        return True

    def close(self) -> None:
        """Close what is open."""
        if self._store is not None:
            self._store.close()
