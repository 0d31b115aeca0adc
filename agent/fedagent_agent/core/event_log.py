"""The newest events of this device, for the coordinator that asks for them. Pure."""

import math
from collections import Counter, deque
from collections.abc import Iterable

from fedagent_node.effects import Effect, Emit, Send
from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import LogEntry, LogNeed, LogTail

KEPT = 500
ASK_AGAIN_S = 10.0
"""Requests that come sooner are refused."""
PRIVATE = "its owner keeps its log (private_log)"
TOLD = frozenset(
    {"edge", "run", "round", "recipe", "reason", "detail", "status", "size", "num_samples", "lc_ms"}
)
"""Fields of events that leave the device: its edges were told of each when it happened."""
_LONGEST_MS = 30 * 86_400_000
_LARGEST = 2**53


class EventLog:
    """Keeps the newest events; `private` tells nobody of them."""

    def __init__(self, counters: Counter[str], *, private: bool) -> None:
        self._counters = counters
        self._private = private
        self._kept: deque[tuple[float, str, dict[str, str | int | float]]] = deque(maxlen=KEPT)
        self._asked_at, self._number = -math.inf, -1

    def note(self, effects: Iterable[Effect], now: float) -> None:
        """Keep the events among effects."""
        for effect in effects:
            if isinstance(effect, Emit):
                self._kept.append((now, effect.name[:64], dict(_told(effect))))

    def answer(self, edge: str, need: LogNeed, now: float) -> list[Effect]:
        """Answer a request that an edge handed on, once where several edges did."""
        if need.number == self._number:
            return []
        self._number, refused = need.number, ""
        if self._private:
            refused = PRIVATE
            self._counters["log_private"] += 1
        elif now - self._asked_at < ASK_AGAIN_S:
            refused = f"asked again within {ASK_AGAIN_S:.0f} s"
            self._counters["log_too_often"] += 1
        if refused:
            tail = LogTail(agent=need.agent, number=need.number, refused=refused)
            return [Send(edge, tail)]
        self._asked_at = now
        entries = tuple(
            LogEntry(name=name, age_ms=min(_LONGEST_MS, round(1000 * (now - at))), fields=fields)
            for at, name, fields in list(self._kept)[-need.last :]
        )
        counted = dict(self._counters.most_common(256))
        counted = {name[:64]: number for name, number in counted.items() if number >= 0}
        tail = LogTail(agent=need.agent, number=need.number, entries=entries, counters=counted)
        return [Send(edge, tail)]


def _told(event: Emit) -> Iterable[tuple[str, str | int | float]]:
    for name, value in event.fields.items():
        match value:
            case _ if name not in TOLD or isinstance(value, bool):
                pass
            case str() as text if text:
                yield name, safe_text(text, limit=200)
            case int() | float() as number if abs(number) < _LARGEST:  # no NaN is
                yield name, number
