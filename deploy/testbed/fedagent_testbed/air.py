"""What is around the nodes of a virtual world: links with a rate, and instruments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fedagent_agent.core.device import Readings


class Air(Protocol):
    """The surroundings of all agents; they change when a round opens, and only then."""

    def begin(self, round_: int) -> bool:
        """Let a round open; False if nothing changes by that."""

    def device(self, agent: str) -> Readings:
        """Return the state of an agent's device."""

    def features(self, agent: str, edge: str) -> Mapping[str, float]:
        """Return what the agent's instruments show of itself and of the path to an edge."""

    def transfer_s(self, agent: str, edge: str, *, up: bool) -> float:
        """Return how long a whole model, or a whole update, is on its way."""


@dataclass(slots=True)
class Pipes:
    """Links that carry one transfer after the other, in each direction of each pair.

    Only models and updates take time by their size, a whole one `Air.transfer_s`. What an earlier
    round has left in a pipe is not waited for: nobody wants it any more.

    Attributes:
        names: What the surroundings call an agent, by its id.
    """

    air: Air | None  # none where links take no time
    names: Mapping[str, str] = field(default_factory=dict)
    _until: dict[tuple[str, str, bool], float] = field(default_factory=dict)
    _whole: dict[str, int] = field(default_factory=dict)

    def clear(self) -> None:
        """Let a round begin with empty links."""
        self._until.clear()
        self._whole.clear()

    def note(self, digest: str, size: int) -> None:
        """Remember the size of a whole model or update."""
        self._whole[digest] = size

    def carry(
        self, agent: str, edge: str, digest: str, nbytes: int, now: float, *, up: bool
    ) -> float:
        """Put bytes of a model or an update into a pipe; return seconds until the last is out."""
        if not nbytes or self.air is None:
            return 0.0
        share = nbytes / self._whole.get(digest, nbytes)
        key = (agent, edge, up)
        begins = max(now, self._until.get(key, now))
        self._until[key] = begins + share * self.air.transfer_s(
            self.names.get(agent, agent), edge, up=up
        )
        return self._until[key] - now

    def busy(self, agent: str, edge: str, now: float, *, up: bool) -> bool:
        """Return whether something is under way."""
        return self._until.get((agent, edge, up), now) > now
