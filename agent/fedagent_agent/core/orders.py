"""Orders: taken or refused; then task and model are fetched, trained, and stored as an update."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field
from enum import Enum

from msgspec import structs

from fedagent_agent.trainer.frames import Cancel, Failed, Mask, Masked, Train, Trained
from fedagent_node.effects import Effect, Emit, Send
from fedagent_node.timers import Timers
from fedagent_protocol.errors import credits_text
from fedagent_protocol.messages import (
    MAX_ROUNDS_AHEAD,
    Decline,
    DeclineReason,
    TrainOrder,
    UpdateOffer,
    Weighting,
)

from .device import DeviceState
from .download import Download
from .effects import (
    CarryUpdate,
    DropOutput,
    Key,
    MakeIdleUpdate,
    Newest,
    PendingUpdate,
    StoreUpdate,
    state_name,
)
from .masking import Masking
from .session import Session
from .tasks import Jobs, Task, Tasks, TaskState, why
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


class Stage(Enum):
    """How far an order is."""

    GETTING = "getting"  # task and model are fetched
    WORKING = "working"  # the trainer or the disk has it, or a task without training takes its time
    UNMASKED = "unmasked"  # trained; whose masks the update wears is not settled


@dataclass(slots=True)
class ActiveOrder:
    """One order from its arrival to the update."""

    key: Key
    order: TrainOrder
    fetch: Download
    ordered_at: float  # when DT starts
    give_up_at: float
    stage: Stage = Stage.GETTING
    job: int | None = None  # of the trainer, while it works
    train_at: float = 0.0  # when LC starts
    result: Trained | None = None  # the training's end, while its update has no masks yet
    made_in: int = 0  # the earlier round that it was ordered in first


@dataclass(slots=True)
class Orders:
    """At most one order at a time, and never one round twice."""

    _device: DeviceState
    _tasks: Tasks
    _uploads: Uploads
    _masking: Masking
    _jobs: Jobs
    _counters: Counter[str]
    _timers: Timers
    _releases: dict[str, int]  # updates that have cost privacy, by run
    answered: InitVar[Iterable[Key]]  # with an update, before
    active: ActiveOrder | None = None
    _trained_at: float | None = None
    _newest: Newest[str, int] = field(default_factory=lambda: Newest(REMEMBERED))
    _answers: Newest[Key, Decline | None] = field(default_factory=lambda: Newest(REMEMBERED))
    """Refusals, by their order; None: an update answered it, or nobody waits any more."""

    def __post_init__(self, answered: Iterable[Key]) -> None:
        for key in answered:
            self._newest[key.run] = max(self._newest.get(key.run, 0), key.round)
            self._answers[key] = None

    # ----------------------------------------------------------------- orders

    def order(
        self, key: Key, order: TrainOrder, session: Session, now: float
    ) -> tuple[list[Effect], bool]:
        """Take an order; return effects, and whether it ranks above all before.

        A newer order cancels older work, unless it wants that: it is answered with the rest. An
        older one repeats the last answer, or is refused.
        """
        active = self.active
        if active is not None and active.key == key:
            return active.fetch.acknowledge(), False
        if key in self._answers:
            # An edge that asks after a receipt has forgotten that it refused the update.
            decline = self._answers[key] or Decline(
                run=key.run, round=key.round, reason=DeclineReason.BUSY, detail=ANSWERED
            )
            return [Send(key.edge, decline)], False
        if hindrance := self._hindrance(key, session):
            return self.refuse(key, DeclineReason.BUSY, hindrance, remembered=True), False
        self._newest[key.run], session.run = key.round, key.run
        of = order.model, order.size, order.chunk_bytes
        fetch = Download(key, *of, self._counters, self._timers, answers=True, first=order.first)
        refusal = self._unfit(order, fetch)
        give_up_at = now + order.give_up_ms / 1000
        effects: list[Effect] = []
        ordered = Emit("ordered", {"run": key.run, "round": key.round, "edge": key.edge})
        if active is not None and refusal is None and _wants(key, order, active):
            # The work under way answers the later order.
            active.made_in, active.key = active.made_in or active.key.round, key
            self._wait(active, give_up_at, now)
            return [ordered, *active.fetch.go_on(key, now)], True
        if active is not None:
            effects = self._give_back(DeclineReason.BUSY, f"round {key.round} was ordered")
        effects.append(ordered)
        if refusal is not None:
            return effects + self.refuse(key, *refusal, remembered=True), True
        if order.made_in and (carried := self._uploads.carry(key, order)):
            # Its update answers the order once the disk has it for this round.
            self._answers[key] = None
            return effects + carried, True
        active = self.active = ActiveOrder(key, order, fetch, now, give_up_at)
        self._wait(active, give_up_at, now)
        effects += self._tasks.want(order.task, key, now)
        task = self._tasks.of(order.task)
        if task is not None and task.state is TaskState.REFUSED:
            return effects + self._give_back(*task.refusal), True
        return effects + fetch.begin(), True

    def _wait(self, active: ActiveOrder, give_up_at: float, now: float) -> None:
        active.give_up_at = give_up_at
        self._timers.at("give-up", give_up_at, self._give_up)
        self._timers.at("answer", now + ANSWER_S, self._answer)

    def _answer(self, now: float) -> list[Effect]:  # noqa: ARG002 - a timer
        fetch = self.active.fetch if self.active is not None else None
        return fetch.acknowledge() if fetch is not None and fetch.answers else []

    def _hindrance(self, key: Key, session: Session) -> str:
        """Return why an order comes after another one; an empty string if it does not."""
        newest, active = self._newest.get(key.run, 0), self.active
        if key.round > max(newest, session.round) + MAX_ROUNDS_AHEAD:
            return f"{key.round} is implausibly far beyond round {newest}"
        if key.round <= newest:
            return f"round {newest} was already ordered"
        if active is not None and active.key.edge != key.edge:
            if active.key.run != key.run:
                return "training for another run"
            if key.round < active.key.round:
                # An edge that says it is at an earlier round ends no later work of another one.
                return f"round {active.key.round} is under way"
        return ""

    def _unfit(self, order: TrainOrder, fetch: Download) -> tuple[DeclineReason, str] | None:
        readings, price = self._device.readings, self._device.price_micro
        if not fetch.fits:
            detail = f"a model of {order.size} bytes in chunks of {order.chunk_bytes}"
            return DeclineReason.LOAD, detail
        if not readings.available:
            return DeclineReason.UNAVAILABLE, readings.reason
        named = order.context_seq > 0 or order.price > 0
        if named and 10 * price > 11 * order.price:
            now, then = credits_text(price), credits_text(order.price)
            return DeclineReason.STALE, f"the price is now {now} credits, not {then}"
        return None

    def welcomed(self, run: str, round_: int) -> None:
        """Go back to an edge's newest round, if an order that was damaged has led beyond it."""
        if 0 < round_ < self._newest.get(run, 0):
            self._counters["round_went_back"] += 1
            self._newest[run] = round_

    def outranked(self, key: Key) -> bool:
        """Return whether an order of this number is refused for a newer one."""
        return key.round < self._newest.get(key.run, 0)

    # ------------------------------------------------------------- ends of an order

    def refuse(
        self, key: Key, reason: DeclineReason, detail: str, *, remembered: bool = False
    ) -> list[Effect]:
        """Decline an order; one that was never taken up is not remembered."""
        detail = detail[:500]
        self._counters[f"declined_{reason}"] += 1
        fields = {"round": key.round, "edge": key.edge, "reason": str(reason), "detail": detail}
        decline = Decline(run=key.run, round=key.round, reason=reason, detail=detail)
        if remembered:
            self._answers[key] = decline
        return [Send(key.edge, decline), Emit("declined", fields)]

    def abort(self, detail: str) -> list[Effect]:
        """Give the order under way back: the device may not train any more."""
        return self._give_back(DeclineReason.UNAVAILABLE, detail) if self.active else []

    def _give_back(self, reason: DeclineReason, detail: str) -> list[Effect]:
        assert self.active is not None
        return self.refuse(self.active.key, reason, detail, remembered=True) + self._stop()

    def closed(self, key: Key, now: float, *, kept: bool) -> list[Effect]:
        """Stop at the end of the round, unless its edge may want the work in a later one."""
        active = self.active
        if active is None or active.key != key:
            return []
        if kept:
            active.give_up_at = max(active.give_up_at, now + KEPT_S)
            return []
        return self._abandon("closed")

    def _give_up(self, now: float) -> list[Effect]:
        active = self.active
        if active is None:
            return []
        until = active.give_up_at
        if active.fetch.loading:
            until = max(until, active.fetch.moved_at + PROGRESS_S)
        if now < until:
            self._timers.at("give-up", until, self._give_up)
            return []
        return self._abandon("give_up")

    def _abandon(self, reason: str) -> list[Effect]:
        """Stop without an answer: the edge waits for none."""
        assert self.active is not None
        key = self.active.key
        self._answers[key] = None
        self._counters[f"abandoned_{reason}"] += 1
        fields = {"round": key.round, "edge": key.edge, "reason": reason}
        return [*self._stop(), Emit("abandoned", fields)]

    def _stop(self) -> list[Effect]:
        active, effects = self.active, list[Effect]()
        assert active is not None
        active.fetch.pause()
        if self._jobs.pop(active.job or 0, None) is not None:
            effects.append(Cancel(job=active.job or 0))
        if active.result is not None:
            effects.append(DropOutput(active.result.job))
        self._end()
        return effects

    def _end(self) -> None:
        self.active = None
        for name in ("give-up", "answer", "idle"):
            self._timers.stop(name)

    # --------------------------------------------------------------- training

    def go_on(self, now: float) -> list[Effect]:
        """Do the next step of the order under way that nothing stands in the way of."""
        active = self.active
        assert active is not None
        key, fetch, task = active.key, active.fetch, self._tasks.of(active.order.task)
        effects: list[Effect] = []
        if task is not None and (masks := task.masks) is not None:
            effects = self._masking.begin(key, masks, now, active.give_up_at)
        if active.stage is Stage.UNMASKED:
            return effects + self._mask(active)
        if active.stage is not Stage.GETTING:
            return effects
        if task is not None and task.state is TaskState.REFUSED:
            return effects + self._give_back(*task.refusal)
        if fetch.problem:
            return effects + self._give_back(DeclineReason.ERROR, fetch.problem)
        if task is None or task.state is not TaskState.OPEN:
            # Again, if it got lost.
            return effects + self._tasks.want(active.order.task, key, now)
        return effects + self._train(active, task, now) if fetch.whole_at is not None else effects

    def _train(self, active: ActiveOrder, task: Task, now: float) -> list[Effect]:
        key, order, device = active.key, active.order, self._device
        if used_up := self._used_up(key.run, task, order.releases):
            return self._give_back(DeclineReason.PRIVACY, used_up)
        active.stage, active.train_at = Stage.WORKING, now
        active.job = self._jobs.start(self._trained)
        fields = {"round": key.round, "edge": key.edge, "run": key.run, "recipe": task.recipe}
        effects: list[Effect] = [Emit("training", fields)]
        if task.idle:
            out = key.file_name
            made = MakeIdleUpdate(active.job, order.model, order.round, order.iterations, out)
            if device.slow_s <= 0:
                return [*effects, made]
            self._timers.at("idle", now + device.slow_s, lambda _: [made])
            return effects
        train = Train(
            job=active.job,
            model=order.model,
            out=key.file_name,
            iterations=order.iterations,
            load_limit_s=device.load_limit(order.load_limit_ms / 1000),
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

    def _trained(self, result: Trained | Failed, now: float) -> list[Effect]:
        """Take the end of the training under way."""
        active = self.active
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
        task = self._tasks.of(active.order.task)
        if task is not None and task.masks is not None:
            active.stage, active.result = Stage.UNMASKED, result
            return self._mask(active)
        return self._store(active, result, now)

    def _mask(self, active: ActiveOrder) -> list[Effect]:
        """Have the update masked, as soon as it is settled by whom."""
        result, seeds = active.result, self._masking.seeds(active.key)
        task = self._tasks.of(active.order.task)
        if result is None or seeds is None or task is None or task.spec is None:
            return []
        active.stage, active.job = Stage.WORKING, self._jobs.start(self._masked)
        most, weight = task.spec.limits.max_samples, 1
        if task.spec.weighting is not Weighting.UNIFORM:
            weight = max(1, min(result.stats.num_samples, most))
        return [Mask(job=active.job, out=active.key.file_name, weight=weight, seeds=seeds)]

    def _masked(self, reply: Masked | Failed, now: float) -> list[Effect]:
        """Take a masked update: how many samples it is of is told inside the sum alone."""
        active = self.active
        assert active is not None
        result, active.result, active.job = active.result, None, None
        assert result is not None
        if isinstance(reply, Failed):
            return [*self._trained(reply, now), DropOutput(result.job)]
        stats = structs.replace(result.stats, num_samples=1, arrivals=0, score_n=0, score=0.0)
        told = structs.replace(
            result, job=reply.job, digest=reply.digest, size=reply.size, stats=stats, note=""
        )
        return self._store(active, told, now)

    def _store(self, active: ActiveOrder, result: Trained, now: float) -> list[Effect]:
        key, order, whole_at, releases = active.key, active.order, active.fetch.whole_at, 0
        task, agreed = self._tasks.of(order.task), b""
        # What is not known to cost nothing must not leave.
        assert task is not None
        assert task.spec is not None
        assert whole_at is not None
        if task.masks is not None:
            agreed = self._masking.agreement(key)
        if task.spec.privacy.wanted:
            # What the disk refuses stays counted: nobody knows how far it came.
            releases = self._releases[key.run] = self._releases.get(key.run, 0) + 1
            self._used_up(key.run, task)
        spans = {
            "dt_ms": whole_at - active.ordered_at,
            "prepare_ms": active.train_at - whole_at,
            "lc_ms": now - active.train_at,
            "train_ms": result.train_s,
        }
        times = {name: max(0, round(1000 * seconds)) for name, seconds in spans.items()}
        offer = UpdateOffer(
            run=key.run,
            round=key.round,
            digest=result.digest,
            size=result.size,
            chunk_bytes=order.chunk_bytes,
            base=order.model,
            task=order.task,
            stats=structs.replace(result.stats, **times),
            note=result.note[:500],
            made_in=active.made_in,
            agreed=agreed,
        )
        update = PendingUpdate(key, offer, order.credit)
        place = None if task.idle else (result.offset, result.mark)
        return [StoreUpdate(result.job, update, place, releases)]

    def stored(self, key: Key) -> None:
        """Note that the update is durable: the next order may come."""
        self._answers[key] = None
        if self.active is not None and self.active.key == key:
            self._end()

    def store_failed(
        self, effect: MakeIdleUpdate | StoreUpdate | CarryUpdate, detail: str
    ) -> list[Effect]:
        """Give the order back whose update the disk refused."""
        if isinstance(effect, CarryUpdate):
            return self.refuse(effect.update.key, DeclineReason.ERROR, detail, remembered=True)
        return self._give_back(DeclineReason.ERROR, detail)


def _wants(key: Key, order: TrainOrder, active: ActiveOrder) -> bool:
    """Whether a later order may be answered with the work under way."""
    mine, number = active.key, active.made_in or active.key.round
    work = (mine.edge, mine.run, active.order.task, active.order.model, number)
    named = (key.edge, key.run, order.task, order.made_from, order.made_in)
    return work == named and active.result is None
