"""Clients that declined are left alone for a while, and rounds that bring nothing slow down.

A client that cannot train answers within milliseconds. Without a pause it would be
chosen again at once, and use up the rounds of the run in seconds. One that does not even
say that it has its order is most likely dead: until its edge has noticed (45 s), every
round with it would last until the deadline.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import UNANSWERED, OutcomeStatus

from .effects import Effect, Event, Value
from .orders import OrderedRound
from .outcomes import Settled

FIRST_BACKOFF_S = 0.25
UNRESPONSIVE_BACKOFF_S = 2.0
MAX_BACKOFF_S = 30.0
PAUSE_FIRST_S = 0.25
PAUSE_LONGEST_S = 5.0
EMPTY_PAUSE_S = 1.0
MAX_NAMED = 10
"""Agents that one event names."""
_BOOT = 32
"""A context's number is boots * 2^32 + n (docs/protocol.md, Sessions)."""


@dataclass(slots=True)
class _ClientPause:
    """Until when a client is left out; the entry stays until its next valid update."""

    until: float
    seconds: float
    boot: int
    reason: str


@dataclass(slots=True)
class ClientBackoff:
    """Who has declined or been mute since its last valid update, and how often in a row."""

    _by_client: dict[int, _ClientPause] = field(default_factory=dict)

    def settle(self, ordered: OrderedRound, settled: Settled, now: float) -> list[int]:
        """Take in how a round ended; return the rows of those that are left out from now on."""
        valid, details = ~settled.feedback.void, settled.details
        if valid.all() and not self._by_client:
            return []
        fresh: list[int] = []
        for row, client in enumerate(ordered.clients.tolist()):
            if valid[row]:
                self._by_client.pop(client, None)
            elif details.status[row] == OutcomeStatus.DECLINED:
                boot = int(ordered.context_seq[row]) >> _BOOT
                self._lengthen(client, boot, details.reason[row], now)
                fresh.append(row)
            elif details.reason[row] == UNANSWERED:
                boot = int(ordered.context_seq[row]) >> _BOOT
                self._lengthen(client, boot, UNANSWERED, now, least=UNRESPONSIVE_BACKOFF_S)
        return fresh

    def seconds(self, client: int) -> float:
        """Return how long a client's last leave is."""
        leave = self._by_client.get(client)
        return 0.0 if leave is None else leave.seconds

    def away(self, context_seq: npt.NDArray[np.int64], now: float) -> npt.NDArray[np.int64]:
        """Return the clients that are left out now; one that was started again is not.

        Args:
            context_seq: int64[N], the newest report of every client.
            now: The time.
        """
        known = [client for client in self._by_client if client < len(context_seq)]
        for client in known:
            if int(context_seq[client]) >> _BOOT > self._by_client[client].boot:
                del self._by_client[client]
        away = [client for client, leave in self._by_client.items() if now < leave.until]
        return np.array(away, dtype=np.int64)

    def reason(self, now: float) -> str:
        """Return the reason of the one that will be asked again first."""
        left = [leave for leave in self._by_client.values() if now < leave.until]
        return min(left, key=lambda leave: leave.until).reason if left else ""

    def _lengthen(
        self, client: int, boot: int, reason: str, now: float, *, least: float = FIRST_BACKOFF_S
    ) -> None:
        former = self._by_client.get(client)
        doubled = 0.0 if former is None else 2 * former.seconds
        seconds = min(max(doubled, least), MAX_BACKOFF_S)
        self._by_client[client] = _ClientPause(now + seconds, seconds, boot, reason)


@dataclass(slots=True)
class EmptyRoundBackoff:
    """How much time a round takes at least while rounds bring no valid update."""

    _seconds: float = 0.0

    def after(self, *, fruitful: bool) -> float:
        """Take in a round; return how long after its begin the next one may open."""
        longer = min(max(2 * self._seconds, PAUSE_FIRST_S), PAUSE_LONGEST_S)
        self._seconds = 0.0 if fruitful else longer
        return self._seconds


@dataclass(slots=True)
class RoundBackoff:
    """What a round that brought little costs those after it: nothing where all is well.

    Attributes:
        open_at: When the next round may open.
    """

    open_at: float = 0.0
    _clients: ClientBackoff = field(default_factory=ClientBackoff)
    _empty_rounds: EmptyRoundBackoff = field(default_factory=EmptyRoundBackoff)

    def settle(
        self, ordered: OrderedRound, settled: Settled, *, began: float, now: float
    ) -> list[Effect]:
        """Take in a round that began and has just ended; tell of those that declined."""
        void = settled.feedback.void
        self.open_at = now + EMPTY_PAUSE_S
        if len(void):
            self.open_at = began + self._empty_rounds.after(fruitful=not void.all())
        rows = self._clients.settle(ordered, settled, now)
        if not rows:
            return []
        lengths = [self._clients.seconds(int(ordered.clients[row])) for row in rows]
        worst = rows[int(np.argmax(lengths))]
        said: dict[str, Value] = {
            "round": ordered.round,
            "agents": ordered.agents(rows[:MAX_NAMED]),
            "count": len(rows),
            "reason": safe_text(settled.details.reason[worst]),
            "seconds": max(lengths),
        }
        return [Event("declined", said)]

    def away(self, context_seq: npt.NDArray[np.int64], now: float) -> npt.NDArray[np.int64]:
        """Return the clients that are left out now; see `ClientBackoff.away`."""
        return self._clients.away(context_seq, now)

    def reason(self, now: float) -> str:
        """Return why somebody is left out, in its own words."""
        return safe_text(self._clients.reason(now))
