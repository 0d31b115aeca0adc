"""The agents an edge can see, and their newest contexts as columns."""

from dataclasses import dataclass, field

import numpy as np

from fedagent_protocol.columns import Columns, pack
from fedagent_protocol.messages import ContextReport, RoundColumns, RoundOpen

FRESH_S = 45.0
MAX_AGENTS = 20_000
MAX_FEATURES = 32


@dataclass(slots=True)
class Session:
    """One agent at this edge."""

    index: int
    heard_at: float
    context: ContextReport | None = None
    context_at: float = 0.0
    present: bool = True


@dataclass(slots=True)
class Sessions:
    """All agents since the process started; an index is never reused.

    Attributes:
        epoch: Names this list; new at every start of the process.
    """

    epoch: str
    _by_id: dict[str, Session] = field(default_factory=dict)
    _ids: list[str] = field(default_factory=list)

    def hear(self, agent: str, now: float) -> tuple[Session | None, bool]:
        """Note a sign of life; return the session and whether the agent is new or back.

        Returns None when the edge has as many agents as it can name.
        """
        session = self._by_id.get(agent)
        if session is None:
            if len(self._ids) >= MAX_AGENTS:
                return None, False
            session = self._by_id[agent] = Session(len(self._ids), now)
            self._ids.append(agent)
            return session, True
        joined, session.present, session.heard_at = not session.present, True, now
        return session, joined

    def context(self, session: Session, report: ContextReport, now: float) -> None:
        """Keep the newest report."""
        if session.context is None or report.seq >= session.context.seq:
            session.context = report
            session.context_at = now

    def leave(self, agent: str) -> bool:
        """Note that an agent said goodbye; False if it was not here."""
        session = self._by_id.get(agent)
        if session is None or not session.present:
            return False
        session.present, session.context = False, None
        return True

    def lose_silent(self, now: float) -> list[str]:
        """Return the agents that have become silent for too long."""
        lost = [
            agent
            for agent, session in self._by_id.items()
            if session.present and now - session.heard_at > FRESH_S
        ]
        for agent in lost:
            self.leave(agent)
        return lost

    @property
    def present(self) -> int:
        """Number of agents with a live session."""
        return sum(session.present for session in self._by_id.values())

    def is_present(self, agent: str) -> bool:
        """Whether an agent has a live session."""
        session = self._by_id.get(agent)
        return session is not None and session.present

    def columns(self, ask: RoundOpen, *, model: str, now: float) -> RoundColumns:
        """Answer `open`: every fresh context, and the ids the coordinator lacks."""
        known = min(ask.known, len(self._ids)) if ask.epoch == self.epoch else 0
        rows = [
            s
            for s in self._by_id.values()
            if s.present and s.context is not None and now - s.context_at <= FRESH_S
        ]
        contexts = [s.context for s in rows if s.context is not None]
        names = sorted({name for context in contexts for name in context.features})[:MAX_FEATURES]
        values = [[context.features.get(name, np.nan) for name in names] for context in contexts]
        columns = Columns(
            features=tuple(names),
            session=np.array([s.index for s in rows], np.int32),
            price=np.array([context.price for context in contexts], np.int64),
            context_seq=np.array([context.seq for context in contexts], np.int64),
            age_ms=np.array([(now - s.context_at) * 1000 for s in rows]).astype(np.int32),
            willing=np.array([context.willing for context in contexts], np.bool_),
            values=np.array(values, np.float32).reshape(len(rows), len(names)),
        )
        return RoundColumns(
            run=ask.run,
            round=ask.round,
            epoch=self.epoch,
            known=known,
            new_ids=tuple(self._ids[known:]),
            features=columns.features,
            model=model,
            **pack(columns),
        )
