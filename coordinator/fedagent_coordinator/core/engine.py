"""The engine of a run: observe, decide, order, settle, merge, evaluate, and again.

A pure state machine (docs/protocol.md, One round). Messages, ticks and results of jobs go in
with the time; effects come out, to be performed in order. The engine takes in what edges say, in
whichever phase; `Run` has what outlives a phase, and each phase what it alone needs.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from msgspec import structs

from fedagent_coordinator.policies.base import MAX_MICRO, BoolArray
from fedagent_node.effects import (
    EVERYBODY,
    Effect,
    Emit,
    Input,
    LinkDown,
    LinkUp,
    Mark,
    Received,
    Revoked,
    Send,
    Warn,
)
from fedagent_protocol.columns import Columns, unpack
from fedagent_protocol.errors import ProtocolError, safe_text
from fedagent_protocol.messages import (
    Chunk,
    CoordinatorBeacon,
    EdgeHello,
    EdgeMoments,
    EdgeStatus,
    LedgerHead,
    Need,
    OpinionClose,
    Opinions,
    OpinionsReceipt,
    ReportReceipt,
    Revocations,
    RevocationsNeed,
    RoundColumns,
    RoundReport,
    Volunteers,
)
from fedagent_protocol.transfer import Layout

from . import effects as fx
from .answers import AnswerMessage, unmet_needs
from .decision import Learning
from .edges import LOST_S, EdgeSession, Indices
from .evaluating import Evaluating
from .merge import Merging
from .ordered import Ordered
from .phases import Idle, Observing, next_round
from .readiness import TARGET, needs_unmet
from .run import Phase, Run
from .settings import Progress, Settings

BEACON_S = 5.0
BACK_S = 2.5
"""How long an edge whose report is open may take to connect again; see `link.URGENT_S`."""


class Engine:
    """All rounds of one run; see `Run` for what it is made of.

    Args:
        witness: Called with the head of the ledger that an edge was given; raises where it is
            one that was lost.

    Raises:
        PolicyError: The policy needs what this run does not call for, or a testbed only.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        progress: Progress,
        learning: Learning,
        indices: Indices,
        paid_at: Callable[[int, str], frozenset[str] | None],
        clock: Callable[[], float],
        witness: Callable[[str, LedgerHead], None],
    ) -> None:
        if unmet := unmet_needs(learning.policy.needs, settings.opinions):
            raise needs_unmet(settings.recipe.policy.name, unmet, ())
        self.run = Run(settings, progress, learning, indices, paid_at, clock)
        self.counters = self.run.counters
        self.phase: Phase = Idle(self.run, math.inf)
        self._witness, self._first_at = witness, progress.open_at
        self._beacon_at = math.inf
        self._messages: Mapping[type, Callable[..., None]] = {
            EdgeHello: self._hello,
            EdgeStatus: self._status,
            Need: self._need,
            Chunk: self._chunk,
            Revocations: self._revocations,
            RoundColumns: self._columns,
            RoundReport: self._report,
            Opinions: self._answer,
            Volunteers: self._answer,
            EdgeMoments: self._answer,
        }
        self._inputs: Mapping[type, Callable[..., None]] = {
            Received: self._received,
            fx.Start: self._start,
            LinkDown: self._link_down,
            LinkUp: self._link_up,
            Revoked: self._revoked,
            fx.Enrolled: self._enrolled,
            fx.WordRenewed: self._welcome_all,
            fx.HeldOutEvaluated: self._evaluated,
            fx.Standardized: self._standardized,
        }

    def receive(self, event: Input, now: float) -> list[Effect]:
        """Take in a message, or the result of what was asked for.

        Raises:
            PolicyError: The policy failed, or broke a constraint; nothing is reserved.
        """
        if handle := self._inputs.get(type(event)):
            handle(event, now)
        if take := self.phase.takes.get(type(event)):
            take(self.phase, event, now)
        return self._step(now)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        run = self.run
        if now >= self._beacon_at:
            self._beacon(now)
        for edge in run.edges.lose_silent(now):
            run.do(Emit("edge_lost", {"edge": edge.id, "name": edge.name}))
            run.do(fx.NoteDevices(edge.id, None))
            run.show(run.status)
        return self._step(now)

    def next_due(self) -> float:
        """Return when `tick` is wanted; infinity while only messages matter."""
        losses = (edge.heard_at + LOST_S for edge in self.run.edges.live())
        return min(self._beacon_at, self.phase.due, *losses)

    def urgent(self) -> bool:
        """Return that every edge waits for our own broker."""
        return True

    def _step(self, now: float) -> list[Effect]:
        """Go from phase to phase as far as it goes; the only place where it changes."""
        while (phase := self.phase.step(now)) is not self.phase:
            self.phase = phase
        return self.run.to_do()

    # ----------------------------------------------------- what is no message of an edge

    def _start(self, _: fx.Start, now: float) -> None:
        run = self.run
        self._beacon(now)
        run.readiness.started_at = now
        if run.settings.held_out and run.models.round:
            # A former process may not have come to write how good it is.
            run.evaluate_model(run.models.round, run.models.digest)
        opens_at = min(self._first_at, now + run.settings.recipe.rounds.every_s)
        if now >= opens_at or run.over:
            self.phase = next_round(run, now)
        else:
            run.not_before = opens_at
            self.phase = Idle(run, opens_at)

    def _beacon(self, now: float) -> None:
        s = self.run.settings
        self._beacon_at, period_ms = now + BEACON_S, round(1000 * BEACON_S)
        beacon = CoordinatorBeacon(run=s.run, coordinator=s.coordinator, period_ms=period_ms)
        self.run.do(Send(EVERYBODY, beacon))

    def _link_down(self, _: LinkDown, _now: float) -> None:
        self.run.cut_until = math.inf

    def _link_up(self, _: LinkUp, now: float) -> None:
        # Edges need as long to be back, and to say what they could not.
        self.run.cut_until = now + BACK_S + self.run.settings.grace_s
        if self._beacon_at < math.inf:
            self._beacon(now)

    def _revoked(self, revoked: Revoked, _now: float) -> None:
        """Tell every edge who is out; an edge that is out itself is lost at once."""
        run = self.run
        run.members.revoked = Revocations(number=revoked.number, crl=revoked.crl)
        for edge in run.edges.live():
            if edge.id in revoked.ids:
                edge.heard_at = -math.inf
            elif not edge.owes_list:
                run.send(edge.id, run.members.revoked)

    def _enrolled(self, event: fx.Enrolled, now: float) -> None:
        """Take over who belongs to the site: its names stand, whatever edges call anybody."""
        run, members = self.run, self.run.members
        new = event.agents - (members.agents or frozenset())
        members.agents, members.names = event.agents, event.names
        run.do(fx.KeepMembers(event.agents | event.names.keys(), event.agents))
        for edge in run.edges.by_id.values():
            self._label(edge)
        if new:
            # An edge tells of a device once, and may have done so before that was let in.
            self._welcome_all(event, now)
        run.indices.label_clients({one: event.names.get(one, "") for one in event.agents})

    def _label(self, edge: EdgeSession) -> None:
        edge.name = self.run.members.called(edge.id, edge.name)
        if edge.name != edge.id:
            self.run.indices.label_edge(edge.id, edge.name)

    def _welcome_all(self, _: Input, _now: float) -> None:
        for edge in self.run.edges.live():
            self.run.welcome(edge.id)

    def _evaluated(self, found: fx.HeldOutEvaluated, now: float) -> None:
        self.run.evaluating -= 1
        self.run.evaluated = found.digest
        if found.metrics:
            self.run.do(fx.SaveMetrics(found))
        fields = {"accuracy": None, "loss": None, **found.metrics}
        self.run.do(Emit("model", {"round": found.round, "digest": found.digest, **fields}))
        self.run.judge(found.metrics)
        if self.run.over == TARGET and isinstance(self.phase, Idle | Observing):
            self.phase = next_round(self.run, now)

    def _standardized(self, found: fx.Standardized, now: float) -> None:
        run = self.run
        run.unmeasured = False
        run.settings = replace(run.settings, task=found.task, body=found.body)
        run.do(Emit("standardized", found.fields))
        self._welcome_all(found, now)
        self.phase = next_round(run, now)

    # ------------------------------------------------------------- messages of edges

    def _received(self, received: Received, now: float) -> None:
        message, counters = received.message, self.counters
        handle = self._messages.get(type(message))
        if handle is None:
            return
        of_any_run = isinstance(message, EdgeHello | EdgeStatus | Revocations)
        if message.run != self.run.settings.run and not of_any_run:
            counters["other_run"] += 1
            return
        try:
            handle(received, message, now)
        except ProtocolError as error:
            counters[error.reason] += 1

    def _hello(self, received: Received, hello: EdgeHello, now: float) -> None:
        run, name = self.run, received.sender
        if hello.edge != name:
            raise ProtocolError("an edge's hello names another edge")
        if hello.head is not None:
            self._witness(name, hello.head)
        edge, changed = run.edges.hear(name, hello.epoch, now, run.models.digest)
        edge.name, edge.rent = run.members.called(name, hello.name), hello.rent
        edge.senders.clear()
        if hello.run == run.settings.run:
            undecided = isinstance(self.phase, Idle | Observing)
            if said := run.numbers.claim(hello.round, undecided=undecided):
                run.do(Warn(edge.id, f"edge {edge.id} {said}"))
            if undecided and run.numbers.claimed >= run.numbers.round:
                run.numbers.go_on()
                if isinstance(self.phase, Observing):
                    self.phase = next_round(run, now)
        self._greet(edge, changed, now)

    def _status(self, received: Received, status: EdgeStatus, now: float) -> None:
        run, name = self.run, received.sender
        members = run.members.agents
        if members is not None:
            # Nothing is noted of who does not belong to the site.
            kept = tuple(note for note in status.devices if note.agent in members)
            status = structs.replace(status, devices=kept)
        run.do(fx.NoteDevices(name, status))
        edge, changed = run.edges.hear(name, status.epoch, now, run.models.digest)
        edge.rent = status.rent
        foreign = status.run != run.settings.run
        if not foreign and members is None:
            names = {o.agent: safe_text(o.name, limit=100) for o in status.devices if o.name}
            run.indices.label_clients(names)
            run.called |= names
        edge.model = "" if foreign else status.model
        self._compare_lists(edge, status.crl)
        edge.agents = status.agents
        had, edge.trouble = edge.trouble, safe_text(status.trouble, limit=200)
        if edge.trouble != had:
            edge.offered_at = None
            why = f"does not take part in rounds: {edge.trouble}"
            said = why if edge.trouble else "takes part again"
            run.do(Warn("", f"edge {edge.name or edge.id} {said}"))
            run.show(run.status)
        if foreign or changed or (had and not edge.trouble):
            self._greet(edge, changed, now)
        elif isinstance(self.phase, Observing):
            self.phase.caught_up(edge)

    def _compare_lists(self, edge: EdgeSession, number: int) -> None:
        """Send an edge the list of the revoked that it lacks, once its own other one was seen.

        A coordinator on a backup has lost who was revoked since: who is out must not come in again.
        """
        run, ours = self.run, self.run.members.revoked
        if not ours.crl:
            return
        edge.list_seen |= number in (0, ours.number)
        if edge.owes_list:
            edge.list_asked += 1
            run.send(edge.id, RevocationsNeed(number=0))
        elif number < ours.number:
            run.send(edge.id, ours)

    def _revocations(self, received: Received, shown: Revocations, _now: float) -> None:
        edge, ours = self.run.edges.by_id.get(received.sender), self.run.members.revoked
        if edge is None or edge.list_seen or not edge.list_asked:
            return
        edge.list_seen = True
        self.run.do(fx.LearnRevocations(edge.id, shown.crl))
        if shown.number < ours.number:
            self.run.send(edge.id, ours)

    def _need(self, received: Received, need: Need, now: float) -> None:
        if edge := self.run.edges.by_id.get(received.sender):
            self.run.models.serve(edge, need, now, link_idle=received.link_idle)

    def _chunk(self, received: Received, chunk: Chunk, now: float) -> None:
        if isinstance(self.phase, Merging):
            self.phase.receive_chunk(received.sender, chunk, now)

    def _columns(self, received: Received, message: RoundColumns, now: float) -> None:
        run, edge = self.run, self._hear(received.sender, message.epoch, now)
        columns = unpack(message)
        if not edge.learn_ids(message.known, message.new_ids):
            run.ask_columns(edge)
            return
        if (columns.price > MAX_MICRO).any() or (columns.context_seq < 0).any():
            raise ProtocolError("a price or a sequence number is out of range")
        edge.model = message.model
        if not isinstance(self.phase, Observing) or message.round != run.numbers.round:
            return
        # An edge may name anybody, and is paid for it.
        client = edge.clients(columns.session, run.indices, run.members.agents)
        kept = client >= 0
        left_out = len(kept) - int(kept.sum())
        if left_out:
            columns = _kept(columns, kept)
            self.counters["not_observed"] += left_out
        run.do(*edge.left_out(left_out, len(columns.session)))
        self.phase.receive_columns(edge, columns, now)

    def _report(self, received: Received, report: RoundReport, now: float) -> None:
        run = self.run
        run.do(Mark("reported"))
        edge = self._hear(received.sender, report.epoch, now)
        try:
            Layout(run.models.size, report.chunk_bytes)
            edge.chunk_bytes = report.chunk_bytes
        except ProtocolError as error:  # the model of this run cannot be cut so
            self.counters[error.reason] += 1
        if isinstance(self.phase, Ordered) and self.phase.receive_report(edge.id, report):
            return
        if report.round <= run.numbers.settled:
            paid = run.paid_at(report.round, edge.id)
            self.counters["report_too_late"] += paid is None
            valid = (one.agent for one in report.outcomes if one.valid)
            unpaid = () if paid is None else tuple(one for one in valid if one not in paid)
            receipt = ReportReceipt(round=report.round, too_late=paid is None, unpaid=unpaid)
            run.send(edge.id, receipt)

    def _answer(self, received: Received, message: AnswerMessage, now: float) -> None:
        edge = self._hear(received.sender, message.epoch, now)
        if isinstance(self.phase, Evaluating) and self.phase.expects(message):
            self.phase.receive_answer(edge, message, now)
        elif message.round <= self.run.numbers.settled:
            # An edge that hears that it is over ceases to repeat itself.
            ended = OpinionClose if isinstance(message, Volunteers) else OpinionsReceipt
            self.run.send(edge.id, ended(round=message.round))

    def _hear(self, name: str, epoch: str, now: float) -> EdgeSession:
        """Note a sign of life of an edge that answers."""
        edge, changed = self.run.edges.hear(name, epoch, now, self.run.models.digest)
        if changed:
            self._greet(edge, changed, now)
        return edge

    def _greet(self, edge: EdgeSession, changed: str, now: float) -> None:
        """Bring an edge up to date; say that it came, but not that it started again."""
        run = self.run
        run.welcome(edge.id)
        if changed == "new":
            self._label(edge)
            run.do(Emit("edge_joined", {"edge": edge.id, "name": edge.name}))
            run.show(run.status)
        self.phase.greet(edge, now)


def _kept(columns: Columns, rows: BoolArray) -> Columns:
    """Return the columns with these rows only."""
    names = ("session", "price", "context_seq", "age_ms", "available", "values")
    claim = columns.claim[rows] if len(columns.claim) else columns.claim
    kept = {name: getattr(columns, name)[rows] for name in names}
    return replace(columns, claim=claim, **kept)
