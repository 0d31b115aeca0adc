"""What edges say to the round engine: hello, status, columns, reports, pieces of models.

The first part of the engine: it keeps sessions and answers, and hands on what ends a
step of the round (`evaluation_phase.py`, `rounds.py`).
"""

from abc import ABC, abstractmethod
from collections import Counter
from enum import Enum

from fedagent_coordinator.policies.base import MAX_MICRO
from fedagent_protocol.errors import MalformedError, ProtocolError, safe_text
from fedagent_protocol.messages import (
    PROTOCOL_VERSION,
    Chunk,
    EdgeHello,
    EdgeMoments,
    EdgeStatus,
    EdgeToCoordinator,
    Need,
    Opinions,
    RoundColumns,
    RoundReport,
    Volunteers,
)
from fedagent_protocol.versions import OtherVersions

from .edges import EdgeSession, EdgeTable, Indices
from .effects import Effect, Event
from .evaluation import EvaluationCall
from .merge import Serving
from .models import Models
from .observe import Observation
from .orders import OrderedRound
from .outgoing_messages import OutgoingMessages
from .pending_observation import PendingObservation
from .readiness import Patience
from .settings import Progress, Settings
from .settled_reports import SettledReports

EvaluationAnswer = Opinions | Volunteers | EdgeMoments
"""What edges answer to a call."""


class Phase(Enum):
    """What the engine waits for."""

    IDLE = "idle"
    OBSERVING = "observing"
    ORDERED = "ordered"
    MERGING = "merging"
    EVALUATING = "evaluating"
    ENDED = "ended"


class EdgeMessages(ABC):
    """Takes in messages of edges.

    Args:
        settings: The run.
        progress: Where it stands.
        indices: Run-wide indices of clients and edges.
        fates: Asked about rounds that this process did not settle itself.
    """

    def __init__(
        self,
        settings: Settings,
        progress: Progress,
        indices: Indices,
        settled_reports: SettledReports,
    ) -> None:
        self.settings = settings
        windows = {window.edge: window for window in progress.windows}
        self.edges = EdgeTable(indices, windows)
        self.phase = Phase.IDLE
        self.round = progress.next_round
        self.models = Models(
            settings,
            self.edges,
            progress.model,
            progress.model_size,
            Serving(progress.model, progress.model_size),
        )
        self.counters: Counter[str] = Counter()
        self._others = OtherVersions("coordinator")
        self._indices = indices
        self._settled_reports = settled_reports
        self._messages = OutgoingMessages(settings, progress.next_round << 20)
        self._observation = PendingObservation(0.0, 0.0)
        self._ordered: OrderedRound | None = None
        self._call: EvaluationCall | None = None
        self._over = progress.next_round - 1
        self._finishing = ""
        self._patience = Patience()

    @abstractmethod
    def _consider(self, now: float) -> list[Effect]:
        """Decide once everybody has answered, or nobody is waited for any longer."""

    @abstractmethod
    def _settle(self, now: float) -> list[Effect]:
        """End the round."""

    @abstractmethod
    def _merge_if_complete(self, now: float) -> list[Effect]:
        """Go on once every model is here or given up."""

    @abstractmethod
    def _on_answer(self, edge: str, message: EvaluationAnswer, now: float) -> list[Effect]:
        """Take in opinions, or who volunteers."""

    @abstractmethod
    def _call_again(self, session: EdgeSession, now: float) -> list[Effect]:
        """Call an edge for opinions that is new, back, or does not know of the call."""

    def receive(
        self, edge: str, message: EdgeToCoordinator, now: float, *, link_idle: bool = True
    ) -> list[Effect]:
        """Take in what an edge said (its id is that of the topic).

        Args:
            edge: The sender.
            message: What it said.
            now: When it came.
            link_idle: Whether everything published before was acknowledged.

        Raises:
            PolicyError: The policy failed, or broke a constraint; nothing is reserved.
        """
        try:
            match message:
                case EdgeHello():
                    return self._on_hello(edge, message, now)
                case EdgeStatus():
                    return self._on_status(edge, message, now)
                case RoundColumns():
                    return self._on_columns(edge, message, now)
                case RoundReport():
                    return self._on_report(edge, message, now)
                case Need():
                    return self._on_need(edge, message, now, link_idle=link_idle)
                case Chunk():
                    return self._on_chunk(edge, message, now)
                case Opinions() | Volunteers() | EdgeMoments():
                    return self._on_answer(edge, message, now)
        except ProtocolError as error:
            self.counters[error.reason] += 1
            return []

    def _on_hello(self, edge: str, hello: EdgeHello, now: float) -> list[Effect]:
        if hello.edge != edge:
            raise MalformedError("an edge says hello as another one")
        if hello.protocol != PROTOCOL_VERSION:
            self.counters["protocol_version"] += 1
            reason = self._others.refuse(edge, hello.protocol)
            return [Event("edge_refused", {"edge": edge, "reason": reason})] if reason else []
        session, changed = self._hear(edge, hello.epoch, now)
        session.name, session.rent = hello.name or edge, hello.rent
        return self._greet(session, now, changed=changed)

    def _on_status(self, edge: str, status: EdgeStatus, now: float) -> list[Effect]:
        session, changed = self._hear(edge, status.epoch, now)
        session.rent = status.rent
        foreign = status.run != self.settings.run
        if not foreign and status.names:
            names = {agent: safe_text(name, limit=100) for agent, name in status.names.items()}
            self._indices.label_clients(names)
        session.model = "" if foreign else status.model
        grown, session.agents = status.agents > session.agents, status.agents
        if foreign or changed:
            return self._greet(session, now, changed=changed)
        if grown and self.phase is Phase.IDLE:
            self._patience.hurry(now)
        if self.phase is Phase.OBSERVING and self._observation.outdated(session):
            # It has just got the model it lacked when it answered.
            return [self._messages.open(session, self.round)]
        return []

    def _on_columns(self, edge: str, message: RoundColumns, now: float) -> list[Effect]:
        if not self._ours(message.run):
            return []
        session, changed = self._hear(edge, message.epoch, now)
        effects = self._greet(session, now, changed=True) if changed else []
        columns = session.absorb(message, self._indices)
        if columns is None:
            return [*effects, self._messages.open(session, self.round)]
        if (columns.price > MAX_MICRO).any() or (columns.context_seq < 0).any():
            raise MalformedError("a price or a sequence number is out of range")
        session.model = message.model
        if self.phase is not Phase.OBSERVING or message.round != self.round:
            self.counters["columns_unasked"] += 1
            return effects
        client = session.client[columns.session]
        seen = Observation(session.index, client, columns, now, message.model)
        self._observation.answers[edge] = seen
        if session.model != session.expected:
            effects += self.models.catch_up(session, self.round, now)
        return effects + self._consider(now)

    def _on_report(self, edge: str, report: RoundReport, now: float) -> list[Effect]:
        if not self._ours(report.run):
            return []
        session, changed = self._hear(edge, report.epoch, now)
        effects = self._greet(session, now, changed=True) if changed else []
        session.chunk_bytes = report.chunk_bytes
        ordered = self._ordered
        if ordered is not None and report.round == ordered.round and edge in ordered.parts:
            part = ordered.parts[edge]
            if part.report is not None:
                self.counters["report_twice"] += 1
                return effects
            part.report = report
            part.resend_at = None
            return effects + (self._settle(now) if ordered.complete else [])
        if report.round > self._over:
            self.counters["report_unordered"] += 1
            return effects
        settled = self._settled_reports.settled(report.round, edge)
        self.counters["report_repeated" if settled else "report_too_late"] += 1
        return [*effects, self._messages.receipt(edge, report.round, too_late=not settled)]

    def _on_need(self, edge: str, need: Need, now: float, *, link_idle: bool) -> list[Effect]:
        session = self.edges.by_id.get(edge)
        if session is None or not self._ours(need.run):
            return []
        if need.digest != self.models.digest:
            self.counters["need_unknown"] += 1
            return []
        session.heard_at = now
        effects, last = self.models.on_need(session, need, now, link_idle=link_idle)
        if last:
            # It will hold the model in a moment: ask it then, not a quarter of a second later.
            self._observation.reopen_at = min(self._observation.reopen_at, now + 0.01)
        return effects

    def _on_chunk(self, edge: str, chunk: Chunk, now: float) -> list[Effect]:
        if not self._ours(chunk.run):
            return []
        return self.models.on_chunk(edge, chunk, now) + self._merge_if_complete(now)

    def _hear(self, edge: str, epoch: str, now: float) -> tuple[EdgeSession, bool]:
        session, changed = self.edges.hear(edge, epoch, now, self.models.digest)
        if changed:
            # What its former process answered names sessions that are no more.
            self._observation.answers.pop(edge, None)
        return session, changed

    def _greet(self, session: EdgeSession, now: float, *, changed: bool) -> list[Effect]:
        """Welcome an edge, and bring one that is new or restarted up to date."""
        effects: list[Effect] = [self._messages.welcome(session.id)]
        if changed:
            effects.append(Event("edge_joined", {"edge": session.id, "name": session.name}))
        match self.phase:
            case Phase.ENDED:
                effects.append(self._messages.run_ended(session.id, self._finishing))
            case Phase.IDLE:
                self._patience.hurry(now)
            case Phase.OBSERVING:
                effects.append(self._messages.open(session, self.round))
            case Phase.ORDERED:
                assert self._ordered is not None
                part = self._ordered.parts.get(session.id)
                if part is not None and part.report is None:
                    part.resend_at = now
            case Phase.EVALUATING:
                effects += self._call_again(session, now)
            case Phase.MERGING:
                pass
        return effects

    def _ours(self, run: str) -> bool:
        if run != self.settings.run:
            self.counters["other_run"] += 1
        return run == self.settings.run
