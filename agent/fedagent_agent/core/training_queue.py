"""The workbench: takes orders, fetches task and model, has them trained, refuses the rest."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from fedagent_agent.trainer_wire import Failed, Trained
from fedagent_protocol.messages import (
    MAX_CHUNKS,
    Chunk,
    Decline,
    DeclineReason,
    TrainOrder,
)
from fedagent_protocol.transfer import Layout

from .active_order import ActiveOrder
from .download import MAX_FRESH_STARTS, Download
from .effects import CancelTraining, Effect, Event, Key, Send, StoreUpdate, Train
from .order_history import OrderHistory
from .reporting import DeviceState, LinkQuality, is_stale
from .sample_counts import SampleCounts
from .session import Session
from .tasks import Tasks

MAX_MODEL_BYTES = 512 << 20
REASONS = {"no_data": DeclineReason.NO_DATA, "memory": DeclineReason.LOAD}
"""What a failure of the trainer is to the edge; any other is an error."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    reason: DeclineReason
    detail: str


class TrainingQueue:
    """At most one order at a time, and never one round twice."""

    def __init__(
        self, device: DeviceState, history: OrderHistory, tasks: Tasks, counters: Counter[str]
    ) -> None:
        self.active_order: ActiveOrder | None = None
        self._device = device
        self._history = history
        self._tasks = tasks
        self._counters = counters
        self._samples = SampleCounts()
        self._job = 0
        self._trained_at: float | None = None

    @property
    def loading(self) -> bool:
        """Whether a model is coming in for the order under way."""
        return self.active_order is not None and self.active_order.download is not None

    # ----------------------------------------------------------------- orders

    def order(
        self, key: Key, order: TrainOrder, session: Session, now: float
    ) -> tuple[list[Effect], bool]:
        """Take an order; return effects, and whether it ranks above all before.

        A newer order cancels older work. An equal or older one repeats the last
        answer, or is refused: nothing is trained twice.
        """
        current = self.active_order
        if current is not None and current.key == key:
            self._counters["order_repeated"] += 1
            return [], False
        if self._history.is_answered(key):
            return self._repeat(key), False
        refusal = self._outranked(key, session)
        if refusal is not None:
            return self._decline(key, refusal), False
        self._history.note_order(key)
        session.enter_run(key.run)
        effects = self._supersede(key)
        said: dict[str, object] = {"round": key.round, "edge": key.edge}
        effects.append(Event("ordered", said))
        refusal = self._unfit(order)
        if refusal is not None:
            return effects + self._decline(key, refusal), True
        work = ActiveOrder(key, order, now, now + order.give_up_ms / 1000)
        self.active_order = work
        return effects + self._fetch_task(work, now) + self._fetch_model(work), True

    def abort(self, why: str) -> list[Effect]:
        """The device may not train any more: withdraw from the order under way."""
        if self.active_order is None:
            return []
        return self._give_back(DeclineReason.UNAVAILABLE, why)

    def closed(self, key: Key) -> list[Effect]:
        """The edge ended the round."""
        if self.active_order is None or self.active_order.key != key:
            return []
        self._history.note_answer(key, None)
        return self._abandon("closed")

    def _repeat(self, key: Key) -> list[Effect]:
        """Say again what was said; a receipted update needs no answer any more."""
        self._counters["order_repeated"] += 1
        decline = self._history.decline_of(key)
        return [Send(key.edge, decline)] if decline is not None else []

    def _outranked(self, key: Key, session: Session) -> _Refusal | None:
        busy = DeclineReason.BUSY
        if key.run in session.retired:
            return _Refusal(busy, "this edge serves another run by now")
        newest = self._history.newest(key.run)
        if key.round <= newest:
            return _Refusal(busy, f"round {newest} was ordered already")
        current = self.active_order
        if current is not None and current.key.run != key.run and current.key.edge != key.edge:
            return _Refusal(busy, "training for another run")
        return None

    def _unfit(self, order: TrainOrder) -> _Refusal | None:
        if not 0 < order.size <= MAX_MODEL_BYTES or order.size > order.chunk_bytes * MAX_CHUNKS:
            detail = f"a model of {order.size} bytes in chunks of {order.chunk_bytes}"
            return _Refusal(DeclineReason.LOAD, detail)
        readings = self._device.readings
        if not readings.available:
            return _Refusal(DeclineReason.UNAVAILABLE, readings.reason)
        asked = self._device.price_micro
        named = order.context_seq > 0 or order.price > 0
        if named and is_stale(order.price, asked):
            detail = f"the price is {asked} micro-credits by now, not {order.price}"
            return _Refusal(DeclineReason.STALE, detail)
        return None

    def _supersede(self, key: Key) -> list[Effect]:
        """Stop what is under way, for a newer order."""
        old = self.active_order
        if old is None:
            return []
        detail = f"round {key.round} was ordered"
        effects = self._decline(old.key, _Refusal(DeclineReason.BUSY, detail))
        return effects + self._stop()

    def _decline(self, key: Key, refusal: _Refusal) -> list[Effect]:
        why, detail = refusal.reason, refusal.detail[:500]
        decline = Decline(run=key.run, round=key.round, reason=why, detail=detail)
        self._history.note_answer(key, decline)
        self._counters[f"declined_{why}"] += 1
        said: dict[str, object] = {
            "round": key.round,
            "edge": key.edge,
            "reason": str(why),
            "detail": detail,
        }
        return [Send(key.edge, decline), Event("declined", said)]

    def _give_back(self, why: DeclineReason, detail: str) -> list[Effect]:
        """Refuse the current order after all."""
        work = self.active_order
        assert work is not None
        return self._decline(work.key, _Refusal(why, detail)) + self._stop()

    def _abandon(self, why: str) -> list[Effect]:
        """Stop without an answer: nobody waits for one."""
        work = self.active_order
        assert work is not None
        self._counters[f"abandoned_{why}"] += 1
        said: dict[str, object] = {"round": work.key.round, "edge": work.key.edge, "reason": why}
        return [*self._stop(), Event("abandoned", said)]

    def _stop(self) -> list[Effect]:
        work, self.active_order = self.active_order, None
        if work is None:
            return []
        effects: list[Effect] = work.download.leave() if work.download is not None else []
        if work.job is not None:
            effects.append(CancelTraining(work.job))
        return effects

    # ------------------------------------------------------------------- task

    def _fetch_task(self, work: ActiveOrder, now: float) -> list[Effect]:
        effects = self._tasks.want(work.order.task, work.key, now)
        return effects + self._refuse_task()

    def _refuse_task(self) -> list[Effect]:
        """Give the order back if the device cannot do its task."""
        work = self.active_order
        task = self._tasks.refused(work.order.task) if work is not None else None
        return [] if task is None else self._give_back(task.reason, task.detail)

    def task_settled(self, now: float) -> list[Effect]:
        """Go on when the stream is open, or does not fit."""
        return self._refuse_task() or self._train(now)

    # ------------------------------------------------------------------ model

    def _fetch_model(self, work: ActiveOrder) -> list[Effect]:
        if self.active_order is not work:
            return []  # refused meanwhile
        order = work.order
        layout = Layout(order.size, order.chunk_bytes)
        work.download = Download(work.key.edge, work.key.run, order.model, layout)
        return work.download.begin()

    def _download(self, digest: str) -> tuple[ActiveOrder, Download] | None:
        work = self.active_order
        if work is None or work.download is None or work.order.model != digest:
            return None
        return work, work.download

    def model_opened(self, digest: str, have: frozenset[int] | None, now: float) -> list[Effect]:
        """Take in what of the model is on disk."""
        found = self._download(digest)
        if found is None:
            return []
        work, download = found
        if have is None:
            work.download, work.model_at = None, now
            return self._train(now)
        return download.opened(have)

    def subscribed(self, edge: str, digest: str, now: float, *, ok: bool) -> list[Effect]:
        """Take in that chunks can come."""
        found = self._download(digest)
        if found is None or found[1].edge != edge:
            return []
        work, download = found
        if not ok:
            detail = "the broker refused the subscription to the model"
            return self._give_back(DeclineReason.ERROR, detail)
        return download.subscribed(work.key.round, now)

    def chunk(self, edge: str, chunk: Chunk, now: float) -> list[Effect]:
        """Take in a piece of the model.

        Raises:
            ChunkError: It does not fit.
        """
        found = self._download(chunk.digest)
        if found is None or found[1].edge != edge:
            self._counters["chunk_unasked"] += 1
            return []
        work, download = found
        return download.take(chunk, work.key.round, now, self._counters)

    def model_finished(
        self, digest: str, link: LinkQuality | None, now: float, *, ok: bool
    ) -> list[Effect]:
        """Take in whether the model is what it should be."""
        found = self._download(digest)
        if found is None:
            return []
        work, download = found
        if not ok:
            self._counters["digest_mismatch"] += 1
            if download.fresh_starts >= MAX_FRESH_STARTS:
                detail = "the model did not hash to its digest"
                return self._give_back(DeclineReason.ERROR, detail)
            return download.start_over()
        download.measure(link)
        work.download, work.model_at = None, now
        return self._train(now)

    def model_unwritable(self, digest: str, detail: str) -> list[Effect]:
        """The disk refused the model that is coming in."""
        if self._download(digest) is None:
            return []
        return self._give_back(DeclineReason.ERROR, f"disk: {detail}")

    # --------------------------------------------------------------- training

    def _train(self, now: float) -> list[Effect]:
        """Train, once both task and model are here."""
        work = self.active_order
        if work is None or work.model_at is None or work.job is not None:
            return []
        task = self._tasks.opened(work.order.task)
        if task is None:
            return []
        self._job += 1
        work.job, work.train_at = self._job, now
        order = work.order
        left = max(0.1, work.give_up_at - now)
        limit_s = self._device.load_limit(order.load_limit_ms / 1000)
        return [
            Train(
                work.job,
                work.key,
                order.task,
                order.model,
                order.iterations,
                left,
                limit_s,
                task.recipe,
            )
        ]

    def trained(self, job: int, result: Trained | Failed, now: float) -> list[Effect]:
        """Take in how a training ended."""
        return self.note_samples(result.counters) + self._ended(job, result, now)

    def note_samples(self, counters: Mapping[str, int]) -> list[Effect]:
        """Take in which samples are not learnt from; tell if there are more."""
        if not self._samples.note(counters):
            return []
        return [Event("samples", {"counters": dict(self._samples.totals)})]

    def _ended(self, job: int, result: Trained | Failed, now: float) -> list[Effect]:
        work = self.active_order
        if work is None or work.job != job:
            self._counters["training_unwanted"] += 1
            return []
        if isinstance(result, Failed):
            self._counters[f"training_{result.reason}"] += 1
            why = REASONS.get(result.reason, DeclineReason.ERROR)
            work.job = None
            return self._give_back(why, _detail(why, result))
        # The first training also counts what had gathered before; that is no rate.
        rate = None
        if self._trained_at is not None and work.train_at > self._trained_at:
            rate = result.arrivals / (work.train_at - self._trained_at)
        self._trained_at = work.train_at
        self._counters["load_limited"] += result.limited
        self._device.note_training(
            per_iteration=result.seconds_per_iteration,
            arrivals_per_s=rate,
            arrivals_per_step=result.arrivals_per_step,
        )
        return [StoreUpdate(job, work.kept(result, now))]

    def finished(self, key: Key) -> list[Effect]:
        """The update is durable: the bench is free."""
        self._history.note_answer(key, None)
        if self.active_order is not None and self.active_order.key == key:
            self.active_order = None
        return []

    def store_failed(self, key: Key, detail: str) -> list[Effect]:
        """The disk refused the update."""
        if self.active_order is None or self.active_order.key != key:
            return []
        self.active_order.job = None
        return self._give_back(DeclineReason.ERROR, f"disk: {detail}")

    # ------------------------------------------------------------------- time

    def reconnected(self, edge: str, now: float) -> list[Effect]:
        """The edge is back: ask again for what may be lost."""
        work = self.active_order
        if work is None or work.key.edge != edge:
            return []
        effects = self._tasks.ask(work.order.task, work.key, now)
        if work.download is not None:
            effects += work.download.reconnected()
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Let time pass."""
        work = self.active_order
        if work is None:
            return []
        if now >= work.give_up_at:
            self._history.note_answer(work.key, None)
            return self._abandon("give_up")
        effects = self._tasks.again(work.order.task, work.key, now)
        due = work.download.due if work.download is not None else None
        if work.download is not None and due is not None and now >= due:
            effects += work.download.ask(work.key.round, now)
        return effects

    def dues(self) -> list[float]:
        """Return when `tick` is wanted."""
        work = self.active_order
        if work is None:
            return []
        times = [work.give_up_at]
        if (asked := self._tasks.due(work.order.task)) is not None:
            times.append(asked)
        if work.download is not None and work.download.due is not None:
            times.append(work.download.due)
        return times


def _detail(why: DeclineReason, failed: Failed) -> str:
    """Return the detail of a decline; its reason is said beside it already."""
    if failed.reason == why and failed.detail:
        return failed.detail
    return f"{failed.reason}: {failed.detail}".rstrip(": ")
