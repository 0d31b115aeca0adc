"""What an agent works on: one order at a time, from the order to the update."""

from dataclasses import dataclass

from fedagent_agent.trainer_wire import Trained
from fedagent_protocol.messages import TrainOrder, UpdateOffer

from .download import Download
from .effects import Key, PendingUpdate


@dataclass(slots=True)
class ActiveOrder:
    """One order that is being followed.

    Attributes:
        ordered_at: When the order came; DT starts here.
        give_up_at: When nobody waits any more.
        download: The model on its way in, if it had to be fetched.
        model_at: When the model was whole.
        job: Number of the training, once it runs.
        train_at: When the training began; LC starts here.
    """

    key: Key
    order: TrainOrder
    ordered_at: float
    give_up_at: float
    download: Download | None = None
    model_at: float | None = None
    job: int | None = None
    train_at: float = 0.0

    def kept(self, result: Trained, now: float) -> PendingUpdate:
        """Describe the finished update."""
        assert self.model_at is not None
        offer = UpdateOffer(
            run=self.key.run,
            round=self.key.round,
            digest=result.digest,
            size=result.size,
            chunk_bytes=self.order.chunk_bytes,
            base=self.order.model,
            task=self.order.task,
            num_samples=result.num_samples,
            iterations=result.iterations,
            dt_ms=_ms(self.model_at - self.ordered_at),
            lc_ms=_ms(now - self.train_at),
            arrivals=result.arrivals,
            seconds_per_iteration=result.seconds_per_iteration,
            loss=result.loss,
            train_ms=_ms(result.train_s),
            steps=result.steps,
            limited=result.limited,
            score=result.score,
            score_n=result.score_n,
            note=result.note[:500],
        )
        return PendingUpdate(self.key, offer, self.order.credit)


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
