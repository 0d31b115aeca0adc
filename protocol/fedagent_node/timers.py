"""What a core does later. It has no clock: the driver says what time it is."""

import math
from collections.abc import Callable, Hashable

from .effects import Effect


class Timers:
    """Named timers of one core: a name that is set again moves, one that is stopped is gone."""

    def __init__(self) -> None:
        self._timers: dict[Hashable, tuple[float, Callable[[float], list[Effect]]]] = {}

    def at(self, name: Hashable, when: float, do: Callable[[float], list[Effect]]) -> None:
        """Do something once, at `when` (seconds of the driver's clock; infinity: not at all)."""
        self._timers[name] = when, do

    def sooner(self, name: Hashable, when: float, do: Callable[[float], list[Effect]]) -> None:
        """Do something at `when`, unless it is to be done before that."""
        if name not in self._timers or when < self._timers[name][0]:
            self._timers[name] = when, do

    def stop(self, name: Hashable) -> None:
        """Forget a timer, if it is set."""
        self._timers.pop(name, None)

    def next_due(self) -> float:
        """Return when the first is due; infinity without any."""
        return min((when for when, _ in self._timers.values()), default=math.inf)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due, the earliest first; what that sets for now waits for the next time."""
        due = sorted((when, n) for n, (when, _) in enumerate(self._timers.values()) if when <= now)
        names = list(self._timers)
        effects: list[Effect] = []
        for when, n in due:
            timer = self._timers.get(names[n])
            if timer is not None and timer[0] == when:  # the one before may have moved or ended it
                del self._timers[names[n]]
                effects += timer[1](now)
        return effects
