"""The engine of a run: observe, decide, order, settle, merge, evaluate, and again.

A pure state machine (docs/protocol.md, One round). Messages, ticks and results of jobs go in
with the time; effects come out, to be performed in order. What is written to disk stands before
everything that relies on it. The engine owns what outlives a phase; each phase owns the rest.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from fedagent_coordinator.policies.base import NOT_FEATURES
from fedagent_node.effects import (
    EVERYBODY,
    Effect,
    Emit,
    Input,
    LinkDown,
    LinkUp,
    ModelFinished,
    Received,
    Revoked,
    Send,
)
from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import (
    AnyMessage,
    CoordinatorBeacon,
    EdgeWelcome,
    LedgerHead,
    OpinionMode,
    ReportReceipt,
    Revocations,
    RoundOpen,
)
from fedagent_protocol.signed import Vouching

from . import edge_messages
from . import effects as fx
from .decision import Decider, Decision, DecisionPolicies
from .edges import EdgeSession, EdgeTable, GlobalModels, Indices
from .evaluating import Evaluating, EvaluationPlan, unmet_needs
from .evaluation import ClientEvaluation
from .merge import Merging
from .observation import ClientStarts, SignedTerms
from .ordered import Ordered, SettledRound
from .outcomes import PaidWork
from .phases import Ended, Idle, Observing, Phase
from .readiness import (
    AGENTS,
    DECLINED,
    EDGES,
    STATISTICS,
    ClientBackoff,
    EmptyRoundBackoff,
    NeedsUnmetError,
    Readiness,
    Waiting,
)
from .settings import Progress, Settings

BEACON_S = 5.0
BACK_S = 2.5
"""How long an edge whose report is open may take to connect again; see `link.URGENT_S`."""


def _believe(_edge: str, _head: LedgerHead) -> None:
    """Compare with nothing."""


def _ignore(_former: str, _next: str) -> None:
    """Log nothing."""


class Engine:
    """All rounds of one run.

    Args:
        settings: The run.
        progress: Where it stands.
        policies: They learn when the store performs `Learn`.
        indices: Run-wide indices of clients and edges.
        in_books: Whether the report of an edge for a round was settled.
        witness: Called with the head of the ledger that an edge was given; raises where it is
            one that was lost.
        clock: For durations only; the caller's idea of now otherwise.
        log_phase: Called with the names of the former and the next phase.

    Raises:
        NeedsUnmetError: The policy needs what this run does not call for, or a testbed only.
    """

    vouching: Vouching = Vouching()
    """Signs for the devices of a site, where there is one."""
    lost_lists: tuple[int, int] = (0, 0)
    """Between these numbers are lists of the revoked that were made since our backup."""

    def __init__(
        self,
        *,
        settings: Settings,
        progress: Progress,
        policies: DecisionPolicies,
        indices: Indices,
        in_books: Callable[[int, str], bool],
        witness: Callable[[str, LedgerHead], None] = _believe,
        clock: Callable[[], float],
        log_phase: Callable[[str, str], None] = _ignore,
    ) -> None:
        recipe, needs = settings.recipe, policies.policy.needs
        if unmet := unmet_needs(needs, settings.opinions):
            raise NeedsUnmetError(recipe.policy.name, unmet, ())
        self.settings, self.indices = settings, indices
        self.edges = EdgeTable(indices, {window.edge: window for window in progress.windows})
        self.models = GlobalModels(
            run=settings.run,
            edges=self.edges,
            digest=progress.model,
            size=progress.model_size,
            round=progress.model_round,
            once=recipe.model.once,
            once_bytes=recipe.model.once_bytes,
            state=progress.state,
        )
        self._seq = progress.next_round << 20  # grows over restarts
        self.decider = Decider(settings, policies, clock)
        resumed = progress.rounds_done > 0
        self.readiness = Readiness(settings, needs - NOT_FEATURES, resumed=resumed)
        self.evaluations = EvaluationPlan(settings, progress.evaluations)
        self.waiting, self.terms = Waiting(), SignedTerms()
        self.starts = ClientStarts(progress.client_starts)
        self.client_backoff, self.empty_rounds = ClientBackoff(), EmptyRoundBackoff()
        self.in_books, self.witness = in_books, witness
        self.counters: Counter[str] = Counter()
        self.warnings: set[str] = set()
        self.revocations = Revocations(number=0, crl=b"")
        self.enrolled: frozenset[str] | None = None
        """The agents of the site; None where there is none: then everybody may take part."""
        self.members: Mapping[str, str] = {}
        """What the site calls whom it ever let in."""
        self.round, self.last_settled = progress.next_round, progress.next_round - 1
        self.claimed, self.skipped = self.last_settled, 0
        """Up to which number rounds are used, by the word of edges; how many that left out."""
        self.rounds_done = progress.rounds_done
        self.spent_micro = progress.spent_micro
        late_rounds = recipe.aggregation.late_rounds
        self.paid_work = PaidWork(late_rounds, set(progress.paid_work), Counter(progress.updates))
        self.opens_at = self.not_before = 0.0
        self.status = fx.ShowStatus()
        self.evaluating, self.evaluated = 0, ""
        self.cut_until = -math.inf
        """Until when the silence of edges may be our own broker's."""
        self._beacon_at: float | None = None
        self._first_at = progress.open_at
        self._unmeasured = recipe.data.standardize
        self._measurements = 0
        self._log_phase = log_phase
        self.phase: Phase = Idle(self, None)

    # ------------------------------------------------------------------ inputs

    def receive(self, event: Input, now: float) -> list[Effect]:
        """Take in a message, or the result of what was asked for.

        Raises:
            PolicyError: The policy failed, or broke a constraint; nothing is reserved.
        """
        match event:
            case Received():
                return edge_messages.receive(self, event, now)
            case fx.Start():
                return self._start(now)
            case LinkDown():
                self.cut_until = math.inf
            case LinkUp():
                # Edges need as long to be back, and to say what they could not.
                self.cut_until = now + BACK_S + self.settings.grace_s
                return [self._beacon()] if self._beacon_at is not None else []
            case Revoked():
                return self._revoked(event)
            case fx.Enrolled():
                return self._enrolled(event)
            case fx.WordRenewed():
                return [self.welcome(edge.id) for edge in self.edges.live()]
            case ModelFinished() if isinstance(self.phase, Merging):
                return self.phase.model_finished(event, now)
            case fx.Merged() if isinstance(self.phase, Merging):
                return self.phase.merged(event, now)
            case fx.HeldOutEvaluated():
                return self._evaluated(event)
            case fx.Standardized():
                return self._standardized(event, now)
            case fx.RunClosed() if isinstance(self.phase, Ended):
                return [Emit("end", event.fields), *self.phase.closed(now)]
        return []

    def _revoked(self, revoked: Revoked) -> list[Effect]:
        """Tell every edge who is out; an edge that is out itself is lost at once."""
        self.revocations = Revocations(number=revoked.number, crl=revoked.crl)
        effects: list[Effect] = []
        for edge in self.edges.live():
            if edge.id in revoked.ids:
                edge.heard_at = -math.inf
            elif not edge_messages.owes_list(self, edge):
                effects.append(self.send(edge.id, self.revocations))
        return effects

    def _enrolled(self, event: fx.Enrolled) -> list[Effect]:
        """Take over who belongs to the site: its names stand, whatever edges call anybody."""
        new = event.agents - (self.enrolled or frozenset())
        self.enrolled, self.members = event.agents, event.names
        self.lost_lists = event.lost
        effects: list[Effect] = [fx.KeepMembers(event.agents | event.names.keys(), event.agents)]
        for edge in self.edges.by_id.values():
            edge.name = self.called(edge.id, edge.name)
            self.label(edge)
            if edge.untold and new:
                # It tells of a device once, and may have done so before that was let in.
                edge.untold = False
                effects.append(self.welcome(edge.id))
        self.indices.label_clients({one: event.names.get(one, "") for one in event.agents})
        return effects

    def called(self, edge: str, own: str) -> str:
        """Return what an edge is called: by its site, or where there is none by itself."""
        name = safe_text(own, limit=100) if self.enrolled is None else self.members.get(edge, "")
        return name or edge

    def label(self, edge: EdgeSession) -> None:
        """Remember what people call an edge."""
        if edge.name not in {"", edge.id}:
            self.indices.label_edge(edge.id, edge.name)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        if self._beacon_at is not None and now >= self._beacon_at:
            self._beacon_at = now + BEACON_S
            effects.append(self._beacon())
        for edge in self.edges.lose_silent(now):
            effects.append(Emit("edge_lost", {"edge": edge.id, "name": edge.name}))
            effects += [fx.NoteDevices(edge.id, None), self.show(self.status)]
        return effects + self.phase.tick(now)

    def next_due(self) -> float | None:
        """Return when `tick` is wanted; None while only messages matter."""
        times = (self._beacon_at, self.edges.next_loss(), self.phase.next_due())
        return min((time for time in times if time is not None), default=None)

    def urgent(self) -> bool:
        """Return that every edge waits for our own broker."""
        return True

    def _start(self, now: float) -> list[Effect]:
        self._beacon_at = now + BEACON_S
        self.readiness.started_at = now
        if self.settings.over(self.rounds_done):
            return [self._beacon(), *self._finish_late(now)]
        opens_at = min(self._first_at, now + self.settings.recipe.rounds.every_s)
        if now >= opens_at:
            return [self._beacon(), *self.wait(EDGES, now)]
        self.not_before = opens_at
        return [self._beacon(), *self.enter(Idle(self, opens_at), now)]

    def _beacon(self) -> Effect:
        s = self.settings
        period_ms = round(1000 * BEACON_S)
        beacon = CoordinatorBeacon(run=s.run, coordinator=s.coordinator, period_ms=period_ms)
        return Send(EVERYBODY, beacon)

    def _evaluated(self, found: fx.HeldOutEvaluated) -> list[Effect]:
        self.evaluating -= 1
        self.evaluated = found.digest
        effects: list[Effect] = [fx.SaveMetrics(found)] if found.metrics else []
        fields = {"accuracy": None, "loss": None, **found.metrics}
        effects.append(Emit("model", {"round": found.round, "digest": found.digest, **fields}))
        return effects + (self.phase.evaluated() if isinstance(self.phase, Ended) else [])

    def _standardized(self, found: fx.Standardized, now: float) -> list[Effect]:
        self._unmeasured = False
        self.settings = replace(self.settings, task=found.task, body=found.body)
        welcomes = [self.welcome(edge.id) for edge in self.edges.live()]
        return [Emit("standardized", found.fields), *welcomes, *self.open(now)]

    # ---------------------------------------------------------- for all phases

    @property
    def free_micro(self) -> int | None:
        """What is left of the run's budget; None for no limit."""
        total = self.settings.recipe.budget.total_micro
        return None if total is None else max(0, total - self.spent_micro)

    @property
    def undecided(self) -> bool:
        """Whether nobody was ordered yet in the round with the current number."""
        return isinstance(self.phase, Idle | Observing)

    def enter(self, phase: Phase, now: float) -> list[Effect]:
        """Make this the phase, and begin it; the only place where it changes."""
        self._log_phase(self.phase.name, phase.name)
        self.phase = phase
        return phase.begin(now)

    def send(self, edge: str, message: AnyMessage) -> Effect:
        """Send a message of this run, numbered."""
        self._seq += 1
        message = structs.replace(message, run=self.settings.run, seq=self._seq)
        # The store adds the head of the ledger.
        return Send(edge, message, stored=isinstance(message, EdgeWelcome | ReportReceipt))

    def welcome(self, edge: str) -> Effect:
        """Answer a hello."""
        s = self.settings
        welcome = EdgeWelcome(
            round=self.round,
            coordinator=s.coordinator,
            task=s.task,
            body=s.body,
            recipe=s.recipe.name,
            claim=self.vouching.task(s.run, s.task),
        )
        return self.send(edge, welcome)

    def skip(self) -> None:
        """Go on after the last number that is used."""
        self.last_settled = max(self.last_settled, self.claimed)
        self.round = self.last_settled + 1
        self._seq = max(self._seq, self.round << 20)

    def ask_columns(self, edge: EdgeSession) -> Effect:
        """Ask an edge for this round's columns."""
        return self.send(
            edge.id, RoundOpen(round=self.round, epoch=edge.epoch, known=len(edge.ids))
        )

    def show(self, status: fx.ShowStatus) -> Effect:
        """Keep for people what is waited for, and which edges are there."""
        known = self.edges.by_id.values()
        self.status = structs.replace(
            status,
            edges_live=sum(edge.live for edge in known),
            next_at=self.not_before,
            silent=tuple(edge.id for edge in known if not edge.live),
            trouble={edge.id: edge.trouble for edge in known if edge.live and edge.trouble},
        )
        return self.status

    def evaluate_model(self, round_: int, digest: str) -> Effect:
        """Have a model evaluated on the held-out set."""
        self.evaluating += 1
        return fx.EvaluateHeldOut(round_, digest, self.models.size)

    # ------------------------------------------------- from one phase to the next

    def wait(self, reason: str, now: float, *, edges: int = 0, agents: int = 0) -> list[Effect]:
        """Pause for what is missing; without any edge, until one comes."""
        effects = self._announce(reason, now, edges=edges, agents=agents)
        until = self.waiting.until if self.edges.live() else None
        return effects + self.enter(Idle(self, until), now)

    def _announce(self, reason: str, now: float, *, edges: int, agents: int) -> list[Effect]:
        found = {EDGES: edges, AGENTS: agents}.get(reason, 0)
        if not self.waiting.wait(reason, found, now):
            return []
        wanted = self.readiness.wanted(reason, now)
        detail = self.client_backoff.reason(now) if reason == DECLINED else ""
        fields: dict[str, object] = {"reason": reason, "edges": edges, "agents": agents}
        fields |= {"wanted": wanted} if wanted else {}
        fields |= {"detail": detail} if detail else {}
        status = fx.ShowStatus(waiting=reason, detail=detail, found=found, wanted=wanted)
        return [Emit("waiting", fields), self.show(status)]

    def open(self, now: float) -> list[Effect]:
        """Ask all edges for this round's columns."""
        if self.settings.over(self.rounds_done):
            return self._finish_late(now)
        if not self.edges.live():
            self.readiness.solvent()
            return self.wait(EDGES, now)
        return self.enter(Observing(self, now), now)

    def prepare(self, now: float) -> list[Effect] | None:
        """Begin what comes before a round is decided; None if nothing does."""
        if self._unmeasured:
            self.readiness.solvent()
            return self._measure(now)
        pending = self.evaluations.pending()
        if pending is None:
            return None
        self.readiness.solvent()
        self.waiting.over()
        evaluation = self.evaluations.evaluation(pending, self.models.digest, now)
        return self.enter(Evaluating(self, evaluation), now)

    def order(
        self, decision: Decision, ready: Sequence[EdgeSession], opened_at: float, now: float
    ) -> list[Effect]:
        """Reserve a round, then order it."""
        self.readiness.solvent()
        self.waiting.over()
        return self.enter(Ordered(self, decision, ready, opened_at, now), now)

    def round_over(self, done: SettledRound, now: float) -> list[Effect]:
        """Have the model of a round evaluated if that is due, then close the round."""
        if not done.evaluates:
            return self.close(done, now)
        round_, model = done.settled.round, self.models.digest
        evaluation = self.evaluations.evaluation(round_, model, now)
        return self.enter(Evaluating(self, evaluation, done), now)

    def close(self, done: SettledRound, now: float) -> list[Effect]:
        """Emit the event of a round, and go on with the next one."""
        effects: list[Effect] = [done.event(self.spent_micro, now)]
        self.skip()
        if self.settings.over(self.rounds_done):
            return effects + self.enter(Ended(self, "rounds"), now)
        opens_at = max(self.opens_at, self.not_before)
        if now < opens_at:
            return effects + self.enter(Idle(self, opens_at), now)
        return effects + self.open(now)

    def finish(self, reason: str, now: float) -> list[Effect]:
        """End the run, after a last merge if edges have learnt since the one before."""
        if not self.models.learnt:
            return self.enter(Ended(self, reason), now)
        phase = Merging(
            self, self.last_settled, now, lambda now: self.enter(Ended(self, reason), now)
        )
        return self.enter(phase, now)

    def _finish_late(self, now: float) -> list[Effect]:
        """End a run whose last round was settled before a crash and not merged."""
        patient = now - self.readiness.started_at < self.settings.resume_wait_s
        if not (self.edges.windows and patient):
            return self.finish("rounds", now)
        effects = self._announce(EDGES, now, edges=len(self.edges.live()), agents=0)
        return effects + self.enter(Idle(self, self.waiting.until), now)

    def _measure(self, now: float) -> list[Effect]:
        """Ask every live edge what its agents' samples add up to, before the first round."""
        s, live = self.settings, self.edges.live()
        self._measurements += 1
        until = now + s.recipe.data.standardize_s
        collection = ClientEvaluation(
            mode=OpinionMode.MOMENTS,
            round=0,
            slot=self._measurements,
            digest=self.models.digest,
            began=now,
            until=until,
            give_up_at=until + s.grace_s,
        )
        agents = sum(edge.agents for edge in live)
        effects = self._announce(STATISTICS, now, edges=len(live), agents=agents)
        return effects + self.enter(Evaluating(self, collection), now)
