"""Pauses after rounds that brought little: for single clients, for rented edges, and for the run.

A client that cannot train answers within milliseconds. Without a pause it would be chosen
again at once, and use up the rounds of the run in seconds. One that does not even acknowledge
its order is most likely dead: until its edge has noticed (45 s), every round with it would
last until the deadline. An edge that asks least and brings nothing would be rented for ever.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedagent_node.effects import Emit
from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import STARTS_BITS, UNANSWERED, OutcomeStatus

from .effects import Settle

if TYPE_CHECKING:
    from .ordered import OrderedRound

DECLINED_BACKOFF_S = 0.25
UNRESPONSIVE_BACKOFF_S = 2.0
MAX_BACKOFF_S = 30.0
EMPTY_ROUND_S = 0.25
MAX_EMPTY_ROUND_S = 5.0
NOBODY_ORDERED_S = 1.0
MAX_NAMED = 10
"""Agents that one event names."""


@dataclass(slots=True)
class _Pause:
    """Until when a client is left out; the entry stays until its next valid update."""

    until: float
    seconds: float
    boot: int
    reason: str


@dataclass(slots=True)
class ClientBackoff:
    """Which clients are left out since they declined or were unresponsive, and how long."""

    _by_client: dict[int, _Pause] = field(default_factory=dict)

    def settle(self, ordered: "OrderedRound", settled: Settle, now: float) -> list[Emit]:
        """Take in how a round ended; name those that declined."""
        valid, details = ~settled.feedback.void, settled.details
        if valid.all() and not self._by_client:
            return []
        declined: list[int] = []
        boots = (ordered.context_seq >> STARTS_BITS).tolist()
        for row, (client, boot) in enumerate(zip(ordered.clients.tolist(), boots, strict=True)):
            if valid[row]:
                self._by_client.pop(client, None)
            elif details.status[row] == OutcomeStatus.DECLINED:
                self._lengthen(client, boot, details.reason[row], now, DECLINED_BACKOFF_S)
                declined.append(row)
            elif details.reason[row] == UNANSWERED:
                self._lengthen(client, boot, UNANSWERED, now, UNRESPONSIVE_BACKOFF_S)
        if not declined:
            return []
        seconds = [self._by_client[int(ordered.clients[row])].seconds for row in declined]
        longest = declined[int(np.argmax(seconds))]
        return [
            Emit(
                "declined",
                {
                    "round": ordered.round,
                    "agents": ordered.agents(declined[:MAX_NAMED]),
                    "count": len(declined),
                    "reason": safe_text(details.reason[longest]),
                    "seconds": max(seconds),
                },
            )
        ]

    def away(self, context_seq: npt.NDArray[np.int64], now: float) -> npt.NDArray[np.int64]:
        """Return who is left out now (int64[N]: newest reports); one that restarted is not."""
        for client in [client for client in self._by_client if client < len(context_seq)]:
            if int(context_seq[client]) >> STARTS_BITS > self._by_client[client].boot:
                del self._by_client[client]
        away = [client for client, pause in self._by_client.items() if now < pause.until]
        return np.array(away, dtype=np.int64)

    def reason(self, now: float) -> str:
        """Return why the client that is asked again first is left out, in its own words."""
        left = [pause for pause in self._by_client.values() if now < pause.until]
        return safe_text(min(left, key=lambda pause: pause.until).reason) if left else ""

    def _lengthen(self, client: int, boot: int, reason: str, now: float, min_s: float) -> None:
        former = self._by_client.get(client)
        doubled = 0.0 if former is None else 2 * former.seconds
        seconds = min(max(doubled, min_s), MAX_BACKOFF_S)
        self._by_client[client] = _Pause(now + seconds, seconds, boot, reason)


@dataclass(slots=True)
class EmptyRoundBackoff:
    """How long a round takes at least while rounds bring no valid update."""

    _seconds: float = 0.0

    def after(self, void: npt.NDArray[np.bool_], *, began: float, now: float) -> float:
        """Return when the next round may open; `void` is bool[S], who brought no valid update."""
        if not len(void):
            return now + NOBODY_ORDERED_S
        longer = min(max(2 * self._seconds, EMPTY_ROUND_S), MAX_EMPTY_ROUND_S)
        self._seconds = longer if void.all() else 0.0
        return began + self._seconds
