"""The edge as a pure state machine: agents below, the coordinator above, one round between.

docs/protocol.md tells the order of things.
"""

from collections import Counter
from copy import copy
from typing import cast

from fedagent_node.effects import (
    EVERYBODY,
    Effect,
    Emit,
    Input,
    LinkUp,
    Mark,
    ModelFinished,
    OtherVersion,
    Received,
    Send,
    Warn,
)
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import (
    PROTOCOL_VERSION,
    AgentToEdge,
    Bye,
    Chunk,
    ContextReport,
    CoordinatorBeacon,
    CoordinatorToEdge,
    Decline,
    EdgeBeacon,
    EdgeWelcome,
    GlobalModel,
    Hello,
    Need,
    Opinion,
    OpinionClose,
    OpinionOpen,
    OpinionsReceipt,
    PeerSend,
    Probe,
    ProbeReply,
    ReceiptStatus,
    ReportReceipt,
    RoundOpen,
    RoundOrder,
    RunEnded,
    TaskBody,
    TaskNeed,
    UpdateOffer,
    Volunteer,
    Welcome,
)
from fedagent_protocol.topics import mismatch
from fedagent_protocol.transfer import CreditPool, Layout

from .analytics import Analytics
from .effects import (
    COORDINATOR,
    LAN,
    WAN,
    Admitted,
    Checked,
    Commit,
    Committed,
    DiskFailed,
    ForgetRound,
    SaveRound,
    SaveState,
)
from .live import LiveRound, receipt
from .models import Incoming, Outgoing
from .reports import Reporting
from .round import EdgeRound, OpenedRound
from .sessions import AgentSessions
from .settings import EdgeSettings, Memory
from .upstream import Upstream

SETTLING_S = 10.0
SETTLING_BEACON_S = 0.5
"""Agents that start together with the edge hear of it sooner."""
BEACON_S = 2.0
"""Agents drop an edge after three silent periods."""
SEARCH_S = 5.0
"""How often agents that fell silent are looked for."""


class EdgeCore:
    """The edge aggregator's decisions.

    Args:
        opened: A round to go on with, with the time that is left.

    Attributes:
        analytics: Calls for opinions, and the relay between agents.
    """

    def __init__(
        self,
        settings: EdgeSettings,
        memory: Memory,
        opened: OpenedRound | None = None,
        counters: Counter[str] | None = None,
    ) -> None:
        self.settings = settings
        self.memory = memory
        self.counters: Counter[str] = Counter() if counters is None else counters
        self.sessions = AgentSessions(settings.epoch)
        self.upstream = Upstream(settings, memory, self.sessions, self.counters)
        self.analytics = Analytics(settings, self.sessions, self.counters, memory)
        self.live: LiveRound | None = None
        self._last: LiveRound | None = None
        self._pool = CreditPool(settings.credit_bytes)
        self._waiting_order: RoundOrder | None = None
        self._committing = False
        self._ended = ""
        self._reporting = Reporting(settings, memory, self.counters)
        self._incoming = Incoming(self.counters, settings.max_model_bytes)
        self._outgoing = Outgoing(self.counters)
        self._recipe = ""
        self._now = self._beacon_at = self._search_at = self._settled_at = 0.0
        if opened is not None:
            self._resume(opened)

    def receive(self, event: Input, now: float) -> list[Effect]:
        """Take in an event. Whatever comes from outside, nothing is raised."""
        self._now = now
        match event:
            case Received(link=link) if link == WAN:
                return self._from_coordinator(event, now)
            case Received():
                return self._from_agent(event, now)
            case OtherVersion(link=link) if link == WAN:
                return self.upstream.refuse(event)
            case OtherVersion(sender=agent, version=version):
                hello = Hello(agent=agent, protocol=version)
                return self._from_agent(Received(agent, hello, event.link, now), now)
            case LinkUp(link=link):
                return self._lan_up(now) if link == LAN else self.upstream.connected(now)
            case Checked() | Admitted() | DiskFailed():
                return self._fate(event, now)
            case Committed():
                return self._committed(event, now)
            case ModelFinished():
                return self._model_ready(event, now)
            case _:
                return []

    # ------------------------------------------------------------ connections

    def _lan_up(self, now: float) -> list[Effect]:
        self._settled_at = now + SETTLING_S
        self.analytics.lan_up(now)
        return self._beacon(now)

    def _beacon(self, now: float) -> list[Effect]:
        self._beacon_at = now + (SETTLING_BEACON_S if now < self._settled_at else BEACON_S)
        me = self.settings
        beacon = EdgeBeacon(edge=me.edge, period_ms=round(BEACON_S * 1000), epoch=me.epoch)
        return [Send(EVERYBODY, beacon)]

    # ------------------------------------------------------------- from agents

    def _from_agent(self, event: Received, now: float) -> list[Effect]:
        agent, message = event.sender, cast("AgentToEdge", event.message)
        session, joined = self.sessions.hear(agent, now)
        if session is None:
            self.counters["too_many_agents"] += 1
            return []
        effects: list[Effect] = [Emit("agent_joined", {"agent": agent})] if joined else []
        if joined and not isinstance(message, Hello):
            effects += self.analytics.here(agent, now)
        try:
            match message:
                case ContextReport():
                    self.sessions.context(session, message, now)
                    self.analytics.relay.placed(agent, now)
                case UpdateOffer():
                    if message.context is not None:
                        self.sessions.context(session, message.context, now)
                    effects += self._on_offer(agent, message, now, event.at)
                case Hello():
                    effects += self._on_hello(agent, message, now)
                case _:
                    effects += self._handle(
                        agent, message, now, event.at, link_idle=event.link_idle
                    )
        except ProtocolError as error:
            self.counters[error.reason] += 1
            effects.append(Warn(agent, f"{type(message).__name__}: {error}"))
        return effects + self._close_if_over(now) + self.analytics.look(now)

    def _handle(
        self, agent: str, message: AgentToEdge, now: float, at: float, *, link_idle: bool
    ) -> list[Effect]:
        match message:
            case Chunk() if live := self._current(message.run, message.round):
                return live.chunk(agent, message, now, at)
            case Need() if self._is_for_the_call(agent, message):
                return self.analytics.need(agent, message, now, link_idle=link_idle)
            case Need() if self.live is not None:
                return self.live.need(agent, message, now, link_idle=link_idle)
            case Opinion() | Volunteer() | PeerSend():
                return self.analytics.handle(agent, message, now)
            case Decline() if live := self._current(message.run, message.round):
                return live.decline(agent, message, now)
            case TaskNeed():
                return self._on_task_need(agent, message)
            case Probe():
                padding = bytes(message.reply_bytes)
                return [Send(agent, ProbeReply(nonce=message.nonce, data=padding))]
            case Bye():
                return self._lost(agent, now) if self.sessions.leave(agent) else []
            case ProbeReply():
                return []
            case _:
                self.counters["out_of_round"] += 1
                return []

    def _on_hello(self, agent: str, hello: Hello, now: float) -> list[Effect]:
        refused = ""
        if hello.agent != agent:
            refused = "it says hello as another agent"
            self.counters["hello_as_another"] += 1
        elif hello.protocol != PROTOCOL_VERSION:
            refused = "it " + mismatch(hello.protocol, "edge")
            self.counters["protocol_version"] += 1
        named = hello.agent == agent and self.sessions.name(agent, hello.name)
        new = self.sessions.greet(agent, hello, refused)
        if new or named:
            self.upstream.changed(now)
        if refused:
            return [Warn(agent, f"hello: {refused}")] if new else []
        name = self.settings.name[:100]
        welcome = Send(agent, Welcome(run=self.memory.run, edge=self.settings.edge, name=name))
        open_round = self.live is not None and not self.live.rnd.closed
        ordered = self.live.hello(agent, now) if self.live and open_round else []
        return [welcome, *ordered, *self.analytics.here(agent, now)]

    def _lost(self, agent: str, now: float) -> list[Effect]:
        live = self.live if self.live is not None and not self.live.rnd.closed else None
        ended = live.gone(agent, now) if live is not None else []
        left = self.analytics.left(agent, now)
        return [Emit("agent_lost", {"agent": agent}), *ended, *left]

    def _is_for_the_call(self, agent: str, need: Need) -> bool:
        """Whether an agent wants the model to evaluate it: whoever trains from it has an order."""
        live = self.live
        ordered = live is not None and agent in live.rnd.parts and need.digest == live.rnd.base
        return not ordered and self.analytics.serves(agent, need)

    def _on_task_need(self, agent: str, need: TaskNeed) -> list[Effect]:
        if not need.digest or need.digest != self.memory.task:
            self.counters["task_unknown"] += 1
            return []
        if self.live is not None:
            self.live.task_need(agent)
        memory = self.memory
        body = TaskBody(run=memory.run, digest=need.digest, body=memory.body, recipe=self._recipe)
        return [Send(agent, body)]

    def _on_offer(self, agent: str, offer: UpdateOffer, now: float, at: float) -> list[Effect]:
        if live := self._current(offer.run, offer.round):
            return live.offer(agent, offer, now, at)
        last = self._last
        if last is not None and (last.rnd.run, last.rnd.round) == (offer.run, offer.round):
            return last.too_late(agent, offer, now)
        self.counters["expired"] += 1
        why = "the round is over" if offer.run == self.memory.run else "another run"
        return [receipt(agent, offer, ReceiptStatus.EXPIRED, why)]

    def _current(self, run: str, number: int) -> LiveRound | None:
        live = self.live
        if live is None or live.rnd.closed or (live.rnd.run, live.rnd.round) != (run, number):
            return None
        return live

    # ------------------------------------------------------- what jobs came to

    def _fate(self, event: Checked | Admitted | DiskFailed, now: float) -> list[Effect]:
        run, number, agent = event.key
        live = self._current(run, number)
        if isinstance(event, DiskFailed):
            # The update is awaited again.
            self.counters["disk_failed"] += 1
            warning = Warn(agent, f"the spool failed: {event.detail}")
            return [*(live.disk_failed(agent) if live else []), warning]
        if live is None:
            return []
        if isinstance(event, Admitted):
            return live.admitted(agent) + self._close_if_over(now)
        return live.checked(agent, event.verdict, now) + self._close_if_over(now)

    def _committed(self, done: Committed, now: float) -> list[Effect]:
        live, self._committing = self.live, False
        if live is None or (live.rnd.run, live.rnd.round) != (done.run, done.round):
            return []
        if done.digest:
            self.memory.model, self.memory.model_bytes = done.digest, done.size
            effects = self._report(live, "", now, first=done.first)
        else:
            self.counters["aggregate_failed"] += 1
            effects = self._report(live, "the aggregate is not usable", now)
        waiting, self._waiting_order = self._waiting_order, None
        return effects + (self._on_order(waiting, now) if waiting is not None else [])

    def _model_ready(self, model: ModelFinished, now: float) -> list[Effect]:
        refused = model.refused
        warning = Warn("", f"the coordinator's model is not usable: {refused}")
        if not self._incoming.expects(model.digest):
            return [warning] if refused else []
        self._incoming.forget()
        if refused:
            # The coordinator offers it again when it sees that we lack it.
            self.counters["model_unusable"] += 1
            return [warning]
        effects = self._drop_round()
        self.memory.model, self.memory.model_bytes = model.digest, model.size
        effects += [self._save(), Mark("edge.model_saved"), self.upstream.status(now)]
        waiting, self._waiting_order = self._waiting_order, None
        effects += self._on_order(waiting, now) if waiting is not None else []
        return effects + self.analytics.look(now)

    # -------------------------------------------------------- from coordinator

    def _from_coordinator(self, event: Received, now: float) -> list[Effect]:
        message = cast("CoordinatorToEdge", event.message)
        try:
            match message:
                case CoordinatorBeacon():
                    effects = self.upstream.beacon(event.sender, message, now)
                case EdgeWelcome():
                    effects = self._on_welcome(message, now)
                case _ if not message.run or message.run != self.memory.run:
                    self.counters["other_run"] += 1
                    return []
                case _:
                    self.upstream.heard(now)
                    effects = self._obey(message, now, link_idle=event.link_idle)
        except ProtocolError as error:
            self.counters[error.reason] += 1
            return [Warn("", f"{type(message).__name__} of the coordinator: {error}")]
        return effects + self._close_if_over(now) + self.analytics.look(now)

    def _obey(self, message: CoordinatorToEdge, now: float, *, link_idle: bool) -> list[Effect]:
        memory = self.memory
        match message:
            case RoundOpen():
                return self._on_open(message, now)
            case RoundOrder():
                return self._on_order(message, now)
            case ReportReceipt():
                self._reporting.receipt(message)
            case GlobalModel():
                return self._on_global(message, now)
            case Chunk():
                return self._incoming.chunk(message, now)
            case OpinionOpen():
                return self.analytics.open(message, now)
            case OpinionClose():
                return self.analytics.close(message, now)
            case OpinionsReceipt():
                self.analytics.receipt(message)
            case Need() if memory.model:
                layout = Layout(memory.model_bytes, self.settings.chunk_bytes)
                return self._outgoing.need(
                    message, model=memory.model, layout=layout, link_idle=link_idle
                )
            case RunEnded():
                return self._on_run_ended(message, now)
            case _:
                self.counters["need_unknown"] += 1
        return []

    def _on_welcome(self, welcome: EdgeWelcome, now: float) -> list[Effect]:
        effects = self.upstream.welcome(welcome.coordinator, now)
        if effects is None:
            return []
        if (welcome.run, welcome.task) != (self.memory.run, self.memory.task):
            effects += self._drop_round()
            if welcome.run != self.memory.run:
                self._incoming.forget()
            self.memory.adopt(welcome.run, welcome.task, welcome.body)
            self._waiting_order = self._last = None
            self.analytics.adopt()
            effects += [self._save(), ForgetRound()]
        self._recipe = welcome.recipe
        self.sessions.welcomed()
        self.analytics.welcomed()
        return [*effects, self.upstream.status(now), *self._reporting.again(now)]

    def _on_run_ended(self, ended: RunEnded, now: float) -> list[Effect]:
        effects = self._drop_round() + self.analytics.end_run(now)
        self._incoming.forget()
        self._waiting_order = self.memory.report = None
        self.upstream.run_ended(now)
        # Said several times, so that it arrives; told once.
        if ended.run == self._ended:
            return effects
        self._ended = ended.run
        saved = [self._save(), Mark("edge.model_saved")]
        return [*effects, *saved, Emit("run_ended", {"reason": ended.reason})]

    def _on_global(self, offer: GlobalModel, now: float) -> list[Effect]:
        if offer.digest == self.memory.model:
            return [self.upstream.status(now)]
        return self._incoming.offered(offer, now)

    def _on_open(self, ask: RoundOpen, now: float) -> list[Effect]:
        older = self.live is not None and ask.round > self.live.rnd.round
        # The coordinator gave an older round up; one that is being committed reports yet.
        effects = self._drop_round() if older and not self._committing else []
        return [
            *effects,
            Send(COORDINATOR, self.sessions.columns(ask, model=self.memory.model, now=now)),
        ]

    def _on_order(self, order: RoundOrder, now: float) -> list[Effect]:
        memory = self.memory
        if memory.report is not None and order.round == memory.report.round:
            return self._reporting.again(now)
        if order.round <= memory.last_round:
            self.counters["order_twice"] += 1
            return []
        lacks_base = bool(order.base) and order.base != memory.model
        if self._committing or (lacks_base and self._incoming.expects(order.base)):
            self._waiting_order = order
            return []
        effects = self._drop_round() + self.analytics.ordered(order.round, now)
        memory.last_round, memory.report = order.round, None
        rnd = EdgeRound(memory.run, order, memory.model, now)
        refusal = self._cannot_serve(order, lacks_base=lacks_base)
        if refusal:
            self.counters["order_refused"] += 1
            return effects + self._reporting.refuse(rnd, refusal, now)
        effects.append(SaveRound(memory.run, order, memory.model, now))
        effects.append(Mark("edge.round_saved"))
        self._last = None
        self.live = self._new_live(rnd, start_at=now + self.settings.need_wait_s)
        return effects + self.live.begin(now, self.sessions.is_present)

    def _cannot_serve(self, order: RoundOrder, *, lacks_base: bool) -> str:
        if order.task != self.memory.task:
            return "the edge has another task"
        return "the edge has no such model" if lacks_base or not self.memory.model else ""

    def _new_live(self, rnd: EdgeRound, *, start_at: float) -> LiveRound:
        return LiveRound(
            rnd,
            model=Layout(self.memory.model_bytes, self.settings.chunk_bytes),
            pool=self._pool,
            counters=self.counters,
            start_at=start_at,
        )

    def _resume(self, opened: OpenedRound) -> None:
        """Go on with a round after a restart, with the time that is left."""
        self.memory.last_round = opened.order.round
        rnd = EdgeRound(self.memory.run, opened.order, opened.base, opened.began_at)
        self.live = self._new_live(rnd, start_at=opened.began_at)
        self.live.resume(opened.known, opened.have)
        self.counters["rounds_resumed"] += 1

    def _save(self) -> SaveState:
        return SaveState(copy(self.memory))

    # -------------------------------------------------------------- the close

    def _close_if_over(self, now: float) -> list[Effect]:
        live = self.live
        if live is None or live.rnd.closed or not live.rnd.is_over(now):
            return []
        effects = live.close(now)
        if live.rnd.failed:
            return effects + self._report(live, live.rnd.failed, now)
        self._committing = True
        return [*effects, Commit(live.rnd.run, live.rnd.round, live.rnd.base)]

    def _report(
        self, live: LiveRound, failed: str, now: float, *, first: bytes = b""
    ) -> list[Effect]:
        self.live, self._last = None, live
        return self._reporting.report(live.rnd, live.outcomes, failed, now, first=first)

    def _drop_round(self) -> list[Effect]:
        """End a round that nobody wants any more."""
        live, self.live = self.live, None
        if live is None:
            return []
        self._last = live
        self.counters["rounds_dropped"] += 1
        return [*([] if live.rnd.closed else live.close(live.rnd.give_up)), ForgetRound()]

    # ------------------------------------------------------------------- time

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        self._now = now
        effects = self.upstream.tick(now)
        if self.upstream.welcomed:
            effects += self._reporting.tick(now)
        effects += self._incoming.tick(self.memory.run, now)
        if now >= self._beacon_at:
            effects += self._beacon(now)
        if now >= self._search_at:
            self._search_at = now + SEARCH_S
            for agent in self.sessions.lose_silent(now):
                effects += self._lost(agent, now)
        if self.live is not None and not self.live.rnd.closed:
            effects += self.live.tick(now)
        return effects + self._close_if_over(now) + self.analytics.tick(now)

    def next_due(self) -> float:
        """Return when `tick` is wanted."""
        now = self._now
        times = [self._beacon_at, self._search_at, self.upstream.next_due()]
        times.append(self.analytics.next_due(now))
        if self.upstream.welcomed and (due := self._reporting.due) is not None:
            times.append(due)
        if (due := self._incoming.due) is not None:
            times.append(due)
        if self.live is not None and not self.live.rnd.closed:
            times.append(self.live.next_due(now))
        return min(times)
