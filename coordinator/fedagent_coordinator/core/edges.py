"""The edges the coordinator hears: sessions, epochs, and the agents each one knows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedagent_protocol.errors import MalformedError
from fedagent_protocol.messages import CHUNK_BYTES

from .settings import Window

LOST_S = 15.0
"""Silence after which an edge is gone: three periods of its status."""


class Indices(Protocol):
    """Gives run-wide indices to ids; an id keeps its index, none is used twice."""

    def clients(self, ids: Sequence[str]) -> npt.NDArray[np.int32]:
        """Return int32[len(ids)], the index of each agent."""

    def label_clients(self, labels: Mapping[str, str]) -> None:
        """Remember what people call agents."""

    def edge(self, edge: str) -> int:
        """Return the index of an edge."""

    def label_edge(self, edge: str, label: str) -> None:
        """Remember what people call an edge."""

    def sizes(self) -> tuple[int, int]:
        """Return how many clients and how many edges have an index."""


@dataclass(slots=True)
class EdgeSession:
    """What is known of one edge.

    Attributes:
        label: What the books know that people call it.
        epoch: New at every start of its process.
        model: What it reported to hold for the run; empty for nothing.
        expected: What it should hold: the global model, or its own since then.
        offered_at: When the global model was last offered or asked for; None if settled.
        agents: Agents it reported to see.
        window_weight: Weight in its model since the last merge.
        chunk_bytes: How it cuts its model.
        rent: Micro-credits for aggregating one round; None until it named them.
        quiet: It did not answer the last observation, and has been silent since.
        ids: Session ids of `epoch`, in the edge's order.
        client: int32[len(ids)], their run-wide indices.
    """

    id: str
    index: int
    epoch: str
    heard_at: float
    expected: str
    name: str = ""
    label: str = ""
    model: str = ""
    offered_at: float | None = None
    agents: int = 0
    window_weight: float = 0.0
    chunk_bytes: int = CHUNK_BYTES
    rent: int | None = None
    live: bool = True
    quiet: bool = False
    ids: list[str] = field(default_factory=list)
    client: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))

    def restart(self, epoch: str) -> None:
        """Forget what only the former process of the edge knew."""
        self.epoch = epoch
        self.model = ""
        self.offered_at = None
        self.ids = []
        self.client = np.zeros(0, dtype=np.int32)

    def learn_ids(self, known: int, new_ids: tuple[str, ...], indices: Indices) -> bool:
        """Add the ids from `known` on; False if ids are missing between.

        Raises:
            MalformedError: They contradict those named before.
        """
        if known > len(self.ids):
            return False
        overlap = self.ids[known : known + len(new_ids)]
        if tuple(overlap) != new_ids[: len(overlap)]:
            raise MalformedError("session ids differ from those named before")
        fresh = new_ids[len(overlap) :]
        if len(set(fresh)) != len(fresh) or not set(fresh).isdisjoint(self.ids):
            raise MalformedError("two sessions have one id")
        if fresh:
            self.ids.extend(fresh)
            self.client = np.concatenate([self.client, indices.clients(fresh)])
        return True


@dataclass(slots=True)
class EdgeTable:
    """All edges heard in this run, by id, in the order of joining.

    Attributes:
        windows: What edges had learnt before this process began, until they come.
    """

    indices: Indices
    windows: dict[str, Window] = field(default_factory=dict)
    by_id: dict[str, EdgeSession] = field(default_factory=dict)

    def live(self) -> list[EdgeSession]:
        """Return the edges that are heard."""
        return [edge for edge in self.by_id.values() if edge.live]

    def hear(self, edge: str, epoch: str, now: float, expected: str) -> tuple[EdgeSession, bool]:
        """Note a sign of life; True when the edge is new, back, or restarted."""
        session = self.by_id.get(edge)
        if session is None:
            session = EdgeSession(edge, self.indices.edge(edge), epoch, now, expected)
            self.by_id[edge] = session
            window = self.windows.pop(edge, None)
            if window is not None:
                session.expected = window.model
                session.window_weight = window.weight
            return session, True
        changed = not session.live or session.epoch != epoch
        if session.epoch != epoch:
            session.restart(epoch)
        session.live = True
        session.quiet = False
        session.heard_at = now
        return session, changed

    def lose_silent(self, now: float) -> list[EdgeSession]:
        """Return the edges that fell silent just now."""
        lost = [edge for edge in self.live() if now - edge.heard_at >= LOST_S]
        for edge in lost:
            edge.live = False
        return lost

    def next_loss(self) -> float | None:
        """Return when the next edge will count as lost if it stays silent."""
        return min((edge.heard_at + LOST_S for edge in self.live()), default=None)
