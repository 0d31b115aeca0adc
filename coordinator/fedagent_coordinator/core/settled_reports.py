"""Whose report of a former round was settled, and whose had expired."""

from collections.abc import Callable
from dataclasses import dataclass, field

KEPT = 64

SettledLookup = Callable[[int, str], bool]
"""Whether the report of an edge for a round was settled, by the books."""


@dataclass(slots=True)
class SettledReports:
    """Remembers the last rounds, and asks the books about older ones."""

    lookup: SettledLookup
    _reporters: dict[int, frozenset[str]] = field(default_factory=dict)

    def remember(self, round_: int, reporters: frozenset[str]) -> None:
        """Note who had reported when a round was settled."""
        self._reporters[round_] = reporters
        self._reporters.pop(round_ - KEPT, None)

    def settled(self, round_: int, edge: str) -> bool:
        """Tell whether an edge's report is in the books."""
        known = self._reporters.get(round_)
        return edge in known if known is not None else self.lookup(round_, edge)
