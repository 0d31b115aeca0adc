"""The training queue: takes orders, has task and model fetched and trained, refuses the rest."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import structs

from fedagent_agent.trainer.frames import Cancel, Failed, Mask, Masked, Train, Trained
from fedagent_node.effects import Effect, Emit, Send
from fedagent_protocol.messages import (
    MAX_ROUNDS_AHEAD,
    Decline,
    DeclineReason,
    TrainOrder,
    UpdateOffer,
)

from .device import DeviceState, is_stale
from .effects import (
    DropOutput,
    Key,
    MakeIdleUpdate,
    PendingUpdate,
    StoreUpdate,
    state_name,
)
from .fetch import REASONS, Fetch, Task, Tasks, is_oversized
from .masking import Masking
from .session import Session

REMEMBERED = 64
KEPT_S = 60.0
"""How long work goes on after its round, until an order wants it."""


@dataclass(slots=True)
class ActiveOrder:
    """One order from its arrival to the update."""

    order: TrainOrder
    fetch: Fetch
    ordered_at: float  # DT starts here
    give_up_at: float
    job: int | None = None
    train_at: float = 0.0  # LC starts here
    idle_until: float | None = None  # when an update without training is made
    unmasked: Trained | None = None  # the training's end, while its update has no masks yet
    agreed: bytes = b""  # the signature of whose masks it wears
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
        return work == named and self.unmasked is None

    def update(self, result: Trained, now: float) -> PendingUpdate:
        """Describe the finished update."""
        assert self.fetch.model_at is not None
        stats = structs.replace(
            result.stats,
            dt_ms=_ms(self.fetch.model_at - self.ordered_at),
            prepare_ms=_ms(self.train_at - self.fetch.model_at),
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
            agreed=self.agreed,
        )
        return PendingUpdate(self.key, offer, self.order.credit)


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


class _Refusal(NamedTuple):
    reason: DeclineReason
    detail: str


class TrainingQueue:
    """At most one order at a time, and never one round twice."""

    def __init__(
        self,
        device: DeviceState,
        tasks: Tasks,
        jobs: Iterator[int],
        counters: Counter[str],
        answered: Iterable[Key],
        releases: Mapping[str, int],
        masking: Masking,
    ) -> None:
        self.active_order: ActiveOrder | None = None
        self._device = device
        self._tasks = tasks
        self._jobs = jobs
        self._counters = counters
        self._samples: Counter[str] = Counter()
        self._stream_samples: Mapping[str, int] = {}
        self._trained_at: float | None = None
        self._releases = dict(releases)
        self._masking = masking
        self._newest: OrderedDict[str, int] = OrderedDict()
        self._answers: OrderedDict[Key, Decline | None] = OrderedDict()
        """Refusals, by their order; None: an update answered it, or nobody waits any more."""
        for key in answered:
            self._note_order(key)
            self._note_answer(key, None)

    @property
    def fetch(self) -> Fetch | None:
        """What is fetched for the order under way."""
        return self.active_order.fetch if self.active_order is not None else None

    # ----------------------------------------------------------------- orders

    def order(
        self,
        key: Key,
        order: TrainOrder,
        session: Session,
        now: float,
        *,
        carry: Callable[[], list[Effect]] = list,
    ) -> tuple[list[Effect], bool]:
        """Take an order; return effects, and whether it ranks above all before.

        A newer order cancels older work, unless it wants that. An older one repeats the last
        answer, or is refused. Work that the order names goes on; `carry` answers with an update
        of it that is there, or with nothing.
        """
        active = self.active_order
        if active is not None and active.key == key:
            self._counters["order_repeated"] += 1
            return active.fetch.acknowledge(), False
        if key in self._answers:
            # A receipted update needs no answer any more.
            self._counters["order_repeated"] += 1
            decline = self._answers[key]
            return [Send(key.edge, decline)] if decline is not None else [], False
        if (refusal := self._outranked(key, session)) is not None:
            return self._decline(key, *refusal), False
        self._note_order(key)
        session.enter_run(key.run)
        if active is not None and active.is_wanted(key, order) and self._unfit(order) is None:
            return self._go_on_in(active, key, order, now), True
        effects: list[Effect] = []
        if active is not None:
            detail = f"round {key.round} was ordered"
            effects += self._give_back(DeclineReason.BUSY, detail)
        effects.append(Emit("ordered", _named(key)))
        if (refusal := self._unfit(order)) is not None:
            return effects + self._decline(key, *refusal), True
        if carried := carry():
            # Its update answers the order once the disk has it for this round.
            self._note_answer(key, None)
            return effects + carried, True
        fetch = Fetch(key, order, self._tasks, self._counters)
        self.active_order = ActiveOrder(order, fetch, now, now + order.give_up_ms / 1000)
        effects += self._tasks.want(order.task, key, now)
        refused = self._refuse_task()
        return effects + (refused or fetch.begin()), True

    def _go_on_in(
        self, active: ActiveOrder, key: Key, order: TrainOrder, now: float
    ) -> list[Effect]:
        """Answer a later order with the work under way."""
        self._counters["carried_on"] += 1
        active.made_in = active.made_in or active.key.round
        active.give_up_at = now + order.give_up_ms / 1000
        ordered = Emit("ordered", _named(key))
        return [ordered, *active.fetch.go_on(key, now)]

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
        if self.active_order is None or self.active_order.key != key:
            return []
        if kept:
            self.active_order.give_up_at = max(self.active_order.give_up_at, now + KEPT_S)
            return []
        return self._abandon("closed")

    def _outranked(self, key: Key, session: Session) -> _Refusal | None:
        busy = DeclineReason.BUSY
        if key.run in session.retired:
            return _Refusal(busy, "this edge now serves another run")
        newest = self._newest.get(key.run, 0)
        if key.round > max(newest, session.round) + MAX_ROUNDS_AHEAD:
            return _Refusal(busy, f"{key.round} is implausibly far beyond round {newest}")
        if key.round <= newest:
            return _Refusal(busy, f"round {newest} was already ordered")
        active = self.active_order
        if active is None or active.key.edge == key.edge:
            return None
        if active.key.run != key.run:
            return _Refusal(busy, "training for another run")
        if key.round < active.key.round:
            # An edge that says it is at an earlier round ends no later work of another one.
            return _Refusal(busy, f"round {active.key.round} is under way")
        return None

    def _unfit(self, order: TrainOrder) -> _Refusal | None:
        if is_oversized(order):
            detail = f"a model of {order.size} bytes in chunks of {order.chunk_bytes}"
            return _Refusal(DeclineReason.LOAD, detail)
        readings = self._device.readings
        if not readings.available:
            return _Refusal(DeclineReason.UNAVAILABLE, readings.reason)
        price = self._device.price_micro
        named = order.context_seq > 0 or order.price > 0
        if named and is_stale(order.price, price):
            detail = f"the price is now {price} micro-credits, not {order.price}"
            return _Refusal(DeclineReason.STALE, detail)
        return None

    def refuse(self, key: Key, reason: DeclineReason, detail: str) -> list[Effect]:
        """Decline an order that is none of the queue's: nothing of it is remembered."""
        return self._say_no(
            Decline(run=key.run, round=key.round, reason=reason, detail=detail), key
        )

    def _decline(self, key: Key, reason: DeclineReason, detail: str) -> list[Effect]:
        decline = Decline(run=key.run, round=key.round, reason=reason, detail=detail[:500])
        self._note_answer(key, decline)
        return self._say_no(decline, key)

    def _say_no(self, decline: Decline, key: Key) -> list[Effect]:
        self._counters[f"declined_{decline.reason}"] += 1
        fields: dict[str, object] = {
            "round": key.round,
            "edge": key.edge,
            "reason": str(decline.reason),
            "detail": decline.detail,
        }
        return [Send(key.edge, decline), Emit("declined", fields)]

    def _give_back(self, reason: DeclineReason, detail: str) -> list[Effect]:
        active = self.active_order
        assert active is not None
        return self._decline(active.key, reason, detail) + self._stop()

    def _abandon(self, reason: str) -> list[Effect]:
        """Stop without an answer: the edge waits for none."""
        active = self.active_order
        assert active is not None
        self._note_answer(active.key, None)
        self._counters[f"abandoned_{reason}"] += 1
        fields: dict[str, object] = {
            "round": active.key.round,
            "edge": active.key.edge,
            "reason": reason,
        }
        return [*self._stop(), Emit("abandoned", fields)]

    def _stop(self) -> list[Effect]:
        active, self.active_order = self.active_order, None
        assert active is not None
        effects = active.fetch.pause()
        if active.job is not None and active.idle_until is None:
            effects.append(Cancel(job=active.job))
        if active.unmasked is not None:
            effects.append(DropOutput(active.unmasked.job))
        return effects

    def _note_order(self, key: Key) -> None:
        self._newest[key.run] = max(self._newest.get(key.run, 0), key.round)
        self._newest.move_to_end(key.run)
        while len(self._newest) > REMEMBERED:
            self._newest.popitem(last=False)

    def _note_answer(self, key: Key, answer: Decline | None) -> None:
        self._answers[key] = answer
        while len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)

    # --------------------------------------------------------------- training

    def go_on(self, now: float) -> list[Effect]:
        """Do the next step that nothing stands in the way of."""
        active = self.active_order
        if active is None:
            return []
        task = active.order.task
        if (spec := self._tasks.masked(task)) is not None:
            begun = self._masking.begin(active.key, spec, now, active.give_up_at)
            if begun:
                return begun + self.go_on(now)
        if active.job is not None:
            return []
        if active.unmasked is not None:
            return self._mask(active)
        if refused := self._refuse_task():
            return refused
        fetch = active.fetch
        if fetch.problem:
            return self._give_back(DeclineReason.ERROR, fetch.problem)
        opened = self._tasks.opened(task)
        return self._train(active, opened, now) if opened and fetch.model_at is not None else []

    def _refuse_task(self) -> list[Effect]:
        active = self.active_order
        task = self._tasks.refused(active.fetch.wanted.task) if active is not None else None
        return [] if task is None else self._give_back(task.reason, task.detail)

    def _train(self, active: ActiveOrder, task: Task, now: float) -> list[Effect]:
        if used_up := self._used_up(active.key.run, task):
            self._device.spent[active.key.run] = used_up
        if used_up := used_up or self._used_up(active.key.run, task, active.order.releases):
            return self._give_back(DeclineReason.PRIVACY, used_up)
        active.job, active.train_at = next(self._jobs), now
        key, order = active.key, active.order
        fields: dict[str, object] = {
            "round": key.round,
            "edge": key.edge,
            "run": key.run,
            "recipe": task.recipe,
        }
        effects: list[Effect] = [Emit("training", fields)]
        if task.idle:
            active.idle_until = now + self._device.slow_s
            return effects + self._make_idle_update(now)
        train = Train(
            job=active.job,
            model=order.model,
            out=key.file_name,
            iterations=order.iterations,
            load_limit_s=self._device.load_limit(order.load_limit_ms / 1000),
            timeout_s=max(0.1, active.give_up_at - now),
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
        privacy, releases = task.spec.privacy, max(self._releases.get(run, 0), known)
        if not privacy.wanted or releases < privacy.releases:
            return ""
        return f"epsilon {privacy.epsilon:g} of this run is used up by {releases} updates"

    def _charge(self, run: str, task: Task) -> int:
        """Return the number of the update that is about to be stored; 0 where none is counted."""
        assert task.spec is not None
        if not task.spec.privacy.wanted:
            return 0
        # What the disk refuses stays counted: nobody knows how far it came.
        self._releases[run] = self._releases.get(run, 0) + 1
        if used_up := self._used_up(run, task):
            self._device.spent[run] = used_up
        return self._releases[run]

    def _make_idle_update(self, now: float) -> list[Effect]:
        active = self.active_order
        if active is None or active.idle_until is None or now < active.idle_until:
            return []
        assert active.job is not None
        active.idle_until = None
        order = active.order
        return [MakeIdleUpdate(active.job, order.model, order.round, order.iterations)]

    def trained(self, result: Trained | Failed, now: float) -> list[Effect]:
        """Take the end of the training under way."""
        active = self.active_order
        assert active is not None
        if isinstance(result, Failed):
            self._counters[f"training_{result.reason}"] += 1
            reason = REASONS.get(result.reason, DeclineReason.ERROR)
            active.job = None
            return self._give_back(reason, _detail(reason, result))
        # The first training also counts what had gathered before; that is no rate.
        stats, rate = result.stats, None
        if self._trained_at is not None and active.train_at > self._trained_at:
            rate = stats.arrivals / (active.train_at - self._trained_at)
        self._trained_at = active.train_at
        self._counters["load_limited"] += stats.limited
        self._device.note_training(
            per_iteration=stats.seconds_per_iteration,
            arrivals_per_s=rate,
            arrivals_per_step=stats.arrivals / max(1, stats.steps),
        )
        if self._tasks.masked(active.order.task) is not None:
            active.job, active.unmasked = None, result
            return self._mask(active)
        return self._store(active, result, now)

    def _store(self, active: ActiveOrder, result: Trained, now: float) -> list[Effect]:
        task = self._tasks.opened(active.order.task)
        if task is None:
            # What is not known to cost nothing must not leave.
            active.job = None
            refused = self._give_back(DeclineReason.ERROR, "its task is not open any more")
            return [*refused, DropOutput(result.job)]
        charge = self._charge(active.key.run, task)
        return [StoreUpdate(result.job, active.update(result, now), result.offset, charge)]

    def _mask(self, active: ActiveOrder) -> list[Effect]:
        """Have the update masked, as soon as it is settled by whom."""
        result, seeds = active.unmasked, self._masking.seeds(active.key)
        if result is None or seeds is None:
            return []
        active.job = next(self._jobs)
        weight = self._tasks.weight(active.order.task, result.stats.num_samples)
        return [Mask(job=active.job, out=active.key.file_name, weight=weight, seeds=seeds)]

    def masked(self, reply: Masked, now: float) -> list[Effect]:
        """Take a masked update: how many samples it is of is told inside the sum alone."""
        active = self.active_order
        assert active is not None
        result, active.unmasked = active.unmasked, None
        assert result is not None
        active.agreed = self._masking.agreement(active.key)
        stats = structs.replace(result.stats, num_samples=1, arrivals=0, score_n=0, score=0.0)
        told = structs.replace(
            result, job=reply.job, digest=reply.digest, size=reply.size, stats=stats, note=""
        )
        return self._store(active, told, now)

    def note_samples(self, counters: Mapping[str, int]) -> list[Effect]:
        """Add samples that were not learnt from since the stream was opened, by reason."""
        before = self._samples.copy()
        for reason, n in counters.items():
            last = self._stream_samples.get(reason, 0)
            # Fewer than before: the stream was opened anew, and all of them are new.
            self._samples[reason] += n - last if n >= last else n
        self._stream_samples = dict(counters)
        changed = self._samples != before
        return [Emit("samples", {"counters": dict(self._samples)})] if changed else []

    def stored(self, key: Key) -> None:
        """Note that the update is durable: the queue is free."""
        self._note_answer(key, None)
        if self.active_order is not None and self.active_order.key == key:
            self.active_order = None

    def store_failed(self, key: Key, detail: str) -> list[Effect]:
        """Give the order back whose update the disk refused."""
        if self.active_order is None or self.active_order.key != key:
            return []
        self.active_order.job = None
        return self._give_back(DeclineReason.ERROR, detail)

    def carry_failed(self, key: Key, detail: str) -> list[Effect]:
        """Decline the order for which the disk did not take an update over."""
        return self._decline(key, DeclineReason.ERROR, detail)

    # ------------------------------------------------------------------- time

    def tick(self, now: float) -> list[Effect]:
        """Give up an order that is over, or ask again for what did not come."""
        active = self.active_order
        if active is None:
            return []
        if now >= active.give_up_at:
            return self._abandon("give_up")
        return active.fetch.tick(now) + self._make_idle_update(now)

    def dues(self) -> list[float]:
        """Return when `tick` is wanted."""
        active = self.active_order
        if active is None:
            return []
        idle = [active.idle_until] if active.idle_until is not None else []
        return [active.give_up_at, *active.fetch.dues(), *idle]


def _named(key: Key) -> dict[str, object]:
    return {"run": key.run, "round": key.round, "edge": key.edge}


def _detail(reason: DeclineReason, failed: Failed) -> str:
    if failed.reason == reason and failed.detail:
        return failed.detail
    return f"{failed.reason}: {failed.detail}".rstrip(": ")
