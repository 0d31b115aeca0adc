"""The rounds of an edge, one after the other: ordered, open, committed, reported."""

import math

from msgspec.structs import replace

from fedagent_node.effects import Effect, Emit, Mark, Received, Send, Warn
from fedagent_protocol import messages as m
from fedagent_protocol.transfer import PIECE_BYTES, Layout
from fedagent_task.secure_aggregation.keys import Place

from .effects import (
    COORDINATOR,
    Committed,
    DiskTried,
    Ignored,
    OpenRound,
    ReopenedRound,
    Save,
    TryDisk,
)
from .exchange import Exchange
from .masking import FALSE_SHARES, NOT_IN_COHORT, Masking
from .receipts import KEEP_S, Receipts
from .round import Client, Phase, Round, Stage
from .state import EdgeState, wake
from .updates import Updates
from .upstream import Upstream
from .weighing import Usual, weighing_of

FIRST_WAIT_S = 3.0
"""How long an order waits for an answer before it is repeated; then twice as long."""
HEADER_ROOM = 8192
"""By how much an update may be larger than the model's tensors for advance credit."""
ORDER_MODEL_BYTES = 64 * 1024
"""A model up to this size comes with the order: less than what asking for it would cost."""
ORDERED_BYTES = 16 << 20
"""Most that all orders of a round bring in this way: a link takes 64 MiB at once."""
LEAST_ROOM_BYTES = 1 << 20
DISK_AGAIN_S = 5.0
"""How often room is looked for while there is none."""
OUTCOMES_WITH_CHUNK = 1000
"""More outcomes leave no room in the report for a chunk of the model."""


class Rounds:
    """Orders rounds, reports them, and holds an order that waits for its model."""

    def __init__(
        self,
        state: EdgeState,
        upstream: Upstream,
        exchange: Exchange,
        reopened: ReopenedRound | None,
    ) -> None:
        self.state, self._timers = state, state.timers
        self.waiting: m.RoundOrder | None = None
        self._tried_at = -math.inf
        self.receipts = Receipts(state)
        self.updates = Updates(state, exchange, self.receipts)
        self._upstream = upstream
        self._exchange = exchange
        if reopened is not None:
            opened = reopened.opened
            state.memory.last_round = opened.order.round
            rnd = self._make(opened.order, opened.began_at)
            self._begin(rnd)
            for one in reopened.ended:
                rnd.restore(*one)
            self._timers.at("orders", 0.0, self._order_again)
            if rnd.masking is not None:
                rnd.given_up = "secure aggregation: the edge was restarted in the round"

    def _make(self, order: m.RoundOrder, began_at: float) -> Round:
        memory = self.state.memory
        weighing = weighing_of(memory.body)
        usual = Usual(memory.told, memory.alignments)
        layout = self.state.layout(max(1, memory.model_bytes))  # refused without a model
        return Round(memory.run, order, memory.model, layout, began_at, weighing, usual)

    def _begin(self, rnd: Round) -> list[Effect]:
        state, memory = self.state, self.state.memory
        effects = self.receipts.begin(rnd)
        self.updates.begin(rnd)
        state.round, memory.open_round = rnd, rnd.order.round
        for moment in rnd.moments:
            self._timers.at(("round", moment), moment, wake)
        if rnd.weighing.ring is not None:
            rnd.masking = Masking(
                rnd.order,
                rnd.weighing.secure,
                Place(rnd.run, rnd.order.round, state.me.edge),
                rnd.began_at,
                rnd.ended,
                trusted=state.site_members(),
                barred=frozenset(memory.mask_liars),
            )
            self._timers.at("masking", rnd.masking.due, wake)
        return effects

    @property
    def awaited(self) -> set[str]:
        """The agents that the round under way waits for."""
        rnd = self.state.live
        if rnd is None or not rnd.is_open:
            return set()
        return {agent for agent, client in rnd.clients.items() if not client.is_settled}

    # -------------------------------------------------------- from coordinator

    def open(self, ask: m.RoundOpen, now: float) -> list[Effect]:
        """Answer with the contexts of all agents."""
        rnd, effects = self.state.round, list[Effect]()
        if rnd is not None and ask.round > rnd.order.round:
            # The coordinator gave an older round up.
            effects = self.drop(now)
        columns = self.state.sessions.columns(ask, model=self.state.memory.model, now=now)
        return [*effects, Send(COORDINATOR, columns)]

    def order(self, order: m.RoundOrder, now: float) -> list[Effect]:
        """Begin a round, now or when its model is here."""
        memory = self.state.memory
        if memory.report is not None and order.round == memory.report.round:
            return self._upstream.report_again(now)
        if order.round <= memory.last_round:
            # A coordinator that was restored goes past ours when it hears of it.
            return self._upstream.ask_welcome(now) if order.round < memory.last_round else []
        lacks_base = bool(order.base) and order.base != memory.model
        if lacks_base and order.base in self._exchange.expected:
            self.waiting = order
            return []
        # Its receipt says whether all of it is paid.
        effects = self._upstream.report_again(now) + self.drop(now)
        memory.last_round, memory.report = order.round, None
        rnd = self._make(order, now)
        refusal = rnd.weighing.refusal
        if self.state.trouble:
            refusal = f"the edge's disk is full: {self.state.trouble}"
        elif order.task != memory.task:
            refusal = "the edge has another task"
        elif lacks_base or not memory.model:
            refusal = "the edge has no such model"
        if refusal:
            rnd.outcomes = tuple(_not_paid(agent, 0, refusal, gone=True) for agent in rnd.clients)
            return effects + self._report(rnd, refusal, now)
        effects += self._begin(rnd)
        opened = OpenRound(run=rnd.run, order=order, base=rnd.base, began_at=now)
        effects += [Save(opened), Mark("edge.round_saved")]
        for agent, client in rnd.clients.items():
            if self.state.sessions.is_present(agent):
                effects += self._order(client, now)
            else:
                effects += self.updates.left(agent, now)
        return effects

    def _order(self, client: Client, now: float) -> list[Effect]:
        rnd, agent, size = client.round, client.agent, client.round.layout.size
        effects: list[Effect] = []
        if not client.orders:
            client.too_slow = self.state.sessions.too_slow(agent, size, rnd.rule.deadline_s)
            if client.too_slow:
                effects.append(Warn(agent, f"its link {client.too_slow}"))
        # With the model once: who is asked again may have it, and fetches it otherwise.
        most = min(ORDER_MODEL_BYTES, ORDERED_BYTES // len(rnd.clients))
        stored = size if not client.orders and size <= most else 0
        client.order_again_at = now + FIRST_WAIT_S * 2**client.orders
        client.orders += 1
        self._timers.sooner("orders", client.order_again_at, self._order_again)
        credit = self.updates.uploads.in_advance(client, min(PIECE_BYTES, size + HEADER_ROOM))
        return [*effects, Send(agent, rnd.order_for(client, credit, now), stored=stored)]

    def _order_again(self, now: float) -> list[Effect]:
        """Repeat the orders of those who show no sign of having theirs."""
        rnd, effects, due = self.state.live, list[Effect](), math.inf
        if rnd is None or not rnd.is_open:
            return []
        for client in rnd.clients.values():
            if client.stage is Stage.WORKING and not client.answered:
                if now >= client.order_again_at:
                    effects += self._order(client, now)
                due = min(due, client.order_again_at)
        self._timers.at("orders", due, self._order_again)
        return effects

    def drop(self, now: float) -> list[Effect]:
        """End a round that is not wanted any more, and forget the order that waits."""
        rnd, self.waiting = self.state.live, None
        if rnd is None:
            return []
        effects = self.updates.close(rnd, now) if rnd.is_open else []
        return effects + self.receipts.give_up(rnd) + self._over(rnd, now)

    def _over(self, rnd: Round, now: float) -> list[Effect]:
        rnd.phase, self.state.memory.open_round = Phase.OVER, 0
        for name in ("orders", "masking", *(("round", moment) for moment in rnd.moments)):
            self._timers.stop(name)
        if self.receipts.owed:  # the next order may bring what they hear
            self._timers.sooner("keep", now + KEEP_S, self.receipts.keep_now)
        forget = self.updates.forget_round()
        return [self.state.save(), Mark("edge.reported"), forget, Mark("edge.spool_cleared")]

    def settled(self, receipt: m.ReportReceipt, now: float) -> list[Effect]:  # noqa: ARG002 - as all handlers
        """Take in that a report is settled, and which work in it is not paid."""
        self._upstream.receipt(receipt)
        return self.receipts.settled(receipt)

    # ------------------------------------------------------------- from agents

    def mask(
        self, event: Received, message: m.MaskKeys | m.MaskShares | m.MaskOpening, now: float
    ) -> list[Effect]:
        """Take keys, shares and answers; also once the round is closed.

        Raises:
            ProtocolError: They do not fit; nothing changed.
        """
        rnd = self.state.named(message.run, message.round)
        if rnd is None:
            raise Ignored("out_of_round")
        client = rnd.clients.get(event.sender)
        if client is None or rnd.masking is None:
            raise Ignored("masking_unasked")
        client.answered = True
        return rnd.masking.receive(event.sender, message, now)

    def _leave_out(self, rnd: Round, masking: Masking, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for agent, client in rnd.clients.items():
            if client.stage is Stage.WORKING and masking.is_out(agent):
                why = masking.refused.get(agent, NOT_IN_COHORT)
                self.state.counters[NOT_IN_COHORT] += 1
                effects += self.updates.without(client, m.OutcomeStatus.MISSED, why, now)
                effects.append(Send(agent, m.RoundClosed(run=rnd.run, round=rnd.order.round)))
        return effects

    def hello(self, agent: str, now: float) -> list[Effect]:
        """Go on with an agent that came, or came back."""
        client, effects = self.state.client(agent), self.receipts.hear_void(agent)
        if client is None:
            return effects
        client.come_back()
        if client.stage is Stage.WORKING:
            return effects + self._order(client, now)
        if client.stage is not Stage.SENDING:
            return effects
        # Its credit may have been lost with the connection.
        self.updates.uploads.take_back(client)
        return effects + self.updates.uploads.grant(client, now)

    def wanted(self, agent: str, need: m.Need) -> Layout | None:
        """Return how a model is cut that an agent is to train from; None for no such model."""
        client, kept = self.state.client(agent), self.updates.kept.get(agent)
        # What a round's end interrupted goes on also before the next order.
        work = kept if kept is not None and kept.base == need.digest else None
        layout = work.layout if work is not None else None
        if client is not None and layout is None and need.digest == client.round.base:
            layout = client.round.layout
            work = client.round.own_work(client) if client.offer is None else None
        if client is not None:
            client.answered |= layout is not None
        most = max((stop for _, stop in need.ranges), default=0)
        if work is not None and most > work.asked:
            work.asked, work.moved = most, self.state.memory.last_round
        return layout

    # --------------------------------------------------------- results of jobs

    def committed(self, done: Committed, now: float) -> list[Effect]:
        """Report the round that has its aggregate."""
        rnd = self.state.named(done.run, done.round)
        if rnd is None:
            return []
        memory, failed = self.state.memory, ""
        if done.digest:
            memory.model, memory.model_bytes = done.digest, done.size
            memory.told, memory.alignments = rnd.usual.told, {**rnd.usual.alignments}
        elif done.refused:
            failed = f"the aggregate could not be written to the edge's disk: {done.refused}"
        else:
            failed = "the aggregate cannot be used"
        if done.weight and rnd.placed:
            # What each weighs is inside the sum: they share its weight.
            share = done.weight / len(rnd.placed)
            rnd.outcomes = tuple(
                replace(one, weight=share if one.used else 0.0) for one in rnd.outcomes
            )
        return self._report(rnd, failed, now, first=done.first)

    def model_lost(self, digest: str, detail: str, now: float) -> list[Effect]:
        """Fail the round of a model; the coordinator offers it when it sees that we have none."""
        rnd = self.state.live
        if rnd is None or rnd.base != digest:
            return [Warn("", f"the edge lost its model and fetches it again: {detail}")]
        self.fail("the edge's model is lost")
        said = Warn("", f"round {rnd.order.round} failed: {rnd.given_up}: {detail}")
        return [
            said,
            *(self._report(rnd, rnd.given_up, now) if rnd.phase is Phase.COMMITTING else ()),
        ]

    def fail(self, reason: str) -> None:
        """Give the round up; it is closed when all that is complete is checked."""
        rnd = self.state.live
        if rnd is not None:
            rnd.given_up = rnd.given_up or reason

    # -------------------------------------------------------------- room on the disk

    def look_for_room(self, now: float) -> None:
        """See soon whether there is room, but not all the time."""
        when = max(now, self._tried_at + DISK_AGAIN_S)
        self._timers.sooner("room", when, self._try_disk)

    def _try_disk(self, now: float) -> list[Effect]:
        self._tried_at = now
        most = max(self.state.memory.model_bytes, self.state.offered_bytes)
        return [TryDisk(max(LEAST_ROOM_BYTES, 2 * most))]

    def disk_tried(self, result: DiskTried, now: float) -> list[Effect]:
        """Take no part in rounds while the disk is full: the coordinator hears of it at once."""
        state, full = self.state, bool(result.refused)
        changed, state.trouble = bool(state.trouble) is not full, result.refused
        # With room again, what could not be saved is.
        effects: list[Effect] = [] if full else [state.save()]
        self.receipts.unsaved &= full
        if full:
            self.look_for_room(now)
        if not changed:
            return effects
        text = "the disk has free space again: the edge takes part in rounds again"
        if full:
            state.counters["disk_full"] += 1
            out = "the edge does not take part in rounds until its disk has free space"
            text = f"{out}: {result.refused}"
            self._exchange.forget_model()
            self.fail(f"the edge's disk is full: {result.refused}")
        return [*effects, Warn("", text), self._upstream.status(now)]

    # -------------------------------------------------------------- the close

    def look(self, now: float) -> list[Effect]:
        """Go on with the masks; close the round if it is over, report it once it is without masks.

        To be called after each input, and when time has passed.
        """
        rnd, effects = self.state.live, list[Effect]()
        if rnd is None:
            return []
        masking = rnd.masking
        if masking is not None:
            effects += masking.tick(now) + self._leave_out(rnd, masking, now)
        if rnd.is_open and rnd.is_over(now):
            effects += self._end(rnd, now)
        if masking is None or rnd.phase is Phase.OVER:
            return effects
        if rnd.phase is Phase.UNMASKING and (rnd.hopeless or masking.seeds is not None):
            effects += self._name_liars(rnd, masking)
            effects += self._report(rnd, rnd.hopeless, now) if rnd.hopeless else [rnd.commit()]
        self._timers.at("masking", masking.due, wake)
        return effects

    def _end(self, rnd: Round, now: float) -> list[Effect]:
        """Close a round, and have the model made of it, or ask for what unmasks it."""
        failed, masking = rnd.failed, rnd.masking
        if not failed and masking is None:
            rnd.settle()
        effects = self.updates.close(rnd, now)
        if failed:
            return effects + self._report(rnd, failed, now)
        if masking is None:
            return [*effects, rnd.commit()]
        rnd.phase = Phase.UNMASKING
        used = frozenset(client.agent for client in rnd.placed)
        return effects + masking.close(used, now, rnd.began_at + rnd.rule.give_up_s)

    def _name_liars(self, rnd: Round, masking: Masking) -> list[Effect]:
        """Tell whose shares were false: they are not paid, and in no masks of the run any more."""
        memory, liars = self.state.memory, masking.cohort.liars
        where, effects = f"secure aggregation of round {rnd.order.round}", list[Effect]()
        for agent, how in liars.items():
            self.state.counters[FALSE_SHARES] += 1
            memory.bar(agent)
            told = "it is in no masks of this run any more"
            effects.append(Warn(agent, f"{where}: it {how}; {told}"))
            if rnd.clients[agent].valid:
                effects += self.receipts.void(agent, rnd.name, why=FALSE_SHARES)
        rnd.outcomes = tuple(
            _not_paid(one.agent, one.tau_ms, FALSE_SHARES) if one.agent in liars else one
            for one in rnd.outcomes
        )
        return effects

    def _report(self, rnd: Round, failed: str, now: float, *, first: bytes = b"") -> list[Effect]:
        """Store and send the report; with `failed` there is no new model, and nothing is used."""
        memory = self.state.memory
        report = rnd.report(
            failed,
            now,
            model=memory.model,
            size=memory.model_bytes,
            chunk_bytes=self.state.config.chunk_bytes,
        )
        self.receipts.reported(report)
        most = rnd.order.want_bytes if len(report.outcomes) <= OUTCOMES_WITH_CHUNK else 0
        if not most or failed:
            first = b""
        elif first:
            first = first[: self.state.layout(report.size).first_bytes(most)]
        send = self._upstream.report(report, now, first)
        event: dict[str, object] = {
            "run": rnd.run,
            "round": rnd.order.round,
            "ordered": len(report.outcomes),
            "in_time": sum(one.in_time for one in report.outcomes),
            "used": report.used,
            "failed": failed,
            "seconds": round(rnd.after(now), 4),
        }
        return [*self._over(rnd, now), send, Emit("round_closed", event)]


def _not_paid(agent: str, tau_ms: int, reason: str, *, gone: bool = False) -> m.Outcome:
    status = m.OutcomeStatus.GONE if gone else m.OutcomeStatus.REJECTED
    return m.Outcome(agent=agent, status=status, tau_ms=tau_ms, censored=True, reason=reason)
