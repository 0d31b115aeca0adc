"""The engine of a run: observe, decide, order, settle, merge, evaluate, and again.

A pure state machine (docs/protocol.md, One round). Messages, ticks and results of jobs go in
with the time; effects come out, to be performed in order. What is written to disk stands before
everything that relies on it. The engine owns what outlives a phase; each phase owns the rest.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from fedagent_coordinator.policies.base import NOT_FEATURES
from fedagent_protocol.messages import EdgeToCoordinator
from fedagent_protocol.versions import OtherVersions

from . import edge_messages
from .backoff import ClientBackoff, EmptyRoundBackoff
from .decision_policies import Decider, DecisionPolicies
from .edges import EdgeTable, Indices
from .effects import Effect, End, Event, Send
from .evaluation import Evaluating, Measuring, StatisticsCollection
from .evaluation_schedule import evaluation_plan
from .merge import Merging
from .models import Models
from .outgoing_messages import OutgoingMessages
from .phases import Ended, Idle, Observing, Phase, SettledRound
from .readiness import DECLINED, EDGES, STATISTICS, NeedsUnmetError, Readiness, Waiting
from .settings import Progress, Settings

REPORTS_KEPT = 64


class SettledReports:
    """Whose reports were settled: the last rounds by memory, older ones by the books.

    Args:
        in_books: Whether the report of an edge for a round was settled, by the books.
    """

    def __init__(self, in_books: Callable[[int, str], bool]) -> None:
        self._in_books = in_books
        self._edges: dict[int, frozenset[str]] = {}

    def remember(self, round_: int, edges: frozenset[str]) -> None:
        """Note which edges had reported when a round was settled."""
        self._edges[round_] = edges
        self._edges.pop(round_ - REPORTS_KEPT, None)

    def includes(self, round_: int, edge: str) -> bool:
        """Return whether an edge's report was settled."""
        known = self._edges.get(round_)
        return edge in known if known is not None else self._in_books(round_, edge)


def _ignore(_former: str, _next: str) -> None:
    """Log nothing."""


class Engine:
    """All rounds of one run.

    Args:
        settings: The run.
        progress: Where it stands.
        policies: Decide; they learn when the runtime performs `Learn`.
        indices: Run-wide indices of clients and edges.
        in_books: Whether the report of an edge for a round was settled, by the books.
        clock: For durations only; the caller's idea of now otherwise.
        log_phase: Called with the names of the former and the next phase.

    Attributes:
        phase: What it is doing; see `enter`.
        round: The round that is open, or the next.
        last_settled: The last round that was settled.
        rounds_done, spent_micro: Progress.
        models: The global model.
        not_before: When the next round may begin by the schedule; 0 if at once.
        opens_at: When it may open after rounds that brought nothing.
        warnings: What devices have warned of.
        counters: What was refused or odd, by reason.

    Raises:
        NeedsUnmetError: The policy needs what only a testbed knows, or what this run does not
            call for.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        progress: Progress,
        policies: DecisionPolicies,
        indices: Indices,
        in_books: Callable[[int, str], bool],
        clock: Callable[[], float],
        log_phase: Callable[[str, str], None] = _ignore,
    ) -> None:
        needs = policies.policy.needs
        self.evaluations = evaluation_plan(settings, progress.evaluations)
        if unmet := needs & (NOT_FEATURES - self.evaluations.provides):
            raise NeedsUnmetError(settings.policy, unmet, ())
        self.settings, self.indices = settings, indices
        self.edges = EdgeTable(indices, {window.edge: window for window in progress.windows})
        self.models = Models(self.edges, progress.model, progress.model_size)
        self.outgoing = OutgoingMessages(settings, progress.next_round << 20)
        self.decider = Decider(settings, policies, clock)
        resumed = progress.rounds_done > 0
        self.readiness = Readiness(settings, needs - NOT_FEATURES, resumed=resumed)
        self.waiting = Waiting()
        self.client_backoff, self.empty_rounds = ClientBackoff(), EmptyRoundBackoff()
        self.settled_reports = SettledReports(in_books)
        self.counters: Counter[str] = Counter()
        self.warnings: set[str] = set()
        self.other_versions = OtherVersions("coordinator")
        self.round = progress.next_round
        self.last_settled = progress.next_round - 1
        self.rounds_done = progress.rounds_done
        self.spent_micro = progress.spent_micro
        self.opens_at = self.not_before = 0.0
        self._first_at = progress.open_at
        self._unmeasured = settings.standardize > 0
        self._measurements = 0
        self._log_phase = log_phase
        self.phase: Phase = Idle(self, None)

    @property
    def free_micro(self) -> int | None:
        """What is left of the run's budget; None for no limit."""
        total = self.settings.total_micro
        return None if total is None else max(0, total - self.spent_micro)

    def enter(self, phase: Phase) -> None:
        """Make this the phase; the only place where it changes."""
        self._log_phase(self.phase.name, phase.name)
        self.phase = phase

    # ------------------------------------------------------------------ inputs

    def start(self, now: float) -> list[Effect]:
        """Begin: edges will say hello when they hear the beacon."""
        self.readiness.started_at = now
        if self.settings.over(self.rounds_done):
            return self._finish_late(now)
        opens_at = min(self._first_at, now + self.settings.every_s)
        if now >= opens_at:
            return self.wait(EDGES, now)
        self.not_before = opens_at
        self.enter(Idle(self, opens_at))
        return []

    def receive(
        self, edge: str, message: EdgeToCoordinator, now: float, *, link_idle: bool = True
    ) -> list[Effect]:
        """Take in a message of an edge (its id is that of the topic).

        Args:
            edge: The sender.
            message: The message.
            now: When it came.
            link_idle: Whether everything published before was acknowledged.

        Raises:
            PolicyError: The policy failed, or broke a constraint; nothing is reserved.
        """
        return edge_messages.receive(self, edge, message, now, link_idle=link_idle)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due.

        Raises:
            PolicyError: See `receive`.
        """
        lost: list[Effect] = [
            Event("edge_lost", {"edge": edge.id, "name": edge.name})
            for edge in self.edges.lose_silent(now)
        ]
        return lost + self.phase.tick(now)

    def next_due(self) -> float | None:
        """Return when `tick` is wanted; None while only messages matter."""
        if isinstance(self.phase, Ended):
            return None
        times = (self.edges.next_loss(), self.phase.next_due())
        return min((time for time in times if time is not None), default=None)

    def farewell(self) -> list[Send]:
        """Return the end of the run for every edge, to be repeated for a while."""
        return self.phase.farewell() if isinstance(self.phase, Ended) else []

    def part_checked(self, digest: str, *, intact: bool, now: float) -> list[Effect]:
        """Take in whether a pulled model is what its digest says."""
        if not isinstance(self.phase, Merging):
            return []
        return self.phase.part_checked(digest, intact=intact, now=now)

    def merged(self, round_: int, digest: str, now: float) -> list[Effect]:
        """Take in the merged model; an empty digest stands for none that was usable."""
        if not isinstance(self.phase, Merging):
            return []
        return self.phase.merged(round_, digest, now)

    def standardized(self, task: str, body: bytes, now: float) -> list[Effect]:
        """Take in the task as it is from now on; edges are told, and the round goes on."""
        self._unmeasured = False
        self.outgoing.settings = self.settings = replace(self.settings, task=task, body=body)
        welcomes: list[Effect] = [self.outgoing.welcome(edge.id) for edge in self.edges.live()]
        return welcomes + self.open(now)

    # ------------------------------------------------- from one phase to the next

    def wait(self, reason: str, now: float, *, edges: int = 0, agents: int = 0) -> list[Effect]:
        """Pause for what is missing; without any edge, until one comes."""
        detail = self.client_backoff.reason(now) if reason == DECLINED else ""
        wanted = self.readiness.wanted(reason, now)
        effects = self.waiting.wait(
            reason, now, edges=edges, agents=agents, wanted=wanted, detail=detail
        )
        self.enter(Idle(self, self.waiting.until if self.edges.live() else None))
        return effects

    def open(self, now: float) -> list[Effect]:
        """Ask all edges for this round's columns."""
        if self.settings.over(self.rounds_done):
            return self._finish_late(now)
        live = self.edges.live()
        if not live:
            self.readiness.solvent()
            return self.wait(EDGES, now)
        self.enter(Observing(self, now))
        return [self.outgoing.open(edge, self.round) for edge in live]

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
        phase = Evaluating(self, pending(self.models.digest, now))
        self.enter(phase)
        return phase.begin(now)

    def merge(self, done: SettledRound, firsts: Mapping[str, bytes], now: float) -> list[Effect]:
        """Merge after a settled round; `firsts` are chunks 0 that the reports brought."""
        timing_ms = done.settled.timing_ms
        phase = Merging(
            self, done.settled.round, timing_ms, now, lambda now: self.round_over(done, now)
        )
        self.enter(phase)
        return phase.begin(firsts, now)

    def round_over(self, done: SettledRound, now: float) -> list[Effect]:
        """Have the model of a round evaluated if that is due, then close the round."""
        if done.evaluation is None:
            return self.close(done, now)
        phase = Evaluating(self, done.evaluation(self.models.digest, now), done)
        self.enter(phase)
        return phase.begin(now)

    def close(self, done: SettledRound, now: float) -> list[Effect]:
        """Emit the event of a round, and go on with the next one."""
        effects: list[Effect] = [done.event(self.spent_micro, now)]
        self.round = self.last_settled + 1
        if self.settings.over(self.rounds_done):
            return effects + self._end("rounds")
        opens_at = max(self.opens_at, self.not_before)
        if now < opens_at:
            self.enter(Idle(self, opens_at))
            return effects
        return effects + self.open(now)

    def finish(self, reason: str, now: float) -> list[Effect]:
        """End the run, after a last merge if edges have learnt since the one before."""
        if not self.models.learnt:
            return self._end(reason)
        phase = Merging(self, self.last_settled, {}, now, lambda _: self._end(reason))
        self.enter(phase)
        return phase.begin({}, now)

    def _finish_late(self, now: float) -> list[Effect]:
        """End a run whose last round was settled before a crash and not merged."""
        patient = now - self.readiness.started_at < self.settings.resume_wait_s
        if not (self.edges.windows and patient):
            return self.finish("rounds", now)
        effects = self.waiting.wait(EDGES, now, edges=len(self.edges.live()), agents=0)
        self.enter(Idle(self, self.waiting.until))
        return effects

    def _end(self, reason: str) -> list[Effect]:
        phase = Ended(self, reason)
        self.enter(phase)
        return [End(reason), *phase.farewell()]

    def _measure(self, now: float) -> list[Effect]:
        """Ask every live edge what its agents' samples add up to, before the first round."""
        s, live = self.settings, self.edges.live()
        self._measurements += 1
        until = now + s.standardize_s
        collection = StatisticsCollection(
            round=0,
            slot=self._measurements,
            digest=self.models.digest,
            began=now,
            until=until,
            give_up_at=until + s.grace_s,
        )
        agents = sum(edge.agents for edge in live)
        effects = self.waiting.wait(STATISTICS, now, edges=len(live), agents=agents)
        phase = Measuring(self, collection)
        self.enter(phase)
        return effects + phase.begin(now)
