"""A disk without room: the edge says so, takes no part, and comes back when there is room."""

from dataclasses import dataclass

from fedagent_node.effects import Effect, Warn

from .effects import DiskTried, TryDisk
from .state import EdgeState

LEAST_BYTES = 1 << 20
AGAIN_S = 5.0
"""How often room is looked for, and how often at most after single failures."""


@dataclass(slots=True)
class Disk:
    """Whether there is room; `state.trouble` says why not."""

    state: EdgeState
    _again_at: float = float("inf")
    _not_before: float = 0.0

    def suspect(self, now: float) -> list[Effect]:
        """Look for room, after something could not be written: it may have failed only once."""
        if self.state.trouble or now < self._not_before:
            return []
        self._not_before = now + AGAIN_S
        return [self._try()]

    def tried(self, result: DiskTried, now: float) -> tuple[bool, list[Effect]]:
        """Take in whether there is room; True if that is new."""
        before, self.state.trouble = self.state.trouble, result.refused
        self._again_at = now + AGAIN_S if result.refused else float("inf")
        if bool(before) == bool(result.refused):
            return False, []
        if not result.refused:
            return True, [
                Warn("", "the disk has free space again: the edge takes part in rounds again")
            ]
        self.state.counters["disk_full"] += 1
        text = (
            f"the edge does not take part in rounds until its disk has free space: {result.refused}"
        )
        return True, [Warn("", text)]

    def tick(self, now: float) -> list[Effect]:
        """Look for room while there was none."""
        return [self._try()] if now >= self._again_at else []

    def next_due(self) -> float:
        """Return when `tick` is wanted."""
        return self._again_at

    def _try(self) -> TryDisk:
        state = self.state
        return TryDisk(max(LEAST_BYTES, 2 * max(state.memory.model_bytes, state.offered_bytes)))
