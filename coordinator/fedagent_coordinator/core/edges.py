"""The edges the coordinator hears: sessions, the agents each knows, and the model it should hold.

The store puts the bytes of a model into what is sent.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedagent_node.effects import Effect, Emit, Send
from fedagent_protocol.errors import ProtocolError, safe_text
from fedagent_protocol.messages import CHUNK_BYTES, Chunk, GlobalModel, Need, Revocations
from fedagent_protocol.transfer import Layout, Pace, Sender

from .effects import Forget
from .settings import Window

LOST_S = 15.0
"""Silence after which an edge is gone: three periods of its status."""
REOFFER_S = 1.5
ASKS = 3
"""How often an edge is asked for a list of the revoked that we have not made."""
ODD_ROUNDS = 3
"""A device that has just joined its site is known here a second later, and no stranger."""
MAX_SESSIONS = 20_000
"""How many agents one process of an edge names at most, as edges bound them."""
MAX_CLIENTS = 5_000
"""How many agents of one edge are observed in a round: an order to more is too long."""


class Indices(Protocol):
    """Gives run-wide indices to ids; an id keeps its index, none is used twice."""

    def clients(self, ids: Sequence[str]) -> npt.NDArray[np.int32]:
        """Return int32[len(ids)], the index of each agent; give one to who has none."""

    def label_clients(self, labels: Mapping[str, str]) -> None:
        """Remember what people call agents; of one without an index, until it has one."""

    def edge(self, edge: str) -> int:
        """Return the index of an edge."""

    def label_edge(self, edge: str, label: str) -> None:
        """Remember what people call an edge."""

    def sizes(self) -> tuple[int, int]:
        """Return how many clients and how many edges have an index."""


@dataclass(slots=True)
class EdgeSession:
    """What is known of one edge."""

    id: str
    index: int
    epoch: str
    heard_at: float
    window: Window  # what it has learnt since the last merge, and so what it should hold
    name: str = ""
    model: str = ""  # what it reported to hold for the run; empty for nothing
    offered_at: float | None = None  # when a model was last offered or asked for
    agents: int = 0
    chunk_bytes: int = CHUNK_BYTES
    pace: Pace = field(default_factory=Pace)  # at which its models come
    senders: dict[str, Sender] = field(default_factory=dict)  # by the digest that is sent
    rent: int | None = None  # micro-credits for aggregating one round; None until it named them
    live: bool = True
    quiet: bool = False  # it did not answer the last observation, and has been silent since
    trouble: str = ""  # why it takes no part in rounds, in its own words
    suspected: Counter[str] = field(default_factory=Counter)  # of how many agents it was said
    odd_rounds: int = 0  # how often in a row it named agents that are not observed
    ids: list[str] = field(default_factory=list)  # session ids of `epoch`, in the edge's order
    client: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    """int32[len(ids)], their run-wide indices; -1 of who was never observed."""
    list_seen: bool = False  # its list of the revoked is ours, or was taken over
    list_asked: int = 0  # how often it was asked for it

    @property
    def expected(self) -> str:
        """The model that it should hold: the global one, or its own since then."""
        return self.window.model

    @property
    def owes_list(self) -> bool:
        """Whether it may have a list of the revoked that we have not made and not seen."""
        return not self.list_seen and self.list_asked < ASKS

    def suspect(self, what: str, agents: int) -> list[Effect]:
        """Say what is odd about so many agents that it names; again if of twice as many."""
        if not agents or agents < 2 * self.suspected[what]:
            return []
        self.suspected[what] = agents
        fields = {"edge": self.id, "name": self.name, "what": what, "agents": agents}
        return [Emit("suspicious", fields)]

    def left_out(self, agents: int, observed: int) -> list[Effect]:
        """Say that it names agents, again and again, that are not observed."""
        self.odd_rounds = self.odd_rounds + 1 if agents else 0
        what = "crowded" if observed == MAX_CLIENTS else "strangers"
        return self.suspect(what, agents if self.odd_rounds >= ODD_ROUNDS else 0)

    def restart(self, epoch: str) -> None:
        """Forget what only the former process of the edge knew."""
        self.epoch = epoch
        self.model = self.trouble = ""
        self.offered_at = None
        self.ids = []
        self.client = np.zeros(0, dtype=np.int32)

    def learn_ids(self, known: int, new_ids: tuple[str, ...]) -> bool:
        """Add the ids from `known` on; False if ids are missing between.

        Raises:
            ProtocolError: They contradict those named before.
        """
        if known > len(self.ids):
            return False
        overlap = self.ids[known : known + len(new_ids)]
        if tuple(overlap) != new_ids[: len(overlap)]:
            raise ProtocolError("session ids differ from those named before")
        fresh = new_ids[len(overlap) :]
        if len(set(fresh)) != len(fresh) or not set(fresh).isdisjoint(self.ids):
            raise ProtocolError("two sessions have one id")
        if len(self.ids) + len(fresh) > MAX_SESSIONS:
            raise ProtocolError("more sessions than an edge has")
        if fresh:
            self.ids.extend(fresh)
            self.client = np.concatenate([self.client, np.full(len(fresh), -1, dtype=np.int32)])
        return True

    def clients(
        self, rows: npt.NDArray[np.int32], indices: Indices, members: frozenset[str] | None
    ) -> npt.NDArray[np.int32]:
        """Return int32[P], the run-wide indices of sessions.

        -1 of who is no member, where there is a site, and of all but the first `MAX_CLIENTS`.
        """
        belongs = [members is None or self.ids[row] in members for row in rows.tolist()]
        kept = np.flatnonzero(belongs)[:MAX_CLIENTS]
        new = [row for row in rows[kept].tolist() if self.client[row] < 0]
        if new:
            self.client[new] = indices.clients([self.ids[row] for row in new])
        client = np.full(len(rows), -1, dtype=np.int32)
        client[kept] = self.client[rows[kept]]
        return client


@dataclass(slots=True)
class Members:
    """The members of a site."""

    agents: frozenset[str] | None = None  # None where there is no site: everybody may take part
    names: Mapping[str, str] = field(default_factory=dict)  # of all that it ever let in
    revoked: Revocations = field(default_factory=partial(Revocations, number=0, crl=b""))

    def called(self, edge: str, own: str) -> str:
        """Return what an edge is called: by its site, or where there is none by itself."""
        name = safe_text(own, limit=100) if self.agents is None else self.names.get(edge, "")
        return name or edge


@dataclass(slots=True)
class EdgeTable:
    """All edges heard in this run; `windows` has what others had learnt before it began."""

    indices: Indices
    windows: dict[str, Window] = field(default_factory=dict)
    by_id: dict[str, EdgeSession] = field(default_factory=dict)

    def live(self) -> list[EdgeSession]:
        """Return the edges that are heard."""
        return [edge for edge in self.by_id.values() if edge.live]

    def able(self) -> list[EdgeSession]:
        """Return the edges that are heard, and do not say that they can take no part."""
        return [edge for edge in self.by_id.values() if edge.live and not edge.trouble]

    def hear(self, edge: str, epoch: str, now: float, expected: str) -> tuple[EdgeSession, str]:
        """Note a sign of life; return `new` or `restarted` where the edge has to be greeted."""
        session = self.by_id.get(edge)
        if session is None:
            window = self.windows.pop(edge, None) or Window(expected)
            session = EdgeSession(edge, self.indices.edge(edge), epoch, now, window)
            self.by_id[edge] = session
            return session, "new"
        changed = "" if session.live else "new"
        if session.epoch != epoch:
            session.restart(epoch)
            changed = changed or "restarted"
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


@dataclass(slots=True)
class GlobalModels:
    """Keeps edges at the global model, which was merged after `round`; all have `size` bytes.

    `do` takes what is to be done. `state` names what the server optimiser knew after it; `once` is
    the digest of what the devices of the run get once, of `once_bytes`, or empty. `good` is the
    last one that devices trained from, `farthest` the edge that moved most in the last merge.
    """

    run: str
    edges: EdgeTable
    do: Callable[[Effect], None]
    digest: str
    size: int
    round: int
    once: str = ""
    once_bytes: int = 0
    chunk_bytes: int = CHUNK_BYTES
    state: str = ""
    good: str = ""
    farthest: str = ""

    @property
    def learnt(self) -> bool:
        """Whether an edge has learnt since the last merge."""
        return any(edge.window.weight > 0 for edge in self.edges.live())

    def catch_up(self, edge: EdgeSession, round_: int, now: float) -> None:
        """Offer the global model to an edge that holds another than it should.

        What it had learnt since the last merge is given up, in the books too: a coordinator
        that comes back must not count it again.
        """
        if edge.trouble or (edge.offered_at is not None and now - edge.offered_at < REOFFER_S):
            return
        if self._has_learnt(edge):
            self.do(Forget(round_ - 1, (edge.id,)))
        edge.window = Window(self.digest)
        if edge.model != self.digest:
            self._offer(edge, round_, now)

    def serve(self, edge: EdgeSession, need: Need, now: float, *, link_idle: bool) -> None:
        """Send chunks that an edge asked for.

        Raises:
            ProtocolError: It asks for chunks that do not exist, or for something else.
        """
        if need.digest == self.digest:
            layout = Layout(self.size, self.chunk_bytes)
            edge.offered_at = now
        elif need.digest == self.once != "":
            layout = Layout(self.once_bytes, CHUNK_BYTES)
        else:
            raise ProtocolError("asked for a model that is not here", "bad_chunk")
        edge.heard_at = now
        if any(stop > layout.count or start >= stop for start, stop in need.ranges):
            raise ProtocolError(f"asked for chunks beyond {layout.count}", "bad_chunk")
        sender = edge.senders.setdefault(need.digest, Sender(layout))
        sender.authorise(need.ranges, link_idle=link_idle)
        while (found := sender.next()) is not None:
            chunk = Chunk(run=self.run, digest=need.digest, index=found[0], data=b"")
            self.do(Send(edge.id, chunk, stored=found[1]))

    def adopt(self, digest: str, round_: int, now: float) -> None:
        """Make this the global model after a round; offer it to those that lack it."""
        sessions = self.edges.by_id.values()
        if digest != self.digest:
            for edge in sessions:
                edge.senders.pop(self.digest, None)
            self.digest, self.round = digest, round_
        else:
            # What this merge did not take is given up: no new model supersedes it in the books.
            learnt = [edge.id for edge in sessions if self._has_learnt(edge)]
            if lost := (*learnt, *self.edges.windows):
                self.do(Forget(round_, lost))
        # Edges that did not come in time for this merge start from it when they come.
        self.edges.windows.clear()
        for edge in sessions:
            edge.window = Window(digest)
            edge.offered_at = None
            if edge.live and not edge.trouble and edge.model != digest:
                self._offer(edge, round_, now)

    def _has_learnt(self, edge: EdgeSession) -> bool:
        return edge.window.weight > 0 or edge.expected != self.digest

    def _offer(self, edge: EdgeSession, round_: int, now: float) -> None:
        edge.offered_at = now
        edge.senders.pop(self.digest, None)
        offer = GlobalModel(
            run=self.run,
            round=round_,
            digest=self.digest,
            size=self.size,
            chunk_bytes=self.chunk_bytes,
            first=b"",
        )
        first = Layout(self.size, self.chunk_bytes).first_bytes()
        self.do(Send(edge.id, offer, stored=first))
