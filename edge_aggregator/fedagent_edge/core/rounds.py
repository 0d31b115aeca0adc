"""The rounds of an edge, one after the other: ordered, live, committed, reported."""

from msgspec.structs import replace

from fedagent_node.effects import Effect, Emit, Mark, Received, Send, Warn
from fedagent_protocol.messages import (
    MAX_ROUNDS_AHEAD,
    Chunk,
    Decline,
    EdgeWelcome,
    MaskKeys,
    MaskOpening,
    MaskShares,
    Need,
    Outcome,
    OutcomeStatus,
    ReceiptStatus,
    RoundClosed,
    RoundOpen,
    RoundOrder,
    RoundReport,
    UpdateOffer,
)
from fedagent_protocol.transfer import CreditPool

from .effects import (
    COORDINATOR,
    Commit,
    Committed,
    ForgetRound,
    ModelLost,
    OpenRound,
    ReopenedRound,
    SaveRound,
)
from .late import LateWorks
from .live import LiveRound
from .masking import FALSE_SHARES, SUSPECTS
from .offers import receipt
from .round import EdgeRound
from .state import EdgeState
from .transfers import ModelExchange
from .upstream import Upstream
from .usual import Usual
from .weighing import weighing_of

AHEAD = "it is implausibly far beyond the last one"
OUTCOMES_WITH_CHUNK = 1000
"""More outcomes leave no room in the report for a chunk of the model."""


class Rounds:
    """At most one round is live, until its report; one order may wait for it, or for its model."""

    def __init__(
        self,
        state: EdgeState,
        upstream: Upstream,
        models: ModelExchange,
        reopened: ReopenedRound | None,
    ) -> None:
        self.state = state
        self.live: LiveRound | None = None
        self.pool = CreditPool(state.config.credit_bytes)
        self._upstream = upstream
        self._models = models
        self._last: LiveRound | None = None
        self._waiting: RoundOrder | None = None
        self.late = LateWorks()
        self._committing = False
        self._unmasking = False
        if reopened is not None:
            opened = reopened.opened
            state.memory.last_round = opened.order.round
            weighing = weighing_of(state.memory.body)
            rnd = EdgeRound(
                opened.run, opened.order, opened.base, opened.began_at, weighing, self._usual()
            )
            self.live = LiveRound(rnd, state, self.pool, start_at=opened.began_at, late=self.late)
            self.live.resume(reopened)
            state.counters["rounds_resumed"] += 1

    # -------------------------------------------------------- from coordinator

    def open(self, ask: RoundOpen, now: float) -> list[Effect]:
        """Answer with the contexts of all agents."""
        older = self.live is not None and ask.round > self.live.rnd.round
        if self._too_far(ask):
            return self._ahead(ask, now)
        # The coordinator gave an older round up; one that is being committed reports yet.
        effects = self.drop() if older and not self._committing else []
        columns = self.state.sessions.columns(ask, model=self.state.memory.model, now=now)
        return [*effects, Send(COORDINATOR, columns)]

    def order(self, order: RoundOrder, now: float) -> list[Effect]:
        """Begin a round, now or when it can be."""
        memory = self.state.memory
        if memory.report is not None and order.round == memory.report.round:
            return self._upstream.report_again(now)
        if self._too_far(order):
            return self._ahead(order, now)
        if order.round <= memory.last_round:
            self.state.counters["order_twice"] += 1
            # One for an older round tells that ours is wrong, or that it was late.
            return self._upstream.ask_welcome(now) if order.round < memory.last_round else []
        lacks_base = bool(order.base) and order.base != memory.model
        if self._committing or (lacks_base and self._models.expects(order.base)):
            self._waiting = order
            return []
        effects = self.drop()
        memory.last_round, memory.report = order.round, None
        weighing = weighing_of(memory.body)
        rnd = EdgeRound(memory.run, order, memory.model, now, weighing, self._usual())
        refusal = ""
        if order.task != memory.task:
            refusal = "the edge has another task"
        elif lacks_base or not memory.model:
            refusal = "the edge has no such model"
        if self.state.trouble:
            refusal = f"the edge's disk is full: {self.state.trouble}"
        refusal = refusal or weighing.refusal
        if refusal:
            self.state.counters["order_refused"] += 1
            return effects + self._report(rnd, _not_ordered(rnd, refusal), refusal, now)
        opened = OpenRound(
            run=memory.run,
            order=order,
            base=memory.model,
            began_at=now,
            buffers=tuple(sorted(weighing.rules.mean)),
            latest=tuple(sorted(weighing.rules.latest)),
            ring=weighing.ring,
            sketched=weighing.robust.directions,
        )
        self.late.begin(memory.run, order.round, weighing.late_rounds)
        effects += [self.late.saved(), SaveRound(opened), Mark("edge.round_saved")]
        self._last = None
        start_at = now + self.state.patience_s
        self.live = LiveRound(rnd, self.state, self.pool, start_at=start_at, late=self.late)
        return effects + self.live.begin(now)

    def _too_far(self, message: RoundOpen | RoundOrder) -> bool:
        newest = max(self.state.memory.last_round, self._upstream.round)
        return message.round > newest + MAX_ROUNDS_AHEAD

    def _ahead(self, message: RoundOpen | RoundOrder, now: float) -> list[Effect]:
        """Refuse a round that would end all others; a welcome tells whether it is so far."""
        self.state.counters["round_too_far"] += 1
        text = f"round {message.round} of the coordinator is refused: {AHEAD}"
        return [Warn("", text), *self._upstream.ask_welcome(now)]

    def welcomed(self, welcome: EdgeWelcome) -> list[Effect]:
        """Go back to the coordinator's round, if an order that was damaged has led beyond it."""
        memory, self._upstream.round = self.state.memory, welcome.round
        if not 0 < welcome.round < memory.last_round:
            return []
        text = f"this edge was at round {memory.last_round}, the coordinator is at {welcome.round}"
        effects: list[Effect] = [] if self._committing else self.drop()
        memory.last_round, self._waiting = welcome.round - 1, None
        self.state.counters["round_went_back"] += 1
        return [*effects, self.state.save(), Warn("", f"{text}: continuing there")]

    def resume_order(self, now: float) -> list[Effect]:
        """Begin the round that waited for its model, or for the one before."""
        waiting, self._waiting = self._waiting, None
        return self.order(waiting, now) if waiting is not None else []

    def drop(self) -> list[Effect]:
        """End a round that is not wanted any more."""
        live, self.live = self.live, None
        if self._unmasking:
            self._committing = self._unmasking = False
        if live is None:
            return []
        self._last = live
        self.state.counters["rounds_dropped"] += 1
        effects = [] if live.rnd.closed else live.close(live.rnd.rule.give_up_s)
        return [*effects, self.late.saved(), ForgetRound()]

    def forget(self) -> None:
        """Forget the order that waits: the run is over, or another."""
        self._waiting = None

    # ------------------------------------------------------------- from agents

    def receive(self, event: Received, now: float) -> list[Effect]:
        """Take in what an agent sends about a round.

        Raises:
            ChunkError: A chunk does not fit; nothing changed.
        """
        message = event.message
        match message:
            case Need() if self.live is not None:
                return self.live.need(event, message, now)
            case UpdateOffer():
                live = self.find(message.run, message.round)
                if live is None:
                    return self._too_late(event.sender, message, now)
                return live.offer(event, message, now)
            case Chunk():
                if (live := self._open) is not None and live.receives(event.sender, message):
                    return live.chunk(event, message, now)
                if kept := self.late.chunk(event.sender, message):
                    return kept
                if live := self.find(message.run, message.round):
                    return live.chunk(event, message, now)
            case Decline():
                if live := self.find(message.run, message.round):
                    return live.decline(event.sender, message, now)
            case MaskKeys() | MaskShares() | MaskOpening():
                # Also when it is closed: answers come then.
                live = self.live
                named = (message.run, message.round)
                if live is not None and (live.rnd.run, live.rnd.round) == named:
                    return live.mask(event.sender, message, now) + self._unmask(now)
        self.state.counters["out_of_round"] += 1
        return []

    def find(self, run: str, number: int) -> LiveRound | None:
        """Return this round, if it is the live one and not closed."""
        live = self._open
        return live if live and (live.rnd.run, live.rnd.round) == (run, number) else None

    def serves(self, agent: str, digest: str) -> bool:
        """Whether an agent is to train from this model."""
        live = self.live
        part = live.rnd.parts.get(agent) if live is not None else None
        if live is None or part is None:
            return False
        return digest == live.rnd.base or (part.late is not None and digest == part.late.base)

    def hello(self, agent: str, now: float) -> list[Effect]:
        """Go on with an agent that came, or came back."""
        return self._open.hello(agent, now) if self._open else []

    def left(self, agent: str, now: float) -> list[Effect]:
        """Wait no more for an agent that left."""
        return self._open.gone(agent, now) if self._open else []

    def _too_late(self, agent: str, offer: UpdateOffer, now: float) -> list[Effect]:
        if self.late.waits_for(agent, offer):
            return [Send(agent, RoundClosed(run=offer.run, round=offer.round, kept=True))]
        # The closing round, until the next is there: also while it is committed.
        last = self.live or self._last
        if last is not None and (last.rnd.run, last.rnd.round) == (offer.run, offer.round):
            return last.too_late(agent, offer, now)
        self.state.counters["expired"] += 1
        reason = "the round is over" if offer.run == self.state.memory.run else "another run"
        return [receipt(agent, offer, ReceiptStatus.EXPIRED, reason)]

    def _usual(self) -> Usual:
        return Usual(self.state.memory.told, self.state.memory.alignments)

    @property
    def _open(self) -> LiveRound | None:
        """The live round, if it is not closed."""
        return None if self.live is None or self.live.rnd.closed else self.live

    # --------------------------------------------------------- results of jobs

    def committed(self, done: Committed, now: float) -> list[Effect]:
        """Report the round that has its aggregate."""
        live, self._committing = self.live, False
        if live is None or (live.rnd.run, live.rnd.round) != (done.run, done.round):
            return []
        failed = ""
        if done.digest:
            memory = self.state.memory
            memory.model, memory.model_bytes = done.digest, done.size
            memory.told, memory.alignments = live.rnd.usual.told, {**live.rnd.usual.alignments}
        else:
            self.state.counters["aggregate_failed"] += 1
            failed = "the aggregate cannot be used"
            if done.refused:
                failed = f"the aggregate could not be written to the edge's disk: {done.refused}"
        if done.weight and live.rnd.used:
            # What each weighs is inside the sum: they share its weight.
            share = done.weight / live.rnd.used
            live.outcomes = tuple(
                replace(one, weight=share if one.used else 0.0) for one in live.outcomes
            )
        effects = self._report_live(live, failed, now, first=done.first)
        self.live, self._last = None, live
        return effects + self.resume_order(now)

    def model_lost(self, lost: ModelLost, now: float) -> list[Effect]:
        """Fail the round; the coordinator offers its model when it sees that we have none."""
        # Also of a round that was dropped meanwhile: no later order may wait for it or its base.
        live, self._committing = self.live, False
        memory = self.state.memory
        if memory.model == lost.base:
            memory.model, memory.model_bytes = "", 0
            self.state.counters["model_lost"] += 1
        if live is None or (live.rnd.run, live.rnd.round) != (lost.run, lost.round):
            return []
        effects = [] if live.rnd.closed else live.close(now)
        failed = "the edge's model is lost"
        effects.append(Warn("", f"round {lost.round} failed: {failed}: {lost.detail}"))
        effects += self._report_live(live, failed, now)
        self.live, self._last = None, live
        return effects + self.resume_order(now)

    def fail(self, reason: str, now: float) -> list[Effect]:
        """Report that the live round has failed, unless its model is being made."""
        live = self.live
        if live is None or self._committing:
            return []
        effects = [] if live.rnd.closed else live.close(now)
        effects += self._report_live(live, reason, now)
        self.live, self._last = None, live
        return effects

    # -------------------------------------------------------------- the close

    def look(self, now: float) -> list[Effect]:
        """Close the round if it is over."""
        live = self._open
        if live is None or not live.rnd.is_over(now):
            return []
        rnd = live.rnd
        if not rnd.failed and live.masking is None:
            rnd.settle()
        effects = live.close(now)
        if not rnd.failed:
            self._committing = True
            if live.masking is None:
                return [*effects, self._commit(live)]
            self._unmasking = True
            return effects + live.masking.close(now) + self._unmask(now)
        self.live, self._last = None, live
        return effects + self._report_live(live, rnd.failed, now)

    def _commit(self, live: LiveRound) -> Commit:
        rnd, weighing = live.rnd, live.rnd.weighing
        seeds = live.masking.seeds if live.masking is not None else None
        return Commit(
            rnd.run,
            rnd.round,
            rnd.base,
            weighing.scale(rnd.sums),
            weighing.deviation,
            seeds or (),
            weighing.robust,
            rnd.terms,
        )

    def _unmask(self, now: float) -> list[Effect]:
        """Go on with a closed round whose sum is masked, once enough have answered, or cannot."""
        live = self.live
        if not self._unmasking or live is None or live.masking is None:
            return []
        if live.masking.seeds is not None:
            self._unmasking = False
            return [*self._name_liars(live), self._commit(live)]
        if not live.rnd.void:
            return []
        named = self._name_liars(live)
        self.live, self._last = None, live
        self._committing = self._unmasking = False
        effects = named + self._report_live(live, live.rnd.void, now)
        return effects + self.resume_order(now)

    def _name_liars(self, live: LiveRound) -> list[Effect]:
        """Tell whose shares were false: they are not paid, and in no masks of the run any more."""
        liars = live.masking.liars if live.masking is not None else {}
        for agent in liars:
            self.state.counters[FALSE_SHARES] += 1
            self.state.memory.bar(agent)
        live.outcomes = tuple(
            _not_paid(one, FALSE_SHARES) if one.agent in liars else one for one in live.outcomes
        )
        told = "it is in no masks of this run any more"
        where = f"secure aggregation of round {live.rnd.round}"
        named = [Warn(agent, f"{where}: it {how}; {told}") for agent, how in liars.items()]
        return [*named, *self._note_suspects(live, where)]

    def _note_suspects(self, live: LiveRound, where: str) -> list[Effect]:
        """Tell whose word stands against whose: they are in no masks together any more."""
        pairs = live.masking.suspects if live.masking is not None else ()
        self.state.memory.suspect(pairs)
        effects: list[Effect] = []
        for pair in pairs:
            self.state.counters[SUSPECTS] += 1
            says = f"{pair.holder[:12]} says that its share does not open"
            told = "one of the two lies, they are in no masks together any more"
            effects.append(Warn(pair.dealer, f"{where}: {says}; {told}"))
        return effects

    def _report_live(
        self, live: LiveRound, failed: str, now: float, *, first: bytes = b""
    ) -> list[Effect]:
        if live.masking is not None:
            self.state.memory.turns_taken(live.masking.turns, void=bool(failed))
        return self._report(live.rnd, live.outcomes, failed, now, first=first)

    def _report(
        self,
        rnd: EdgeRound,
        outcomes: tuple[Outcome, ...],
        failed: str,
        now: float,
        *,
        first: bytes = b"",
    ) -> list[Effect]:
        """Store and send the report; with `failed` there is no new model, and nothing is used."""
        if failed:
            outcomes = tuple(replace(one, used=False, weight=0.0) for one in outcomes)
        with_chunk = rnd.order.want_model and not failed and len(outcomes) <= OUTCOMES_WITH_CHUNK
        closed_at = rnd.closed_at or now
        memory = self.state.memory
        report = RoundReport(
            run=rnd.run,
            round=rnd.round,
            epoch=self.state.sessions.epoch,
            outcomes=outcomes,
            failed=failed,
            model=memory.model,
            size=memory.model_bytes,
            chunk_bytes=self.state.config.chunk_bytes,
            used=sum(one.used for one in outcomes),
            weight=sum(one.weight for one in outcomes),
            first=first if with_chunk else b"",
            local_steps=0.0 if failed else rnd.sums.local_steps,
            timing_ms={
                "collect": round((closed_at - rnd.began_at) * 1e3, 3),
                "aggregate": round((now - closed_at) * 1e3, 3),
            },
        )
        send = self._upstream.report(report, now)
        event: dict[str, object] = {
            "run": rnd.run,
            "round": rnd.round,
            "ordered": len(outcomes),
            "in_time": sum(one.in_time for one in outcomes),
            "used": report.used,
            "failed": failed,
            "seconds": round(now - rnd.began_at, 4),
            "close_s": round(now - closed_at, 4),
        }
        return [
            self.late.saved(),
            self.state.save(),
            Mark("edge.reported"),
            ForgetRound(),
            Mark("edge.spool_cleared"),
            send,
            Emit("round_closed", event),
        ]

    # ------------------------------------------------------------------- time

    def tick(self, now: float) -> list[Effect]:
        """Do what is due, and close the round if it is over."""
        due = self._open.tick(now) if self._open else []
        if self._unmasking and self.live is not None and self.live.masking is not None:
            due += self.live.masking.tick(now) + self._unmask(now)
        return due + self.look(now)

    def next_due(self, now: float) -> float:
        """Return when `tick` is wanted."""
        if self._unmasking and self.live is not None and self.live.masking is not None:
            return self.live.masking.next_due()
        return self._open.next_due(now) if self._open else float("inf")


def _not_ordered(rnd: EdgeRound, reason: str) -> tuple[Outcome, ...]:
    return tuple(
        Outcome(agent=agent, status=OutcomeStatus.GONE, censored=True, reason=reason)
        for agent in rnd.parts
    )


def _not_paid(outcome: Outcome, reason: str) -> Outcome:
    return Outcome(
        agent=outcome.agent,
        status=OutcomeStatus.REJECTED,
        tau_ms=outcome.tau_ms,
        censored=True,
        reason=reason,
    )
