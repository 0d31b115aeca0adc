"""The newest events of this device, for the coordinator that asks for them. Pure."""

import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import islice

from fedagent_node.effects import Effect, Emit, Send
from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import LogEntry, LogNeed, LogTail

KEPT = 500
ASK_AGAIN_S = 10.0
"""Requests that come sooner are refused."""
PRIVATE = "its owner does not share its log (private_log)"
EVENTS = frozenset(
    {"edge_joined", "edge_lost", "prepared", "ordered", "training", "update", "receipt"}
    | {"declined", "abandoned"}
)
"""Events that are told: none of opinions, which may be for neighbours alone."""
FIELDS = frozenset(
    {"edge", "run", "round", "recipe", "reason", "detail", "status", "size", "num_samples", "lc_ms"}
)
"""Fields of them that are told: edges know these of their own orders."""
MOST_TEXT = 32 * 1024
"""Characters of an answer, beside names and numbers."""
_COUNTER = re.compile(r"(?!opinion|moments|peer)[a-z][a-z0-9_]{0,63}")
"""Names of counters that are told: not of opinions, nor of links, which addresses name."""
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
            if isinstance(effect, Emit) and effect.name in EVENTS:
                self._kept.append((now, effect.name, dict(_told(effect))))

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
        tail = LogTail(
            agent=need.agent,
            number=need.number,
            entries=tuple(reversed(list(self._newest(need.last, now)))),
            counters={
                name: number
                for name, number in self._counters.most_common(256)
                if _COUNTER.fullmatch(name) and number >= 0
            },
        )
        return [Send(edge, tail)]

    def _newest(self, most: int, now: float) -> Iterator[LogEntry]:
        size = 0
        for at, name, fields in islice(reversed(self._kept), most):
            size += sum(len(value) for value in fields.values() if isinstance(value, str))
            if size > MOST_TEXT:
                return
            age_ms = min(_LONGEST_MS, round(1000 * (now - at)))
            yield LogEntry(name=name, age_ms=age_ms, fields=fields)


def _told(event: Emit) -> Iterable[tuple[str, str | int | float]]:
    for name, value in event.fields.items():
        match value:
            case _ if name not in FIELDS or isinstance(value, bool):
                pass
            case str() as text if text:
                yield name, safe_text(text, limit=200)
            case int() | float() as number if abs(number) < _LARGEST:  # no NaN is
                yield name, number
