"""The order under way, and which orders were answered: no round is trained twice."""

from collections import OrderedDict
from dataclasses import dataclass, field

from msgspec import structs

from fedagent_agent.trainer.frames import Trained
from fedagent_protocol.messages import Decline, TrainOrder, UpdateOffer

from .effects import Key, PendingUpdate
from .fetch import Fetch

REMEMBERED = 64


@dataclass(slots=True)
class ActiveOrder:
    """One order from its arrival to the update."""

    order: TrainOrder
    fetch: Fetch
    ordered_at: float
    """DT starts here."""
    give_up_at: float
    job: int | None = None
    """Number of the training, once it runs."""
    train_at: float = 0.0
    """LC starts here."""
    idle_until: float | None = None
    """When an update without training is made."""

    @property
    def key(self) -> Key:
        """Edge, run and round."""
        return self.fetch.key

    def update(self, result: Trained, now: float) -> PendingUpdate:
        """Describe the finished update."""
        assert self.fetch.model_at is not None
        stats = structs.replace(
            result.stats,
            dt_ms=_ms(self.fetch.model_at - self.ordered_at),
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
        )
        return PendingUpdate(self.key, offer, self.order.credit)


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


@dataclass(slots=True)
class OrderHistory:
    """Ranks and answers of the newest orders; bounded.

    An answer is the `Decline` that was sent, or None for an update.
    """

    _newest: OrderedDict[str, int] = field(default_factory=OrderedDict)
    _answers: OrderedDict[Key, Decline | None] = field(default_factory=OrderedDict)

    def newest(self, run: str) -> int:
        """Return the highest round of a run that was ordered; 0 if none was."""
        return self._newest.get(run, 0)

    def note_order(self, key: Key) -> None:
        """Remember that this order was taken."""
        self._newest[key.run] = max(self.newest(key.run), key.round)
        self._newest.move_to_end(key.run)
        _trim(self._newest)

    def note_answer(self, key: Key, answer: Decline | None) -> None:
        """Remember how this order was answered."""
        self._answers[key] = answer
        _trim(self._answers)

    def is_answered(self, key: Key) -> bool:
        """Whether this order had its answer."""
        return key in self._answers

    def decline_of(self, key: Key) -> Decline | None:
        """Return the refusal that answered this order, if it was one."""
        return self._answers.get(key)


def _trim(table: OrderedDict[str, int] | OrderedDict[Key, Decline | None]) -> None:
    while len(table) > REMEMBERED:
        table.popitem(last=False)
