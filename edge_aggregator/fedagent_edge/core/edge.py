"""The edge as a pure state machine: agents below, the coordinator above, one round between.

docs/protocol.md has the order of messages.
"""

from typing import cast

from msgspec.structs import replace

from fedagent_node.effects import (
    ContentLost,
    Effect,
    Emit,
    Input,
    LinkUp,
    Mark,
    ModelFinished,
    OtherVersion,
    Received,
    Revoked,
    Send,
    TakenOver,
    Warn,
)
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import (
    AgentToEdge,
    Bye,
    Chunk,
    ContextReport,
    CoordinatorBeacon,
    CoordinatorToEdge,
    EdgeWelcome,
    GlobalModel,
    Gone,
    Hello,
    Need,
    Opinion,
    OpinionClose,
    OpinionOpen,
    OpinionsReceipt,
    PeerSend,
    Probe,
    ProbeReply,
    ReportReceipt,
    Revocations,
    RevocationsNeed,
    RoundOpen,
    RoundOrder,
    RunEnded,
    TaskBody,
    TaskNeed,
    UpdateOffer,
    Volunteer,
    Welcome,
)

from . import revocations
from .beacon import Beacon
from .clones import Clones
from .disk import Disk
from .effects import (
    LAN,
    WAN,
    Admitted,
    Checked,
    Committed,
    DiskFailed,
    DiskRefused,
    DiskTried,
    ForgetRound,
    ModelLost,
    OpenModel,
    ReopenedRound,
)
from .evaluation import Evaluations
from .once import OnceFile
from .rounds import AHEAD, Rounds
from .sessions import AgentSession
from .state import EdgeState
from .transfers import ModelExchange
from .upstream import Upstream

SEARCH_S = 5.0
"""How often agents that fell silent are looked for."""


class EdgeCore:
    """The edge aggregator's decisions; `opened` is a round to go on with after a restart."""

    def __init__(self, state: EdgeState, opened: ReopenedRound | None = None) -> None:
        self.state = state
        self.memory, self.counters, self.sessions = state.memory, state.counters, state.sessions
        self.upstream = Upstream(state)
        self.models = ModelExchange(state)
        self.rounds = Rounds(state, self.upstream, self.models, opened)
        self.evaluations = Evaluations(state)
        self.once = OnceFile(state, state.memory.once if state.once_held else "")
        self.disk = Disk(state)
        self.clones = Clones(self.sessions)
        self.beacon = Beacon(state)
        self._now = self._search_at = 0.0

    def receive(self, event: Input, now: float) -> list[Effect]:
        """Take in an event. Whatever comes from outside, nothing is raised."""
        self._now = now
        effects: list[Effect] = []
        match event:
            case Received(link=link) if link == WAN:
                effects = self._from_coordinator(event, now)
            case Received(message=Gone()):
                effects = self._gone(event.sender, now)
            case Received():
                effects = self._from_agent(event, now)
            case OtherVersion():
                effects = self.upstream.refuse(event)
            case LinkUp(link=link) if link != LAN:
                effects = self.upstream.connected(now)
            case LinkUp():
                effects = self._lan_up(now)
            case TakenOver(sender=agent):
                effects = self._taken_over(agent, now)
            case Checked(key=key):
                live = self.rounds.find(*key[:2])
                effects = live.checked(key[2], event.verdict, now) if live else []
            case Admitted(key=key):
                live = self.rounds.find(*key[:2])
                effects = live.admitted(key[2]) if live else []
            case DiskFailed(key=key):
                # Of a round that is over, the spool is gone.
                live = self.rounds.find(*key[:2])
                effects = live.disk_failed(key[2], event.detail, now) if live else []
                effects += self.disk.suspect(now)
            case Committed(refused=refused):
                effects = self.rounds.committed(event, now)
                effects += self.disk.suspect(now) if refused else []
            case DiskRefused():
                effects = self._disk_refused(event, now)
            case DiskTried():
                effects = self._disk_tried(event, now)
            case ModelLost():
                effects = [*self.rounds.model_lost(event, now), self.upstream.status(now)]
            case ContentLost():
                effects = self._content_lost(event, now)
            case ModelFinished():
                effects = self._model_finished(event, now)
            case Revoked():
                effects = self._revoked(event, now)
        return effects + self.rounds.look(now) + self.evaluations.look(now)

    def _lan_up(self, now: float) -> list[Effect]:
        self.evaluations.lan_up(now)
        return [self.beacon.lan_up(now)]

    # ------------------------------------------------------------- from agents

    def _from_agent(self, event: Received, now: float) -> list[Effect]:
        agent, message = event.sender, cast("AgentToEdge", event.message)
        if agent in self.clones.left_out:
            self.counters["cloned"] += 1
            return []
        session, joined = self.sessions.hear(agent, now)
        if session is None:
            self.counters["too_many_agents"] += 1
            return []
        effects: list[Effect] = [Emit("agent_joined", {"agent": agent})] if joined else []
        if joined and not isinstance(message, Hello):
            effects += self.evaluations.here(agent, now)
            # One that lost its place, or has not noticed a restart: its name is not known.
            unknown = not session.known and not isinstance(message, Bye)
            effects += [self.beacon.ask_hello(agent)] if unknown else []
        report = message.context if isinstance(message, UpdateOffer) else message
        if isinstance(report, ContextReport) and not self.sessions.context(session, report, now):
            self.counters["context_too_far"] += 1
            effects.append(Warn(agent, f"context: number {report.seq} is refused: {AHEAD}"))
        try:
            return effects + self._handle(event, session, message, now)
        except ProtocolError as error:
            self.counters[error.reason] += 1
            return [*effects, Warn(agent, f"{type(message).__name__}: {error}")]

    def _handle(
        self, event: Received, session: AgentSession, message: AgentToEdge, now: float
    ) -> list[Effect]:
        agent = event.sender
        match message:
            case Opinion() | Volunteer() | PeerSend():
                return self.evaluations.receive(event, now)
            case Need() if self.once.serves(message.digest):
                return self.once.need(event, message, now)
            case Need() if not self.rounds.serves(agent, message.digest) and (
                self.evaluations.current.serves(agent, message.digest)
            ):
                return self.evaluations.receive(event, now)
            case ContextReport():
                self.evaluations.relay.placed(agent, now)
            case Hello():
                return self._hello(agent, message, now)
            case TaskNeed():
                return self._task_need(agent, message)
            case RevocationsNeed():
                return revocations.hand_on(self.state, session, message, now)
            case Probe():
                padding = bytes(message.reply_bytes)
                return [Send(agent, ProbeReply(nonce=message.nonce, data=padding))]
            case Bye():
                return self._lost(agent, now) if self.sessions.leave(agent) else []
            case ProbeReply():
                pass
            case _:
                return self.rounds.receive(event, now)
        return []

    def _hello(self, agent: str, hello: Hello, now: float) -> list[Effect]:
        refused = ""
        if hello.agent != agent:
            refused = "its hello names another agent"
            self.counters["hello_as_another"] += 1
        named = hello.agent == agent and self.sessions.name(agent, hello.name)
        new = self.sessions.greet(agent, hello, refused)
        if new or named:
            self.upstream.changed(now)
        if refused:
            return [Warn(agent, f"hello: {refused}")] if new else []
        me = self.state.me
        run, task = self.memory.run, self.beacon.task
        place = self.state.config.position
        round_ = self.memory.last_round
        welcome = Welcome(
            run=run, round=round_, edge=me.edge, name=me.name[:100], task=task, place=place
        )
        return [
            Send(agent, welcome),
            *self.rounds.hello(agent, now),
            *self.evaluations.here(agent, now),
        ]

    def _taken_over(self, agent: str, now: float) -> list[Effect]:
        self.counters["taken_over"] += 1
        effects = self.clones.taken_over(agent, now)
        if effects:
            self.upstream.changed(now)
            effects += self._lost(agent, now)
        return effects

    def _lost(self, agent: str, now: float) -> list[Effect]:
        lost: list[Effect] = [Emit("agent_lost", {"agent": agent})]
        lost += self.rounds.left(agent, now) + self.evaluations.left(agent, now)
        return lost + self.once.left(agent, now)

    def _gone(self, agent: str, now: float) -> list[Effect]:
        """Ask an agent whose connection broke, by its broker's word, whether it is here.

        Nobody signs that: it is no sign of life, and anybody may write it.
        """
        if not self.sessions.doubt(agent, now):
            return []
        self._search_at = min(self._search_at, self.sessions.next_answer)
        return [Send(agent, Probe(nonce=0))]

    def _revoked(self, revoked: Revoked, now: float) -> list[Effect]:
        """Go on without those whose certificates were revoked, and tell the coordinator."""
        self.state.crl, self.state.crl_pem = revoked.number, revoked.crl
        effects: list[Effect] = [self.beacon.send(now)] if self.beacon.due else []
        for agent in sorted(revoked.ids):
            if self.sessions.leave(agent):
                self.counters["agents_revoked"] += 1
                effects += self._lost(agent, now)
        return [*effects, self.upstream.status(now)] if self.upstream.welcomed else effects

    def _task_need(self, agent: str, need: TaskNeed) -> list[Effect]:
        memory = self.memory
        if not need.digest or need.digest != memory.task:
            self.counters["task_unknown"] += 1
            return []
        live = self.rounds.live
        if live is not None and need.round == live.rnd.round:
            live.task_need(agent)
        body = TaskBody(
            run=memory.run,
            digest=need.digest,
            body=memory.body,
            recipe=memory.recipe,
            claim=memory.claim,
        )
        if memory.once:
            body = replace(body, chunk_bytes=self.state.config.chunk_bytes)
        return [Send(agent, body)]

    # -------------------------------------------------------- from coordinator

    def _from_coordinator(self, event: Received, now: float) -> list[Effect]:
        message = cast("CoordinatorToEdge", event.message)
        try:
            match message:
                case CoordinatorBeacon():
                    return self.upstream.beacon(event.sender, message, now)
                case EdgeWelcome() if event.sender not in ("", message.coordinator):
                    self.counters["welcome_as_another"] += 1
                    return []
                case EdgeWelcome():
                    return self._welcome(message, now)
                case _ if event.sender not in ("", self.upstream.coordinator):
                    self.counters["other_coordinator"] += 1
                    return []
                case Revocations():
                    return revocations.take(self.state, message)
                case RevocationsNeed():
                    return revocations.show(self.state)
                case _ if not message.run or message.run != self.memory.run:
                    self.counters["other_run"] += 1
                    return []
                case _:
                    self.upstream.heard(now)
                    return self._obey(event, message, now)
        except ProtocolError as error:
            self.counters[error.reason] += 1
            return [Warn("", f"{type(message).__name__} of the coordinator: {error}")]

    def _obey(self, event: Received, message: CoordinatorToEdge, now: float) -> list[Effect]:
        match message:
            case RoundOpen():
                return self.rounds.open(message, now)
            case RoundOrder():
                return self.rounds.order(message, now)
            case ReportReceipt():
                self.upstream.receipt(message)
                return self.upstream.witness(message.head)
            case GlobalModel() if message.digest == self.memory.model:
                return [self.upstream.status(now)]
            case GlobalModel():
                return self.models.offered(message, now)
            case Chunk():
                taker = self.once if self.once.expects(message.digest) else self.models
                return taker.chunk(message, now)
            case OpinionOpen():
                return self.evaluations.open(message, now)
            case OpinionClose():
                return self.evaluations.close(message, now)
            case OpinionsReceipt():
                self.evaluations.receipt(message)
            case Need():
                return self.models.need(event, message)
            case RunEnded():
                return self._run_ended(message, now)
        return []

    def _welcome(self, welcome: EdgeWelcome, now: float) -> list[Effect]:
        effects = self.upstream.welcome(welcome.coordinator, now)
        if effects is None:
            return []
        if (welcome.run, welcome.task) != (self.memory.run, self.memory.task):
            effects += self.rounds.drop()
            if welcome.run != self.memory.run:
                self.models.forget()
            if welcome.task != self.memory.task:
                self.sessions.forget_contexts()
            self.memory.adopt(welcome.run, welcome.task, welcome.body)
            self.rounds.forget()
            self.evaluations.adopt()
            effects += [self.state.save(), ForgetRound(), self.beacon.send(now)]
        if (welcome.recipe, welcome.claim) != (self.memory.recipe, self.memory.claim):
            self.memory.recipe, self.memory.claim = welcome.recipe, welcome.claim
            effects.append(self.state.save())
        effects += self.upstream.witness(welcome.head)
        self.sessions.welcomed()
        self.evaluations.welcomed(welcome.round)
        effects += self.once.welcomed(now) + self.rounds.welcomed(welcome)
        return [*effects, self.upstream.status(now), *self.upstream.report_again(now)]

    def _run_ended(self, ended: RunEnded, now: float) -> list[Effect]:
        effects = self.rounds.drop() + self.evaluations.end_run(now)
        self.models.forget()
        self.rounds.forget()
        self.upstream.run_ended(now)
        # It is repeated, so that it arrives; a person hears of it once.
        if ended.run == self.beacon.ended:
            return effects
        self.beacon.ended = ended.run
        saved = [self.state.save(), Mark("edge.model_saved")]
        return [*effects, *saved, Emit("run_ended", {"reason": ended.reason})]

    def _model_finished(self, model: ModelFinished, now: float) -> list[Effect]:
        if self.once.expects(model.digest):
            return self.once.finished(model, now)
        if not self.models.expects(model.digest):
            return []  # given up: another one is wanted, or the disk refused a part
        self.models.forget()
        if model.refused:
            # The coordinator offers it again when it sees that we lack it.
            self.counters["model_unusable"] += 1
            return [Warn("", f"the model from the coordinator cannot be used: {model.refused}")]
        effects = self.rounds.drop()
        self.memory.model, self.memory.model_bytes = model.digest, model.size
        effects += [self.state.save(), Mark("edge.model_saved"), self.upstream.status(now)]
        return effects + self.rounds.resume_order(now)

    def _content_lost(self, lost: ContentLost, now: float) -> list[Effect]:
        """Say once that a file is gone or damaged, and have the coordinator send it again."""
        if self.once.serves(lost.digest):
            return self.once.lost(lost, now)
        if lost.digest != self.memory.model:
            self.rounds.late.forget_base(lost.digest)
            return []
        live, run = self.rounds.live, self.memory.run
        number = live.rnd.round if live is not None else 0
        effects = self.rounds.model_lost(ModelLost(run, number, lost.digest, lost.detail), now)
        if live is None:
            effects.append(Warn("", f"the edge lost its model and fetches it again: {lost.detail}"))
        return [*effects, self.upstream.status(now)]

    def _disk_refused(self, refused: DiskRefused, now: float) -> list[Effect]:
        """Give up the model that could not be written, and see whether there is room."""
        digest, effects = refused.digest, self.disk.suspect(now)
        if digest and self.once.expects(digest):
            return effects + self.once.finished(ModelFinished(digest, 0, refused.detail), now)
        if digest and self.models.expects(digest):
            self.models.forget()
            effects.append(OpenModel(digest))
        return effects

    def _disk_tried(self, result: DiskTried, now: float) -> list[Effect]:
        """Step out, or come back: the coordinator hears of it at once."""
        new, effects = self.disk.tried(result, now)
        if not new:
            return []
        if result.refused:
            self.models.forget()
            effects += self.rounds.fail(f"the edge's disk is full: {result.refused}", now)
        return [*effects, self.upstream.status(now)]

    # ------------------------------------------------------------------- time

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        self._now = now
        effects = self.upstream.tick(now) + self.models.tick(now) + self.once.tick(now)
        effects += self.disk.tick(now)
        if now >= self.beacon.due:
            effects.append(self.beacon.send(now))
        if now >= self._search_at:
            effects += self._find_away(now)
            self._search_at = min(now + SEARCH_S, self.sessions.next_answer)
            for agent in self.sessions.lose_silent(now):
                effects += self._lost(agent, now)
        return effects + self.rounds.tick(now) + self.evaluations.tick(now)

    def _find_away(self, now: float) -> list[Effect]:
        away = self.sessions.unanswered(now)
        if away:
            self.upstream.changed(now)
        return [Emit("agent_away", {"agent": agent}) for agent in away]

    def next_due(self) -> float:
        """Return when `tick` is wanted."""
        now = self._now
        activities = min(self.rounds.next_due(now), self.evaluations.next_due(now))
        sessions = min(self.upstream.next_due(), self.models.next_due(), self.once.next_due(now))
        own = min(self.beacon.due, self._search_at, self.disk.next_due())
        return min(activities, sessions, own)

    def urgent(self) -> bool:
        """Return whether a round is live, or what it came to is not receipted."""
        return self.rounds.live is not None or self.memory.report is not None
