"""Which broker to look for a coordinator on: the typed one, adverts, the shared one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fedagent_node.advert import Advert, in_words
from fedagent_node.link import BrokerAddress

from .config import EdgeConfig

_log = logging.getLogger(__name__)

PATIENCE_S = 6.0
"""How long an address may stay without a welcome when there is another one to try."""


class CoordinatorSearch:
    """Tries the candidates in turn until this edge is served.

    Args:
        config: May name an address, which is then the only candidate.
        shared: The broker of all roles, if there is one.
    """

    def __init__(
        self,
        config: EdgeConfig,
        *,
        shared: BrokerAddress | None,
        served: Callable[[], bool],
        dial: Callable[[BrokerAddress], Awaitable[None]],
    ) -> None:
        typed = config.typed_coordinator()
        self._fixed = [typed] if typed is not None else []
        self._shared = [shared] if shared is not None and not self._fixed else []
        self._site = config.site
        self._seen: list[BrokerAddress] = []
        self._served = served
        self._dial = dial
        self._changed = asyncio.Event()

    def adverts(self, adverts: frozenset[Advert]) -> None:
        """Take in who is on the network, in an order that all edges share."""
        self._seen = [advert.address for advert in sorted(adverts, key=lambda one: one.id)]
        if len(adverts) > 1:
            _log.warning(
                "site %s has more than one coordinator: %s; this edge serves the one that "
                "welcomes it first: stop the others, or give them another --site",
                self._site,
                ", ".join(in_words(adverts)),
            )
        self._changed.set()

    @property
    def candidates(self) -> list[BrokerAddress]:
        """Addresses to try, the most likely first."""
        if self._fixed:
            return self._fixed
        # An advert of the shared broker has no password: ours takes its place.
        ours = {address: address for address in self._shared}
        return [*(ours.get(a, a) for a in self._seen), *(a for a in ours if a not in self._seen)]

    async def run(self) -> None:
        """Dial until cancelled."""
        current: BrokerAddress | None = None
        while True:
            self._changed.clear()
            candidates = self.candidates
            if candidates and not self._served():
                following = _after(candidates, current)
                if following != current:
                    current = following
                    await self._dial(current)
            waiting = PATIENCE_S if len(candidates) != 1 or candidates[0] != current else None
            try:
                async with asyncio.timeout(waiting):
                    await self._changed.wait()
            except TimeoutError:
                continue


def _after(candidates: list[BrokerAddress], current: BrokerAddress | None) -> BrokerAddress:
    """Return the candidate to try after the current one."""
    if current not in candidates:
        return candidates[0]
    return candidates[(candidates.index(current) + 1) % len(candidates)]
