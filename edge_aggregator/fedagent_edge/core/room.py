"""Whether the edge's disk has room: while it has none, the edge takes no part in rounds."""

import math

from fedagent_node.effects import Effect, Warn

from .effects import DiskTried, TryDisk
from .exchange import Exchange
from .rounds import Rounds
from .state import EdgeState
from .upstream import Upstream

LEAST_ROOM_BYTES = 1 << 20
DISK_AGAIN_S = 5.0
"""How often room is looked for while there is none."""


class Room:
    """Looks for room after a failure, and lets the edge step out and come back."""

    def __init__(
        self, state: EdgeState, upstream: Upstream, exchange: Exchange, rounds: Rounds
    ) -> None:
        self._state, self._upstream = state, upstream
        self._exchange, self._rounds = exchange, rounds
        self._tried_at = -math.inf

    def look(self, now: float) -> None:
        """See soon whether there is room, but not all the time."""
        when = max(now, self._tried_at + DISK_AGAIN_S)
        self._state.timers.sooner("room", when, self._try)

    def _try(self, now: float) -> list[Effect]:
        self._tried_at = now
        most = max(self._state.memory.model_bytes, self._state.offered_bytes)
        return [TryDisk(max(LEAST_ROOM_BYTES, 2 * most))]

    def tried(self, result: DiskTried, now: float) -> list[Effect]:
        """Step out while the disk is full, or come back: the coordinator hears of it at once."""
        state, full = self._state, bool(result.refused)
        changed, state.trouble = bool(state.trouble) is not full, result.refused
        # With room again, what could not be saved is.
        effects: list[Effect] = [] if full else [state.save()]
        self._rounds.receipts.unsaved &= full
        if full:
            self.look(now)
        if not changed:
            return effects
        text = "the disk has free space again: the edge takes part in rounds again"
        if full:
            state.counters["disk_full"] += 1
            out = "the edge does not take part in rounds until its disk has free space"
            text = f"{out}: {result.refused}"
            self._exchange.forget_model()
            self._rounds.fail(f"the edge's disk is full: {result.refused}")
        return [*effects, Warn("", text), self._upstream.status(now)]
