"""The training queue: takes orders, has task and model fetched and trained, refuses the rest."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import InitVar, dataclass, field
from enum import Enum
from functools import partial

from msgspec import structs

from fedagent_agent.trainer.frames import Cancel, Failed, Mask, Masked, Train, Trained
from fedagent_node.effects import Effect, Emit, Send
from fedagent_protocol.errors import credits_text
from fedagent_protocol.messages import (
    MAX_ROUNDS_AHEAD,
    Decline,
    DeclineReason,
    TrainOrder,
    UpdateOffer,
)

from .device import DeviceState, is_stale
from .download import Download, fits
from .effects import (
    CarryUpdate,
    DropOutput,
    Key,
    MakeIdleUpdate,
    Newest,
    PendingUpdate,
    StoreUpdate,
    Timer,
    state_name,
)
from .masking import Masking
from .session import Session
from .tasks import Jobs, Task, Tasks, why
from .uploads import Uploads

REMEMBERED = 64
ANSWERED = "the order was answered before, and nothing of that is kept"
ANSWER_S = 0.5
"""An update that is made sooner is the answer to its order; else the edge hears that it has it."""
KEPT_S = 60.0
"""How long work goes on after its round, until an order wants it."""
PROGRESS_S = 10.0
"""A model of which something came in so many seconds is not given up: what says that its round is
over, and that its work is wanted, comes after it."""


class OrderStage(Enum):
    """How far an order is."""

    GETTING = "getting"  # task and model are fetched
    IDLING = "idling"  # a task without training takes its time
    WORKING = "working"  # the trainer or the disk has it
    UNMASKED = "unmasked"  # trained; whose masks the update wears is not settled


@dataclass(slots=True)
class ActiveOrder:
    """One order from its arrival to the update."""

    order: TrainOrder
    fetch: Download
    ordered_at: float  # when DT starts
    give_up_at: float
    answer_at: float
    stage: OrderStage = OrderStage.GETTING
    job: int | None = None  # of the trainer, while it works
    train_at: float = 0.0  # when LC starts
    idle_until: float = 0.0  # when an update without training is made
    result: Trained | None = None  # the training's end, while its update has no masks yet
    made_in: int = 0  # the earlier round that it was ordered in first

    @property
    def key(self) -> Key:
        """Edge, run and round."""
        return self.fetch.key

    def is_wanted(self, key: Key, order: TrainOrder) -> bool:
        """Whether a later order may be answered with this work."""
        mine, number = self.key, self.made_in or self.key.round
        work = (mine.edge, mine.run, self.order.task, self.order.model, number)
        named = (key.edge, key.run, order.task, order.made_from, order.made_in)
        return work == named and self.result is None

    def update(self, result: Trained, agreed: bytes, now: float) -> PendingUpdate:
        """Describe the finished update, with the signature of whose masks it wears."""
        assert self.fetch.whole_at is not None
        stats = structs.replace(
            result.stats,
            dt_ms=_ms(self.fetch.whole_at - self.ordered_at),
            prepare_ms=_ms(self.train_at - self.fetch.whole_at),
            lc_ms=_ms(now - self.train_at),
            train_ms=_ms(result.train_s),
        )
        offer = UpdateOffer(
            run=self.key.run,
            round=self.key.round,
            digest=result.digest,
            size=result.size,
            chunk_bytes=self.order.chunk_bytes,
            base=self.order.model,
            task=self.order.task,
            stats=stats,
            note=result.note[:500],
            made_in=self.made_in,
            agreed=agreed,
        )
        return PendingUpdate(self.key, offer, self.order.credit)


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


@dataclass(slots=True)
class TrainingQueue:
    """At most one order at a time, and never one round twice."""

    _device: DeviceState
    _tasks: Tasks
    _uploads: Uploads
    _masking: Masking
    _jobs: Jobs
    _counters: Counter[str]
    _releases: dict[str, int]  # updates that have cost privacy, by run
    answered: InitVar[Iterable[Key]]  # with an update, before
    active_order: ActiveOrder | None = None
    _trained_at: float | None = None
    _newest: Newest[str, int] = field(default_factory=lambda: Newest(REMEMBERED))
    _answers: Newest[Key, Decline | None] = field(default_factory=lambda: Newest(REMEMBERED))
    """Refusals, by their order; None: an update answered it, or nobody waits any more."""

    def __post_init__(self, answered: Iterable[Key]) -> None:
        for key in answered:
            self._note_order(key)
            self._answers[key] = None

    @property
    def fetch(self) -> Download | None:
        """What is fetched for the order under way."""
        return self.active_order.fetch if self.active_order is not None else None

    # ----------------------------------------------------------------- orders

    def order(
        self, key: Key, order: TrainOrder, session: Session, now: float
    ) -> tuple[list[Effect], bool]:
        """Take an order; return effects, and whether it ranks above all before.

        A newer order cancels older work, unless it wants that: it is answered with the rest. An
        older one repeats the last answer, or is refused.
        """
        active = self.active_order
        if active is not None and active.key == key:
            return active.fetch.acknowledge(), False
        if key in self._answers:
            # An edge that asks after a receipt has forgotten that it refused the update.
            decline = self._answers[key] or Decline(
                run=key.run, round=key.round, reason=DeclineReason.BUSY, detail=ANSWERED
            )
            return [Send(key.edge, decline)], False
        if (refusal := self._outranked(key, session)) is not None:
            return self.refuse(key, *refusal, remembered=True), False
        self._note_order(key)
        session.run = key.run
        effects: list[Effect] = []
        ordered = Emit("ordered", {"run": key.run, "round": key.round, "edge": key.edge})
        refusal = self._unfit(order)
        if active is not None and active.is_wanted(key, order) and refusal is None:
            # The work under way answers the later order.
            active.made_in = active.made_in or active.key.round
            active.give_up_at = now + order.give_up_ms / 1000
            active.answer_at = now + ANSWER_S
            return [ordered, *active.fetch.go_on(key, now)], True
        if active is not None:
            effects += self._give_back(DeclineReason.BUSY, f"round {key.round} was ordered")
        effects.append(ordered)
        if refusal is not None:
            return effects + self.refuse(key, *refusal, remembered=True), True
        if carried := self._uploads.carry(key, order):
            # Its update answers the order once the disk has it for this round.
            self._answers[key] = None
            return effects + carried, True
        fetch = Download.of(key, order, self._counters)
        until = now + order.give_up_ms / 1000
        self.active_order = ActiveOrder(order, fetch, now, until, now + ANSWER_S)
        effects += self._tasks.want(order.task, key, now)
        return effects + (self._refuse_task() or fetch.begin()), True

    def welcomed(self, run: str, round_: int) -> None:
        """Go back to an edge's newest round, if an order that was damaged has led beyond it."""
        if 0 < round_ < self._newest.get(run, 0):
            self._counters["round_went_back"] += 1
            self._newest[run] = round_

    def outranked(self, key: Key) -> bool:
        """Return whether an order of this number is refused for a newer one."""
        return key.round < self._newest.get(key.run, 0)

    def abort(self, detail: str) -> list[Effect]:
        """Give the order under way back: the device may not train any more."""
        if self.active_order is None:
            return []
        return self._give_back(DeclineReason.UNAVAILABLE, detail)

    def closed(self, key: Key, now: float, *, kept: bool) -> list[Effect]:
        """Stop at the end of the round, unless its edge may want the work in a later one."""
        active = self.active_order
        if active is None or active.key != key:
            return []
        if kept:
            active.give_up_at = max(active.give_up_at, now + KEPT_S)
            return []
        return self._abandon(active, "closed")

    def _outranked(self, key: Key, session: Session) -> tuple[DeclineReason, str] | None:
        busy = DeclineReason.BUSY
        newest = self._newest.get(key.run, 0)
        if key.round > max(newest, session.round) + MAX_ROUNDS_AHEAD:
            return busy, f"{key.round} is implausibly far beyond round {newest}"
        if key.round <= newest:
            return busy, f"round {newest} was already ordered"
        active = self.active_order
        if active is None or active.key.edge == key.edge:
            return None
        if active.key.run != key.run:
            return busy, "training for another run"
        if key.round < active.key.round:
            # An edge that says it is at an earlier round ends no later work of another one.
            return busy, f"round {active.key.round} is under way"
        return None

    def _unfit(self, order: TrainOrder) -> tuple[DeclineReason, str] | None:
        if not fits(order.size, order.chunk_bytes):
            detail = f"a model of {order.size} bytes in chunks of {order.chunk_bytes}"
            return DeclineReason.LOAD, detail
        readings = self._device.readings
        if not readings.available:
            return DeclineReason.UNAVAILABLE, readings.reason
        price = self._device.price_micro
        named = order.context_seq > 0 or order.price > 0
        if named and is_stale(order.price, price):
            now, then = credits_text(price), credits_text(order.price)
            return DeclineReason.STALE, f"the price is now {now} credits, not {then}"
        return None

    def refuse(
        self, key: Key, reason: DeclineReason, detail: str, *, remembered: bool = False
    ) -> list[Effect]:
        """Decline an order; one that is none of the queue's is not remembered."""
        detail = detail[:500]
        self._counters[f"declined_{reason}"] += 1
        fields = {"round": key.round, "edge": key.edge, "reason": str(reason), "detail": detail}
        decline = Decline(run=key.run, round=key.round, reason=reason, detail=detail)
        if remembered:
            self._answers[key] = decline
        return [Send(key.edge, decline), Emit("declined", fields)]

    def _give_back(self, reason: DeclineReason, detail: str) -> list[Effect]:
        active = self.active_order
        assert active is not None
        return self.refuse(active.key, reason, detail, remembered=True) + self._stop(active)

    def _abandon(self, active: ActiveOrder, reason: str) -> list[Effect]:
        """Stop without an answer: the edge waits for none."""
        self._answers[active.key] = None
        self._counters[f"abandoned_{reason}"] += 1
        fields = {"round": active.key.round, "edge": active.key.edge, "reason": reason}
        return [*self._stop(active), Emit("abandoned", fields)]

    def _stop(self, active: ActiveOrder) -> list[Effect]:
        self.active_order = None
        effects: list[Effect] = []
        if active.job is not None:
            self._jobs.drop(active.job)
            effects.append(Cancel(job=active.job))
        if active.result is not None:
            effects.append(DropOutput(active.result.job))
        return effects

    def _note_order(self, key: Key) -> None:
        self._newest[key.run] = max(self._newest.get(key.run, 0), key.round)

    # --------------------------------------------------------------- training

    def go_on(self, now: float) -> list[Effect]:
        """Do the next step that nothing stands in the way of."""
        active = self.active_order
        if active is None:
            return []
        effects: list[Effect] = []
        task, fetch = active.order.task, active.fetch
        if (spec := self._tasks.masked(task)) is not None:
            effects = self._masking.begin(active.key, spec, now, active.give_up_at)
        if active.stage is OrderStage.UNMASKED:
            return effects + self._mask(active)
        if active.stage is not OrderStage.GETTING:
            return effects
        if refused := self._refuse_task():
            return effects + refused
        if fetch.problem:
            return effects + self._give_back(DeclineReason.ERROR, fetch.problem)
        opened = self._tasks.opened(task)
        if opened is None:
            effects += self._tasks.want(task, active.key, now)  # again, if it got lost
        if opened is None or fetch.whole_at is None:
            return effects
        return effects + self._train(active, opened, now)

    def _refuse_task(self) -> list[Effect]:
        active = self.active_order
        task = self._tasks.refused(active.order.task) if active is not None else None
        return [] if task is None else self._give_back(task.reason, task.detail)

    def _train(self, active: ActiveOrder, task: Task, now: float) -> list[Effect]:
        key, order = active.key, active.order
        if used_up := self._used_up(key.run, task, order.releases):
            return self._give_back(DeclineReason.PRIVACY, used_up)
        active.job, active.train_at = self._jobs.start(self.trained), now
        fields = {"round": key.round, "edge": key.edge, "run": key.run, "recipe": task.recipe}
        effects: list[Effect] = [Emit("training", fields)]
        if task.idle:
            active.stage, active.idle_until = OrderStage.IDLING, now + self._device.slow_s
            return effects + self._make_idle_update(active, now)
        active.stage = OrderStage.WORKING
        train = Train(
            job=active.job,
            model=order.model,
            out=key.file_name,
            iterations=order.iterations,
            load_limit_s=self._device.load_limit(order.load_limit_ms / 1000),
            round=key.round,
            state=state_name(key.run, order.task),
        )
        return [*effects, train]

    def _used_up(self, run: str, task: Task, known: int = 0) -> str:
        """Return why no update may leave for this run any more; an empty string if one may.

        The coordinator knows so many updates of this device: more than it counts itself, if it
        was restored from a backup. That counts for the order alone: whoever lies gains no more
        than by not ordering.
        """
        assert task.spec is not None
        privacy, mine = task.spec.privacy, self._releases.get(run, 0)
        if not privacy.wanted or max(mine, known) < privacy.releases:
            return ""
        used_up = (
            f"epsilon {privacy.epsilon:g} of this run is used up by {max(mine, known)} updates"
        )
        if mine >= privacy.releases:
            self._device.spent[run] = used_up
        return used_up

    def _make_idle_update(self, active: ActiveOrder, now: float) -> list[Effect]:
        if now < active.idle_until:
            return []
        assert active.job is not None
        active.stage, order = OrderStage.WORKING, active.order
        out = active.key.file_name
        return [MakeIdleUpdate(active.job, order.model, order.round, order.iterations, out)]

    def trained(self, result: Trained | Failed, now: float) -> list[Effect]:
        """Take the end of the training under way."""
        active = self.active_order
        assert active is not None
        active.job = None
        if isinstance(result, Failed):
            self._counters[f"training_{result.reason}"] += 1
            return [*self._give_back(*why(result)), DropOutput(result.job)]
        # The first training also counts what had gathered before; that is no rate.
        stats, rate = result.stats, None
        if self._trained_at is not None and active.train_at > self._trained_at:
            rate = stats.arrivals / (active.train_at - self._trained_at)
        self._trained_at = active.train_at
        self._device.note_training(
            per_iteration=stats.seconds_per_iteration,
            arrivals_per_s=rate,
            arrivals_per_step=stats.arrivals / max(1, stats.steps),
        )
        if self._tasks.masked(active.order.task) is not None:
            active.stage, active.result = OrderStage.UNMASKED, result
            return self._mask(active)
        return self._store(active, result, now)

    def _store(self, active: ActiveOrder, result: Trained, now: float) -> list[Effect]:
        active.stage = OrderStage.WORKING
        task, run, releases = self._tasks.opened(active.order.task), active.key.run, 0
        # What is not known to cost nothing must not leave.
        assert task is not None
        assert task.spec is not None
        if task.spec.privacy.wanted:
            # What the disk refuses stays counted: nobody knows how far it came.
            releases = self._releases[run] = self._releases.get(run, 0) + 1
            self._used_up(run, task)
        update = active.update(result, self._masking.agreement(active.key), now)
        place = None if task.idle else (result.offset, result.mark)
        return [StoreUpdate(result.job, update, place, releases)]

    def _mask(self, active: ActiveOrder) -> list[Effect]:
        """Have the update masked, as soon as it is settled by whom."""
        result, seeds = active.result, self._masking.seeds(active.key)
        if result is None or seeds is None:
            return []
        active.stage, active.job = OrderStage.WORKING, self._jobs.start(self.masked)
        weight = self._tasks.weight(active.order.task, result.stats.num_samples)
        return [Mask(job=active.job, out=active.key.file_name, weight=weight, seeds=seeds)]

    def masked(self, reply: Masked | Failed, now: float) -> list[Effect]:
        """Take a masked update: how many samples it is of is told inside the sum alone."""
        active = self.active_order
        assert active is not None
        result, active.result, active.job = active.result, None, None
        assert result is not None
        if isinstance(reply, Failed):
            return [*self.trained(reply, now), DropOutput(result.job)]
        stats = structs.replace(result.stats, num_samples=1, arrivals=0, score_n=0, score=0.0)
        told = structs.replace(
            result, job=reply.job, digest=reply.digest, size=reply.size, stats=stats, note=""
        )
        return self._store(active, told, now)

    def stored(self, key: Key) -> None:
        """Note that the update is durable: the queue is free."""
        self._answers[key] = None
        if self.active_order is not None and self.active_order.key == key:
            self.active_order = None

    def store_failed(
        self, effect: MakeIdleUpdate | StoreUpdate | CarryUpdate, detail: str
    ) -> list[Effect]:
        """Give the order back whose update the disk refused."""
        if isinstance(effect, CarryUpdate):
            return self.refuse(effect.update.key, DeclineReason.ERROR, detail, remembered=True)
        return self._give_back(DeclineReason.ERROR, detail)

    def timers(self) -> Iterator[Timer]:
        """Give up an order that is over, or make the update that took its time."""
        active = self.active_order
        if active is not None:
            until, fetch = active.give_up_at, active.fetch
            if fetch.loading:
                until = max(until, fetch.moved_at + PROGRESS_S)
            yield until, lambda _: self._abandon(active, "give_up")
            if fetch.answers and fetch.whole_at is not None:
                yield active.answer_at, lambda _: fetch.acknowledge()
        if active is self.active_order and active is not None and active.stage is OrderStage.IDLING:
            yield active.idle_until, partial(self._make_idle_update, active)
