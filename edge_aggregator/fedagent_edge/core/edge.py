"""The edge as a pure state machine: agents below, the coordinator above, one round between.

docs/protocol.md has the order of messages.
"""

from collections.abc import Callable

from msgspec import Struct

from fedagent_node.effects import (
    CLONED,
    EVERYBODY,
    ContentLost,
    Effect,
    Emit,
    Input,
    LinkUp,
    Mark,
    ModelFinished,
    Received,
    Revoked,
    Send,
    TakenOver,
    TakeRevocations,
    Warn,
)
from fedagent_protocol import messages as m
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.transfer import LONGEST_PATIENCE_S

from .effects import (
    COORDINATOR,
    LAN,
    WAN,
    Admitted,
    Committed,
    DiskFailed,
    DiskTried,
    Ignored,
    Kept,
    OpenModel,
    ReopenedRound,
)
from .evaluation import RETURN_S, Evaluations
from .exchange import Exchange
from .rounds import Rounds
from .state import EdgeState
from .upstream import Upstream

SEARCH_S = 5.0
"""How often agents that fell silent are looked for."""
CRL_AGAIN_S = 5.0
"""How often one agent is sent the list of the revoked: it may be large."""
ASK_S = 10.0
"""An agent that a round waits for is asked whether it is here after so long a silence."""
BEACON_S = 0.5
"""The next beacon follows the first, and one with news, after this; each other waits twice as long
as the one before."""
LEAST_PERIOD_S = LONGEST_PATIENCE_S / m.SILENT_PERIODS
"""No beacon promises the next sooner: one chunk on a slow link holds it up for so long."""

Handlers = dict[type[Struct], Callable[..., list[Effect]]]


class EdgeCore:
    """The edge aggregator's decisions; `opened` is a round to go on with after a restart."""

    def __init__(self, state: EdgeState, opened: ReopenedRound | None = None) -> None:
        self.state, self.timers = state, state.timers
        self.memory, self.counters, self.sessions = state.memory, state.counters, state.sessions
        self.upstream = Upstream(state)
        self.exchange = Exchange(state)
        self.rounds = Rounds(state, self.upstream, self.exchange, opened)
        self.evaluations = Evaluations(state, self.exchange)
        self.ended = ""
        """The run that is over."""
        self._said = False
        self._beacon_again_s, self._period_ms = BEACON_S, round(1000 * LEAST_PERIOD_S)
        self.timers.at("beacon", 0.0, self._beacon)
        self.timers.at("search", 0.0, self._search)
        rounds, evaluations, updates = self.rounds, self.evaluations, self.rounds.updates
        self._inputs: Handlers = {
            Received: self._received,
            LinkUp: self._link_up,
            TakenOver: self._taken_over,
            Admitted: updates.admitted,
            Kept: self._kept,
            DiskFailed: self._disk_failed,
            Committed: self._committed,
            DiskTried: rounds.disk_tried,
            ContentLost: self._content_lost,
            ModelFinished: self._model_finished,
            Revoked: self._revoked,
        }
        self._of_agents: Handlers = {
            m.Hello: self._hello,
            m.ContextReport: _nothing,
            m.Bye: self._bye,
            m.TaskNeed: self._task_need,
            m.RevocationsNeed: self._revocations_need,
            m.Probe: self._probe,
            m.ProbeReply: _nothing,
            m.Need: self._need,
            m.UpdateOffer: updates.offer,
            m.Chunk: updates.chunk,
            m.Decline: updates.decline,
            m.MaskKeys: rounds.mask,
            m.MaskShares: rounds.mask,
            m.MaskOpening: rounds.mask,
            m.Opinion: evaluations.answer,
            m.Volunteer: evaluations.answer,
            m.PeerSend: evaluations.neighbours.send,
        }
        self._of_the_run: Handlers = {
            m.RoundOpen: rounds.open,
            m.RoundOrder: rounds.order,
            m.ReportReceipt: rounds.settled,
            m.GlobalModel: self._global_model,
            m.Chunk: self.exchange.chunk,
            m.OpinionOpen: evaluations.open,
            m.OpinionClose: evaluations.close,
            m.OpinionsReceipt: evaluations.receipt,
            m.RunEnded: self._run_ended,
        }

    def receive(self, event: Input, now: float) -> list[Effect]:
        """Take in an event. Whatever comes from outside, nothing is raised."""
        handler = self._inputs.get(type(event))
        effects = handler(event, now) if handler is not None else []
        return effects + self.rounds.look(now) + self.evaluations.look(now)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        return self.timers.tick(now) + self.rounds.look(now) + self.evaluations.look(now)

    def next_due(self) -> float:
        """Return when `tick` is wanted."""
        return self.timers.next_due()

    def urgent(self) -> bool:
        """Return whether a round is live, or what it came to is not receipted."""
        return self.state.live is not None or self.memory.report is not None

    def _received(self, event: Received, now: float) -> list[Effect]:
        effects: list[Effect] = []
        try:
            if event.link == WAN:
                effects += self._from_coordinator(event, now)
            else:
                self._from_agent(event, now, effects)
        except Ignored as why:
            self.counters[str(why)] += 1
        except ProtocolError as error:
            self.counters[error.reason] += 1
            peer, whose = event.sender, ""
            if event.link == WAN:
                peer, whose = "", " of the coordinator"
            effects.append(Warn(peer, f"{type(event.message).__name__}{whose}: {error}"))
        return effects

    def _link_up(self, event: LinkUp, now: float) -> list[Effect]:
        if event.link != LAN:
            return self.upstream.connected(now)
        self.evaluations.returned_at = now + RETURN_S
        return self._beacon(now, news=True)

    # ------------------------------------------------------------- from agents

    def _from_agent(self, event: Received, now: float, effects: list[Effect]) -> None:
        agent, message = event.sender, event.message
        if isinstance(message, m.Gone):
            effects += self._gone(agent, now)
            return
        session, joined = self.sessions.hear(agent, now)
        if joined:
            effects.append(Emit("agent_joined", {"agent": agent}))
        if joined and not isinstance(message, m.Hello):
            effects += self.evaluations.here(agent, now)
        report = message.context if isinstance(message, m.UpdateOffer) else message
        if isinstance(report, m.ContextReport):
            self.sessions.context(session, report, now)
        effects += self._of_agents[type(message)](event, message, now)

    def _hello(self, event: Received, hello: m.Hello, now: float) -> list[Effect]:
        agent = event.sender
        if self.sessions.greet(self.sessions.by_id[agent], hello):
            self.upstream.changed(now)
        me, memory = self.state.me, self.memory
        welcome = m.Welcome(
            run=memory.run,
            round=memory.last_round,
            edge=me.edge,
            period_ms=self._period_ms,
            name=me.name[:100],
            task=self._task,
            place=self.state.config.position,
        )
        effects: list[Effect] = [Send(agent, welcome), *self.rounds.hello(agent, now)]
        return effects + self.evaluations.here(agent, now)

    def _bye(self, event: Received, _: m.Bye, now: float) -> list[Effect]:
        return self._lost(event.sender, now) if self.sessions.leave(event.sender) else []

    def _lost(self, agent: str, now: float) -> list[Effect]:
        lost: list[Effect] = [Emit("agent_lost", {"agent": agent})]
        self.exchange.done(agent)
        self.evaluations.left(agent, now)
        return lost + self.rounds.updates.left(agent, now)

    def _gone(self, agent: str, now: float) -> list[Effect]:
        """Ask an agent whose connection broke, by its broker's word, whether it is here.

        Nobody signs that: it is no sign of life, and anybody may write it.
        """
        if not self.sessions.doubt(agent, now):
            return []
        self.timers.sooner("search", self.sessions.next_answer, self._search)
        return [Send(agent, m.Probe(nonce=0))]

    def _taken_over(self, event: TakenOver, now: float) -> list[Effect]:
        self.counters["taken_over"] += 1
        if not self.sessions.is_cloned(event.sender, now, sure=event.sure):
            return []
        self.upstream.changed(now)
        return [Warn(event.sender, CLONED, once=True), *self._lost(event.sender, now)]

    def _need(self, event: Received, need: m.Need, now: float) -> list[Effect]:
        """Send a model to those who are to train from it or to evaluate it, and to no other."""
        agent, digest = event.sender, need.digest
        if digest == self.memory.once:
            return self.exchange.need_once(event, need, now)
        layout = self.rounds.wanted(agent, need) or self.evaluations.wanted(agent, digest)
        if layout is None:
            raise Ignored("need_unknown")
        return self.exchange.need(event, need, layout, now)

    def _task_need(self, event: Received, need: m.TaskNeed, now: float) -> list[Effect]:  # noqa: ARG002 - as all handlers
        memory = self.memory
        if need.digest != memory.task:
            raise Ignored("task_unknown")
        body = m.TaskBody(
            run=memory.run,
            digest=need.digest,
            body=memory.body,
            recipe=memory.recipe,
            claim=memory.claim,
            chunk_bytes=self.state.config.chunk_bytes,
        )
        return [Send(event.sender, body)]

    def _probe(self, event: Received, probe: m.Probe, now: float) -> list[Effect]:  # noqa: ARG002 - as all handlers
        return [Send(event.sender, m.ProbeReply(nonce=probe.nonce, data=bytes(probe.reply_bytes)))]

    # ----------------------------------------------------------- the revoked

    def _revocations_need(
        self, event: Received, need: m.RevocationsNeed, now: float
    ) -> list[Effect]:
        """Pass the authority's list on: agents learn of revoked edges by any other edge."""
        state, session = self.state, self.sessions.by_id[event.sender]
        late = now < session.crl_at + CRL_AGAIN_S
        if late or not state.crl_pem or need.number >= state.crl:
            raise Ignored("revocations_unneeded")
        session.crl_at = now
        return [Send(event.sender, m.Revocations(number=state.crl, crl=state.crl_pem))]

    def _revoked(self, revoked: Revoked, now: float) -> list[Effect]:
        """Go on without those whose certificates were revoked, and tell the coordinator."""
        self.state.crl, self.state.crl_pem = revoked.number, revoked.crl
        effects = self._beacon(now, news=True) if self._said else []
        for agent in sorted(revoked.ids):
            if self.sessions.leave(agent):
                self.counters["agents_revoked"] += 1
                effects += self._lost(agent, now)
        return [*effects, self.upstream.status(now)] if self.upstream.welcomed else effects

    # -------------------------------------------------------- from coordinator

    def _from_coordinator(self, event: Received, now: float) -> list[Effect]:
        sender, message = event.sender, event.message
        if isinstance(message, m.CoordinatorBeacon):
            return self.upstream.beacon(sender, message, now)
        if isinstance(message, m.EdgeWelcome):
            return self._welcome(sender, message, now)
        if sender not in ("", self.upstream.coordinator):
            raise Ignored("other_coordinator")
        state = self.state
        if isinstance(message, m.Revocations):
            return [TakeRevocations(message.crl)] if message.number > state.crl else []
        if isinstance(message, m.RevocationsNeed):
            # It has lost who was revoked.
            shown = m.Revocations(number=state.crl, crl=state.crl_pem)
            return [Send(COORDINATOR, shown)] if state.crl_pem else []
        if not message.run or message.run != self.memory.run:
            raise Ignored("other_run")
        self.upstream.heard_at = now
        if isinstance(message, m.Need):
            return self.exchange.need_up(message, link_idle=event.link_idle)
        return self._of_the_run[type(message)](message, now)

    def _global_model(self, model: m.GlobalModel, now: float) -> list[Effect]:
        if model.digest == self.memory.model:
            return [self.upstream.status(now)]
        return self.exchange.get(model, now)

    def _welcome(self, sender: str, welcome: m.EdgeWelcome, now: float) -> list[Effect]:
        if sender not in ("", welcome.coordinator):
            raise Ignored("welcome_as_another")
        memory = self.memory
        effects = self.upstream.welcome(welcome.coordinator, now)
        if (welcome.run, welcome.task) != (memory.run, memory.task):
            effects += self.rounds.drop(now)
            self.rounds.updates.kept.clear()
            if welcome.run != memory.run:
                self.exchange.forget_run()
            if welcome.task != memory.task:
                self.sessions.forget_contexts()
            memory.adopt(welcome.run, welcome.task, welcome.body)
            self.evaluations.adopt()
            forget = self.rounds.updates.forget_round()
            effects += [self.state.save(), forget, *self._beacon(now, news=True)]
        if (welcome.recipe, welcome.claim) != (memory.recipe, memory.claim):
            memory.recipe, memory.claim = welcome.recipe, welcome.claim
            effects.append(self.state.save())
        self.upstream.witness(welcome.head)
        self.sessions.welcomed()
        effects += self.exchange.get_once(now)
        return [*effects, self.upstream.status(now), *self.upstream.report_again(now)]

    def _run_ended(self, ended: m.RunEnded, now: float) -> list[Effect]:
        # Its receipt says whether all of it is paid.
        effects = [*self.upstream.report_again(now), *self.rounds.drop(now)]
        self.evaluations.end_run(now)
        self.exchange.forget_model()
        self.upstream.run_ended(now)
        effects += self.rounds.receipts.keep()  # no order follows that would bring the receipts
        # It is repeated, so that it arrives; a person hears of it once.
        if ended.run == self.ended:
            return effects
        self.ended = ended.run
        saved = [self.state.save(), Mark("edge.model_saved")]
        return [*effects, *saved, Emit("run_ended", {"reason": ended.reason})]

    # ----------------------------------------------------------- the edge's disk

    def _model_finished(self, model: ModelFinished, now: float) -> list[Effect]:
        if not self.exchange.forget(model.digest):
            return []  # given up: another one is wanted, or the disk refused a part
        if model.digest == self.memory.once:
            return self.exchange.once_finished(model, now)
        if model.refused:
            # The coordinator offers it again when it sees that we lack it.
            self.counters["model_unusable"] += 1
            return [Warn("", f"the model from the coordinator cannot be used: {model.refused}")]
        waiting = self.rounds.waiting
        effects = self.rounds.drop(now)
        self.memory.model, self.memory.model_bytes = model.digest, model.size
        effects += [self.state.save(), Mark("edge.model_saved"), self.upstream.status(now)]
        return effects + (self.rounds.order(waiting, now) if waiting is not None else [])

    def _content_lost(self, lost: ContentLost, now: float) -> list[Effect]:
        """Say once that a file is gone or damaged, and have the coordinator send it again."""
        memory = self.memory
        if lost.digest == memory.once:
            return self.exchange.once_lost(lost, now)
        self.exchange.stop(lost.digest)
        if lost.digest != memory.model:
            self.rounds.updates.forget_base(lost.digest)
            return []
        memory.model, memory.model_bytes = "", 0
        self.counters["model_lost"] += 1
        said = self.rounds.model_lost(lost.digest, lost.detail, now)
        return [*said, self.upstream.status(now)]

    def _kept(self, kept: Kept, now: float) -> list[Effect]:
        if kept.refused:
            self.counters["disk_failed"] += 1
            self.rounds.look_for_room(now)
        return self.rounds.receipts.were_kept(kept, now)

    def _committed(self, done: Committed, now: float) -> list[Effect]:
        effects = self.rounds.committed(done, now)
        if done.refused:
            self.rounds.look_for_room(now)
        return effects

    def _disk_failed(self, failed: DiskFailed, now: float) -> list[Effect]:
        """Give up what could not be written, and see whether there is room."""
        digest = failed.digest
        self.counters["disk_failed"] += 1
        self.rounds.look_for_room(now)
        if failed.agent:
            return self.rounds.updates.disk_failed(failed, now)
        if not digest:
            self.rounds.fail(f"the edge's disk is full: {failed.detail}")
            return self.rounds.receipts.not_saved()
        if not self.exchange.forget(digest):
            return []
        if digest == self.memory.once:
            return self.exchange.once_finished(ModelFinished(digest, 0, failed.detail), now)
        return [OpenModel(digest)]

    # ------------------------------------------------------------------- time

    @property
    def _task(self) -> str:
        return "" if self.ended == self.memory.run else self.memory.task

    def _beacon(self, now: float, *, news: bool = False) -> list[Effect]:
        """Tell every agent that the edge is here, and what to prepare for."""
        again_s = BEACON_S if news else self._beacon_again_s
        self._said, self._beacon_again_s = True, min(2 * again_s, m.LONGEST_PERIOD_S)
        self.timers.at("beacon", now + again_s, self._beacon)
        self._period_ms = round(1000 * max(again_s, LEAST_PERIOD_S))
        state = self.state
        beacon = m.EdgeBeacon(
            run=state.memory.run,
            edge=state.me.edge,
            period_ms=self._period_ms,
            epoch=state.me.epoch,
            task=self._task,
            crl=state.crl if state.crl_pem else 0,
        )
        return [Send(EVERYBODY, beacon)]

    def _search(self, now: float) -> list[Effect]:
        """Look for agents that fell silent."""
        away = self.sessions.unanswered(now)
        if away:
            self.upstream.changed(now)
        effects: list[Effect] = [Emit("agent_away", {"agent": agent}) for agent in away]
        self.timers.at("search", min(now + SEARCH_S, self.sessions.next_answer), self._search)
        awaited = self.rounds.awaited
        for agent in awaited:
            session = self.sessions.by_id.get(agent)
            if session is not None and now - session.heard_at >= ASK_S:
                effects += self._gone(agent, now)
        for agent in self.sessions.lose_silent(now, awaited):
            effects += self._lost(agent, now)
        return effects


def _nothing(*_: object) -> list[Effect]:
    return []
