"""The edge as a pure state machine: agents below, the coordinator above, one round between.

docs/protocol.md tells the order of things. Whatever an agent sends can only hurt
itself: a message that does not fit is counted by reason and changes nothing else.
"""

from collections import Counter
from dataclasses import dataclass

import msgspec

from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import (
    CHUNK_BYTES,
    AgentToEdge,
    Bye,
    Chunk,
    ContextReport,
    CoordinatorBeacon,
    CoordinatorToEdge,
    Decline,
    EdgeBeacon,
    EdgeHello,
    EdgeStatus,
    EdgeWelcome,
    GlobalModel,
    Hello,
    Need,
    Probe,
    ProbeReply,
    Receipt,
    ReceiptStatus,
    ReportReceipt,
    RoundClosed,
    RoundOpen,
    RoundOrder,
    RoundReport,
    RunEnded,
    TaskBody,
    TaskNeed,
    TrainOrder,
    UpdateOffer,
    Welcome,
)
from fedagent_protocol.transfer import CreditPool, Layout, Receiver, Sender

from .admission import Verdict, refuse_offer
from .distribution import Distribution
from .effects import (
    Admit,
    AdoptRun,
    Check,
    Commit,
    DropSpool,
    Effect,
    Event,
    FinishModel,
    ForgetReport,
    OpenModel,
    OpenSpool,
    SaveReport,
    SaveRound,
    SendChunk,
    ToAgent,
    ToCoordinator,
    WriteModel,
)
from .round import EdgeRound, Part, Restored, Stage
from .sessions import Sessions
from .uploads import Uploads

BEACON_S = 2.0
"""Agents drop an edge after three silent periods."""
COORDINATOR_SILENT_S = 15.0
STATUS_S = 5.0
HELLO_AGAIN_S = 1.0
REPORT_AGAIN_S = 1.0
"""How long a message that must be acknowledged waits before it goes again."""


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """What the core is told of the configuration."""

    edge: str
    epoch: str
    name: str = ""
    software: str = ""
    broker: str = ""
    chunk_bytes: int = CHUNK_BYTES
    credit_bytes: int = 8 << 20
    need_wait_s: float = 0.05
    max_model_bytes: int = 512 << 20


@dataclass(slots=True)
class Memory:
    """What survives a restart: the run, its task, the model, and an unreceipted report."""

    run: str = ""
    task: str = ""
    body: bytes = b""
    model: str = ""
    model_bytes: int = 0
    last_round: int = 0
    report: RoundReport | None = None


@dataclass(slots=True)
class _Pull:
    """A model of the coordinator on its way in."""

    digest: str
    receiver: Receiver
    finishing: bool = False


class EdgeCore:
    """The edge aggregator's decisions.

    Args:
        settings: What the configuration says.
        memory: What survived the last process.
    """

    def __init__(self, settings: EdgeSettings, memory: Memory) -> None:
        self.settings = settings
        self.memory = memory
        self.counters: Counter[str] = Counter()
        self.sessions = Sessions(settings.epoch)
        self.round: EdgeRound | None = None
        self.coordinator = ""
        self._coordinator_heard = -1e9
        self._welcomed = False
        self._pool = CreditPool(settings.credit_bytes)
        self._uploads = Uploads(self._pool)
        self._distribution: Distribution | None = None
        self._waiting_order: RoundOrder | None = None
        self._committing = False
        self._pull: _Pull | None = None
        self._serving: dict[str, Sender] = {}
        self._beacon_at = self._hello_at = self._status_at = self._report_at = 0.0

    # ------------------------------------------------------------ connections

    def lan_up(self, now: float) -> list[Effect]:
        """The broker of the agents is there: tell everybody."""
        self._beacon_at = now + BEACON_S
        beacon = EdgeBeacon(edge=self.settings.edge, period_ms=round(BEACON_S * 1000))
        return [ToAgent("", beacon)]

    def wan_up(self, now: float) -> list[Effect]:
        """The coordinator's broker is there: say hello."""
        self._welcomed = False
        self._hello_at = now
        return self.tick(now)

    # ------------------------------------------------------------- from agents

    def from_agent(
        self, agent: str, message: AgentToEdge, now: float, *, at: float, link_idle: bool = True
    ) -> list[Effect]:
        """Take in what an agent sent; `at` is the network thread's stamp."""
        session, joined = self.sessions.hear(agent, now)
        if session is None:
            self.counters["too_many_agents"] += 1
            return []
        effects: list[Effect] = [Event("agent_joined", {"agent": agent})] if joined else []
        try:
            match message:
                case Hello():
                    effects += self._on_hello(agent, message, now)
                case ContextReport():
                    self.sessions.context(session, message, now)
                case Decline():
                    effects += self._on_decline(agent, message, now)
                case TaskNeed():
                    effects += self._on_task_need(agent, message)
                case Need():
                    effects += self._on_need(agent, message, now, link_idle=link_idle)
                case UpdateOffer():
                    if message.context is not None:
                        self.sessions.context(session, message.context, now)
                    effects += self._on_offer(agent, message, now, at)
                case Chunk():
                    effects += self._on_chunk(agent, message, now, at)
                case Probe():
                    padding = bytes(message.reply_bytes)
                    effects.append(ToAgent(agent, ProbeReply(nonce=message.nonce, data=padding)))
                case ProbeReply():
                    pass
                case Bye():
                    effects += self._on_bye(agent, now)
        except ProtocolError as error:
            self.counters[error.reason] += 1
        return effects

    def _on_hello(self, agent: str, hello: Hello, now: float) -> list[Effect]:
        if hello.agent != agent:
            self.counters["hello_as_another"] += 1
            return []
        welcome = ToAgent(agent, Welcome(run=self.memory.run, edge=self.settings.edge))
        return [welcome, *self._order_again(agent, now)]

    def _order_again(self, agent: str, now: float) -> list[Effect]:
        """Repeat the order to an agent that came (back) in mid round."""
        rnd = self.round
        part = rnd.parts.get(agent) if rnd is not None and not rnd.closed else None
        if rnd is None or part is None or part.stage is not Stage.WORKING:
            return []
        layout = Layout(self.memory.model_bytes, self.settings.chunk_bytes)
        self._uploads.end(part)
        return [ToAgent(agent, self._train_order(rnd, part, layout, now))]

    def _on_bye(self, agent: str, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.sessions.leave(agent):
            effects.append(Event("agent_lost", {"agent": agent}))
        return effects + self._gone(agent, now)

    def _gone(self, agent: str, now: float) -> list[Effect]:
        rnd = self.round
        if rnd is None or not rnd.gone(agent, now):
            return []
        self._uploads.end(rnd.parts[agent])
        return self._answered(agent, now) + self._close_if_over(now)

    def _on_decline(self, agent: str, decline: Decline, now: float) -> list[Effect]:
        rnd = self._current(decline.run, decline.round)
        if rnd is None or not rnd.decline(agent, decline.why, decline.detail, now):
            self.counters["decline_unasked"] += 1
            return []
        self.counters[f"declined_{decline.why}"] += 1
        self._uploads.end(rnd.parts[agent])
        return self._answered(agent, now) + self._close_if_over(now)

    def _on_task_need(self, agent: str, need: TaskNeed) -> list[Effect]:
        if need.digest != self.memory.task:
            self.counters["task_unknown"] += 1
            return []
        body = TaskBody(run=self.memory.run, digest=need.digest, body=self.memory.body)
        return [ToAgent(agent, body)]

    def _on_need(self, agent: str, need: Need, now: float, *, link_idle: bool) -> list[Effect]:
        rnd = self.round
        sending = self._distribution
        ordered = rnd is not None and agent in rnd.parts
        if sending is None or not ordered or need.digest != sending.digest:
            # A model goes only to those who were ordered to train from it.
            self.counters["need_unknown"] += 1
            return []
        return sending.need(agent, need.ranges, now, link_idle=link_idle)

    def _on_offer(self, agent: str, offer: UpdateOffer, now: float, at: float) -> list[Effect]:
        rnd = self._current(offer.run, offer.round)
        part = rnd.parts.get(agent) if rnd is not None else None
        if rnd is None or part is None:
            self.counters["expired" if rnd is None else "not_ordered"] += 1
            return [self._receipt(agent, offer, ReceiptStatus.EXPIRED, "the round is over")]
        if part.receipt is not None and part.stage is Stage.ENDED:
            self.counters["offer_twice"] += 1
            return [self._receipt(agent, offer, part.receipt, part.reason)]
        if part.stage is Stage.ENDED:
            return [self._receipt(agent, offer, ReceiptStatus.EXPIRED, part.reason)]
        if part.offer is not None and part.offer.digest == offer.digest:
            return self._again(rnd, part, offer, now, at)
        if part.offer is not None:
            self.counters["second_update"] += 1
            return [self._receipt(agent, offer, ReceiptStatus.REJECTED, "second_update")]
        reason = refuse_offer(offer, rnd.order, rnd.base, self.memory.model_bytes)
        if reason:
            return self._reject(rnd, agent, offer, reason, now)
        # What is kept is the facts: the bytes go to the spool.
        facts = msgspec.structs.replace(offer, first=b"", context=None)
        self._uploads.begin(part, facts, set())
        effects: list[Effect] = [OpenSpool((rnd.run, rnd.round, agent), facts)]
        effects += self._answered(agent, now)
        if offer.first:
            effects += self._take(rnd, part, 0, offer.first, now, at)
        return effects + self._uploads.grant(rnd, now)

    def _again(
        self, rnd: EdgeRound, part: Part, offer: UpdateOffer, now: float, at: float
    ) -> list[Effect]:
        """The same update is offered again: after a reconnect, or by a duplicate."""
        if part.stage is not Stage.SENDING or part.receiver is None:
            return []
        effects: list[Effect] = []
        if offer.first and 0 not in part.receiver.have:
            effects += self._take(rnd, part, 0, offer.first, now, at)
        if part.stage is Stage.SENDING and part.receiver.outstanding:
            # Its credit may have been lost with the connection.
            self._uploads.renew(part)
        return effects + self._uploads.grant(rnd, now)

    def _on_chunk(self, agent: str, chunk: Chunk, now: float, at: float) -> list[Effect]:
        rnd = self._current(chunk.run, chunk.round)
        part = rnd.parts.get(agent) if rnd is not None else None
        if rnd is None or part is None or part.offer is None or part.offer.digest != chunk.digest:
            self.counters["chunk_unasked"] += 1
            return []
        if part.stage is not Stage.SENDING:
            self.counters["chunk_twice"] += 1
            return []
        effects = self._take(rnd, part, chunk.index, chunk.data, now, at)
        return effects + self._uploads.grant(rnd, now)

    def _take(
        self, rnd: EdgeRound, part: Part, index: int, data: bytes, now: float, at: float
    ) -> list[Effect]:
        effects = self._uploads.accept(rnd, part, index, data, now)
        assert part.receiver is not None
        assert part.offer is not None
        if part.receiver.complete:
            agent = part.assignment.agent
            rnd.complete(agent, at)
            key = (rnd.run, rnd.round, agent)
            effects.append(Check(key, part.offer, rnd.order.norm_limit))
        return effects

    def checked(self, key: tuple[str, int, str], verdict: Verdict, now: float) -> list[Effect]:
        """Take in the verdict of a `Check`."""
        run, number, agent = key
        rnd = self._current(run, number)
        if rnd is None or rnd.parts[agent].stage is not Stage.CHECKING:
            return []
        part = rnd.parts[agent]
        assert part.offer is not None
        if not verdict.valid:
            return self._reject(rnd, agent, part.offer, verdict.reason, now)
        weight = rnd.checked(agent, verdict, now)
        tau = rnd.tau_ms(part, now)
        return [Admit(key, part.offer, tau, weight, verdict.norm, part.in_time)]

    def admitted(self, key: tuple[str, int, str], now: float) -> list[Effect]:
        """Take in that an `Admit` is durable: now the receipt may go out."""
        run, number, agent = key
        rnd = self._current(run, number)
        if rnd is None:
            return []
        part = rnd.parts[agent]
        assert part.offer is not None
        assert part.receipt is not None
        part.stage = Stage.ENDED
        return [
            self._receipt(agent, part.offer, part.receipt, ""),
            *self._close_if_over(now),
        ]

    def _reject(
        self, rnd: EdgeRound, agent: str, offer: UpdateOffer, reason: str, now: float
    ) -> list[Effect]:
        self.counters[f"rejected_{reason}"] += 1
        self._uploads.end(rnd.parts[agent])
        rnd.reject(agent, reason, now)
        return [
            DropSpool((rnd.run, rnd.round, agent)),
            self._receipt(agent, offer, ReceiptStatus.REJECTED, reason),
            *self._answered(agent, now),
            *self._close_if_over(now),
        ]

    def _receipt(
        self, agent: str, offer: UpdateOffer, status: ReceiptStatus, reason: str
    ) -> ToAgent:
        receipt = Receipt(
            run=offer.run, round=offer.round, digest=offer.digest, status=status, reason=reason
        )
        return ToAgent(agent, receipt)

    def _answered(self, agent: str, now: float) -> list[Effect]:
        return self._distribution.answered(agent, now) if self._distribution else []

    def _current(self, run: str, number: int) -> EdgeRound | None:
        rnd = self.round
        if rnd is None or rnd.closed or (rnd.run, rnd.round) != (run, number):
            return None
        return rnd

    def resume(
        self, order: RoundOrder, base: str, began_at: float, updates: list[Restored]
    ) -> None:
        """Go on with a round after a restart, with the time that is left.

        Agents that had no receipt offer again, or train: they are ordered again
        when they say hello.
        """
        rnd = self.round = EdgeRound(self.memory.run, order, base, began_at)
        for update in updates:
            rnd.restore(update)
        self._uploads = Uploads(self._pool)
        layout = Layout(self.memory.model_bytes, self.settings.chunk_bytes)
        self._distribution = Distribution(base, layout, began_at, set())

    @property
    def pulling(self) -> Layout | None:
        """How the model that is being received is cut."""
        return self._pull.receiver.layout if self._pull is not None else None

    # -------------------------------------------------------- from coordinator

    def from_coordinator(
        self, coordinator: str, message: CoordinatorToEdge, now: float, *, link_idle: bool = True
    ) -> list[Effect]:
        """Take in what the coordinator sent; `coordinator` is empty but for beacons."""
        self._coordinator_heard = now
        try:
            match message:
                case CoordinatorBeacon():
                    return self._on_beacon(coordinator, now)
                case EdgeWelcome():
                    return self._on_welcome(message, now)
                case RunEnded():
                    return self._on_run_ended(message)
                case _ if message.run != self.memory.run or not message.run:
                    self.counters["other_run"] += 1
                    return []
                case GlobalModel():
                    return self._on_global(message, now)
                case RoundOpen():
                    return self._on_open(message, now)
                case RoundOrder():
                    return self._on_order(message, now)
                case ReportReceipt():
                    return self._on_report_receipt(message)
                case Need():
                    return self._on_model_need(message, link_idle=link_idle)
                case Chunk():
                    return self._on_model_chunk(message, now)
        except ProtocolError as error:
            self.counters[error.reason] += 1
            return []

    def _on_beacon(self, coordinator: str, now: float) -> list[Effect]:
        if self._welcomed and coordinator == self.coordinator:
            return []
        self._welcomed = False
        self._hello_at = now
        return self._hello(now)

    def _on_welcome(self, welcome: EdgeWelcome, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if not self._welcomed or welcome.coordinator != self.coordinator:
            effects.append(Event("coordinator_joined", {"coordinator": welcome.coordinator}))
        self._welcomed, self.coordinator = True, welcome.coordinator
        if welcome.run != self.memory.run or welcome.task != self.memory.task:
            effects += self._drop_round()
            self.memory = Memory(run=welcome.run, task=welcome.task, body=welcome.body)
            self._pull, self._waiting_order = None, None
            effects.append(AdoptRun(welcome.run, welcome.task, welcome.body))
        effects.append(self._status(now))
        if self.memory.report is not None:
            effects.append(ToCoordinator(self.memory.report))
        return effects

    def _on_run_ended(self, ended: RunEnded) -> list[Effect]:
        if ended.run != self.memory.run:
            return []
        effects = self._drop_round()
        effects.append(Event("run_ended", {"why": ended.why}))
        if self.memory.report is not None:
            effects.append(ForgetReport(self.memory.run, self.memory.report.round))
            self.memory.report = None
        return effects

    def _on_global(self, offer: GlobalModel, now: float) -> list[Effect]:
        if offer.digest == self.memory.model:
            return [self._status(now)]
        if self._pull is not None and self._pull.digest == offer.digest:
            return self._ask_model(now)
        layout = Layout(offer.size, offer.chunk_bytes)
        if offer.size > self.settings.max_model_bytes:
            self.counters["oversize"] += 1
            return []
        self._pull = _Pull(offer.digest, Receiver(layout, window=8))
        effects: list[Effect] = [OpenModel(offer.digest, offer.size, offer.chunk_bytes)]
        if offer.first:
            chunk = Chunk(run=offer.run, digest=offer.digest, index=0, data=offer.first)
            return effects + self._on_model_chunk(chunk, now)
        return effects + self._ask_model(now)

    def _on_model_chunk(self, chunk: Chunk, now: float) -> list[Effect]:
        pull = self._pull
        if pull is None or chunk.digest != pull.digest or pull.finishing:
            self.counters["chunk_unasked"] += 1
            return []
        if not pull.receiver.accept(chunk.index, len(chunk.data), now):
            return []
        effects: list[Effect] = [WriteModel(chunk.digest, chunk.index, chunk.data)]
        if pull.receiver.complete:
            pull.finishing = True
            return [*effects, FinishModel(chunk.digest)]
        return effects + self._ask_model(now)

    def _ask_model(self, now: float) -> list[Effect]:
        if self._pull is None or self._pull.finishing:
            return []
        ranges = self._pull.receiver.ask(now)
        if not ranges:
            return []
        need = Need(run=self.memory.run, digest=self._pull.digest, ranges=ranges)
        return [ToCoordinator(need)]

    def model_ready(self, digest: str, size: int, now: float) -> list[Effect]:
        """Take in a verified model of the coordinator; `size` 0 says it was damaged."""
        if self._pull is None or self._pull.digest != digest:
            return []
        layout, self._pull = self._pull.receiver.layout, None
        if not size:
            self.counters["digest_mismatch"] += 1
            self._pull = _Pull(digest, Receiver(layout, window=8))
            return [OpenModel(digest, layout.size, layout.chunk_bytes), *self._ask_model(now)]
        self.memory.model, self.memory.model_bytes = digest, size
        effects: list[Effect] = [self._status(now)]
        waiting, self._waiting_order = self._waiting_order, None
        if waiting is not None:
            effects += self._on_order(waiting, now)
        return effects

    def _on_open(self, ask: RoundOpen, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.round is not None and not self._committing and ask.round > self.round.round:
            # The coordinator gave the round up.
            effects += self._drop_round()
        columns = self.sessions.columns(ask, model=self.memory.model, now=now)
        return [*effects, ToCoordinator(columns)]

    def _on_order(self, order: RoundOrder, now: float) -> list[Effect]:
        if self.memory.report is not None and order.round == self.memory.report.round:
            return [ToCoordinator(self.memory.report)]
        if order.round <= self.memory.last_round:
            self.counters["order_twice"] += 1
            return []
        if order.base and order.base != self.memory.model:
            self._waiting_order = order
            return self._ask_model(now)
        if not self.memory.model or order.task != self.memory.task:
            self.counters["order_without_model"] += 1
            return []
        effects = self._drop_round()
        if self.memory.report is not None:
            effects.append(ForgetReport(self.memory.run, self.memory.report.round))
            self.memory.report = None
        self.memory.last_round = order.round
        effects.append(SaveRound(self.memory.run, order, self.memory.model, now))
        return effects + self._begin(order, now)

    def _begin(self, order: RoundOrder, now: float) -> list[Effect]:
        """Order the agents; tau starts here."""
        base, size = self.memory.model, self.memory.model_bytes
        chunk_bytes = self.settings.chunk_bytes
        rnd = self.round = EdgeRound(self.memory.run, order, base, now)
        self._uploads = Uploads(self._pool)
        layout = Layout(size, chunk_bytes)
        start = now + self.settings.need_wait_s
        self._distribution = Distribution(base, layout, start, set(rnd.parts))
        effects: list[Effect] = []
        for agent, part in rnd.parts.items():
            if not self.sessions.is_present(agent):
                rnd.gone(agent, now)
                self._distribution.waiting.discard(agent)
                continue
            effects.append(ToAgent(agent, self._train_order(rnd, part, layout, now)))
        return effects + self._close_if_over(now)

    def _train_order(self, rnd: EdgeRound, part: Part, layout: Layout, now: float) -> TrainOrder:
        return TrainOrder(
            run=rnd.run,
            round=rnd.round,
            task=rnd.order.task,
            model=rnd.base,
            size=layout.size,
            chunk_bytes=layout.chunk_bytes,
            deadline_ms=max(0, round((rnd.deadline - now) * 1000)),
            give_up_ms=max(0, round((rnd.give_up - now) * 1000)),
            iterations=part.assignment.iterations,
            credit=self._uploads.first_credit(part, layout.chunk_bytes),
            price=part.assignment.price,
            context_seq=part.assignment.context_seq,
        )

    def _on_report_receipt(self, receipt: ReportReceipt) -> list[Effect]:
        report = self.memory.report
        if report is None or report.round != receipt.round:
            return []
        if receipt.expired:
            self.counters["report_expired"] += 1
        self.memory.report = None
        return [ForgetReport(self.memory.run, receipt.round)]

    def _on_model_need(self, need: Need, *, link_idle: bool) -> list[Effect]:
        if need.digest != self.memory.model:
            self.counters["need_unknown"] += 1
            return []
        sender = self._serving.get(need.digest)
        if sender is None:
            layout = Layout(self.memory.model_bytes, self.settings.chunk_bytes)
            self._serving = {need.digest: (sender := Sender(layout))}
        sender.authorise(need.ranges, link_idle=link_idle)
        effects: list[Effect] = []
        while (index := sender.next()) is not None:
            effects.append(SendChunk(need.digest, index))
        return effects

    # -------------------------------------------------------------- the close

    def _close_if_over(self, now: float) -> list[Effect]:
        rnd = self.round
        if rnd is None or rnd.closed or not rnd.is_over(now):
            return []
        rnd.closed = True
        self._distribution = None
        effects: list[Effect] = []
        for agent, part in rnd.parts.items():
            if part.stage in (Stage.WORKING, Stage.SENDING, Stage.CHECKING):
                self._uploads.end(part)
                effects.append(ToAgent(agent, RoundClosed(run=rnd.run, round=rnd.round)))
        if rnd.failed:
            return effects + self._report(rnd, rnd.failed, now)
        self._committing = True
        effects.append(Commit(rnd.run, rnd.round, rnd.base, rnd.order.weighting))
        return effects

    def committed(
        self, run: str, number: int, digest: str, size: int, now: float, *, first: bytes = b""
    ) -> list[Effect]:
        """Take in the new edge model; an empty digest says that the sum was not usable."""
        rnd = self.round
        self._committing = False
        if rnd is None or (rnd.run, rnd.round) != (run, number):
            return []
        if not digest:
            self.counters["aggregate_failed"] += 1
            return self._report(rnd, "the aggregate is not finite", now)
        self.memory.model, self.memory.model_bytes = digest, size
        return self._report(rnd, "", now, first=first if rnd.order.want_model else b"")

    def _report(
        self, rnd: EdgeRound, failed: str, now: float, *, first: bytes = b""
    ) -> list[Effect]:
        parts = rnd.parts.values()
        report = RoundReport(
            run=rnd.run,
            round=rnd.round,
            epoch=self.settings.epoch,
            outcomes=rnd.outcomes(now),
            failed=failed,
            model=self.memory.model,
            size=self.memory.model_bytes,
            chunk_bytes=self.settings.chunk_bytes,
            used=0 if failed else rnd.used,
            weight=0.0 if failed else sum(part.weight for part in parts),
            first=first,
            timing_ms={"collect": round((now - rnd.began_at) * 1000, 3)},
        )
        self.memory.report, self.round = report, None
        self._report_at = now + REPORT_AGAIN_S
        in_time = sum(part.in_time for part in parts)
        closed: dict[str, object] = {
            "round": rnd.round,
            "ordered": len(rnd.parts),
            "in_time": in_time,
            "used": report.used,
            "failed": failed,
            "seconds": round(now - rnd.began_at, 4),
        }
        return [SaveReport(report), ToCoordinator(report), Event("round_closed", closed)]

    def _drop_round(self) -> list[Effect]:
        """End a round that nobody wants any more."""
        rnd, self.round = self.round, None
        self._distribution = None
        if rnd is None:
            return []
        effects: list[Effect] = []
        for agent, part in rnd.parts.items():
            self._uploads.end(part)
            if part.stage is not Stage.ENDED:
                effects.append(ToAgent(agent, RoundClosed(run=rnd.run, round=rnd.round)))
            effects.append(DropSpool((rnd.run, rnd.round, agent)))
        self.counters["rounds_dropped"] += 1
        return effects

    # ------------------------------------------------------------------- time

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        if now >= self._beacon_at:
            effects += self.lan_up(now)
        if now >= self._hello_at and not self._welcomed:
            effects += self._hello(now)
        if self._welcomed and now >= self._status_at:
            effects.append(self._status(now))
        if self._welcomed and now - self._coordinator_heard > COORDINATOR_SILENT_S:
            self._welcomed = False
            effects.append(Event("coordinator_lost", {"coordinator": self.coordinator}))
        if self.memory.report is not None and self._welcomed and now >= self._report_at:
            self._report_at = now + REPORT_AGAIN_S
            effects.append(ToCoordinator(self.memory.report))
        if self._pull is not None and (due := self._pull.receiver.due) and now >= due:
            effects += self._ask_model(now)
        for agent in self.sessions.lose_silent(now):
            effects += [Event("agent_lost", {"agent": agent}), *self._gone(agent, now)]
        if self.round is not None and not self.round.closed:
            effects += self._uploads.grant(self.round, now)
            if self._distribution is not None:
                effects += self._distribution.pump(now)
            effects += self._close_if_over(now)
        return effects

    def next_due(self, now: float) -> float:
        """Return when `tick` is wanted."""
        times = [self._beacon_at, self._status_at if self._welcomed else self._hello_at]
        if self.memory.report is not None:
            times.append(self._report_at)
        if self._pull is not None and self._pull.receiver.due is not None:
            times.append(self._pull.receiver.due)
        rnd = self.round
        if rnd is not None and not rnd.closed:
            times.append(rnd.next_due(now) + 0.001)
            if (due := self._uploads.next_due(rnd)) is not None:
                times.append(due)
            if self._distribution and (due := self._distribution.next_due(now)) is not None:
                times.append(due)
        return min(times)

    def _hello(self, now: float) -> list[Effect]:
        self._hello_at = now + HELLO_AGAIN_S
        settings = self.settings
        hello = EdgeHello(
            edge=settings.edge,
            epoch=settings.epoch,
            software=settings.software,
            broker=settings.broker,
            name=settings.name,
        )
        return [ToCoordinator(hello)]

    def _status(self, now: float) -> ToCoordinator:
        self._status_at = now + STATUS_S
        status = EdgeStatus(
            run=self.memory.run,
            epoch=self.settings.epoch,
            agents=self.sessions.present,
            model=self.memory.model,
            counters=dict(self.counters),
        )
        return ToCoordinator(status)
