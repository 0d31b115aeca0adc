"""One ordered agent's part in a round."""

from dataclasses import dataclass, field
from enum import Enum

from fedagent_protocol.messages import Assignment, OutcomeStatus, ReceiptStatus, UpdateOffer
from fedagent_protocol.transfer import Layout, Receiver
from fedagent_task.aggregation import Contribution, Weighed

from .admission import Verdict
from .effects import File, Key
from .weighing import UNWEIGHED

AFTER_MAX_WAIT = "complete after max_wait"
"""Reason of an update that came between `max_wait` and the close."""
RECEIPTS = {
    OutcomeStatus.ARRIVED: ReceiptStatus.ACCEPTED,
    OutcomeStatus.LATE: ReceiptStatus.LATE,
    OutcomeStatus.MISSED: ReceiptStatus.TOO_LATE,
    OutcomeStatus.REJECTED: ReceiptStatus.REJECTED,
    OutcomeStatus.DECLINED: ReceiptStatus.REJECTED,
}
"""What an agent that has ended hears of an update; one that is gone may come back."""
NO_VERDICT = Verdict()


class Stage(Enum):
    """Where an ordered agent stands."""

    WORKING = "working"
    SENDING = "sending"
    CHECKING = "checking"
    ENDED = "ended"


@dataclass(slots=True)
class Work:
    """What an agent has begun from the model `base`, in `round`, and may go on with (ADR 33)."""

    run: str
    round: int
    base: str
    layout: Layout  # how the base is cut
    offer: UpdateOffer | None = None  # the update of which there is a file
    have: set[int] = field(default_factory=set)
    """Its chunks that are here."""

    def forget_file(self) -> None:
        """Begin with the update again."""
        self.offer, self.have = None, set()


@dataclass(slots=True)
class Part:
    """How far an agent is, and how it ended."""

    key: Key
    assignment: Assignment
    stage: Stage = Stage.WORKING
    status: OutcomeStatus = OutcomeStatus.MISSED
    reason: str = ""
    after_s: float | None = None
    """From the order to its last chunk (not to the verdict), or to its end without an update."""
    answered: bool = False  # it showed that it has this order, which is repeated otherwise
    order_again_at: float = 0.0
    order_wait_s: float = 3.0
    ordered: bool = False
    credit_bytes: int = 0  # what the order gave in advance
    booked_bytes: int = 0  # all that it has of the pool
    offer: UpdateOffer | None = None
    receiver: Receiver | None = None
    stalls: int = 0  # how often in a row its transfer was silent
    late: Work | None = None  # what it may go on with instead of training anew
    work: Work | None = None  # what it was at last: that, or what it has begun in this round
    verdict: Verdict = NO_VERDICT
    told: Contribution | None = None
    weighed: Weighed = UNWEIGHED

    @property
    def agent(self) -> str:
        """Its id."""
        return self.assignment.agent

    @property
    def weight(self) -> float:
        """What it counts in the sum; 0 if it is not in it."""
        return self.weighed.weight

    @property
    def valid(self) -> bool:
        """Whether there is an update that is paid."""
        return self.status in (OutcomeStatus.ARRIVED, OutcomeStatus.LATE)

    @property
    def receipt(self) -> ReceiptStatus | None:
        """What it hears of an update that it offers again; None if it has not ended."""
        return RECEIPTS.get(self.status) if self.stage is Stage.ENDED else None

    @property
    def file(self) -> File:
        """What names the file of its update."""
        assert self.offer is not None
        return self.agent, self.offer.digest

    def end(self, status: OutcomeStatus, reason: str, after_s: float) -> None:
        """End it without an update."""
        self.stage, self.status, self.reason = Stage.ENDED, status, reason
        self.after_s = after_s if self.after_s is None else self.after_s

    @property
    def is_settled(self) -> bool:
        """Whether it has ended, or cannot take its update back any more: it is whole.

        Such an update is as good as in the sum, where nothing can be subtracted.
        """
        return self.stage in (Stage.CHECKING, Stage.ENDED)

    def reset(self) -> None:
        """Wait for this agent again, from the start of its transfer."""
        self.stage, self.status, self.reason = Stage.WORKING, OutcomeStatus.MISSED, ""
        self.offer = self.receiver = self.after_s = None

    def come_back(self) -> None:
        """Wait for it again if it had left."""
        if self.status is OutcomeStatus.GONE:
            self.reset()
