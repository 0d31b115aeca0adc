"""One ordered agent's part in a round."""

from dataclasses import dataclass, field
from enum import Enum

from fedagent_protocol.messages import Assignment, OutcomeStatus, ReceiptStatus, UpdateOffer
from fedagent_protocol.transfer import Layout, Receiver
from fedagent_task.aggregation import Contribution, Weighed
from fedagent_task.aggregation.bounds import Term

from .admission import Verdict
from .effects import Key, UpdateRecord
from .weighing import UNWEIGHED

AFTER_MAX_WAIT = "complete after max_wait"
"""Reason of an update that came between `max_wait` and the close."""
RECEIPTS = {
    OutcomeStatus.ARRIVED: ReceiptStatus.ACCEPTED,
    OutcomeStatus.LATE: ReceiptStatus.LATE,
    OutcomeStatus.MISSED: ReceiptStatus.TOO_LATE,
    OutcomeStatus.REJECTED: ReceiptStatus.REJECTED,
}


NO_VERDICT = Verdict()
NO_TERM = Term(0.0, 0.0)


class Stage(Enum):
    """Where an ordered agent stands."""

    WORKING = "working"
    SENDING = "sending"
    CHECKING = "checking"
    ENDED = "ended"


@dataclass(slots=True)
class LateWork:
    """What an agent has begun, from the model `base`, in `round`, and may go on with (ADR 33)."""

    run: str
    round: int
    base: str
    layout: Layout  # how the base is cut
    key: Key | None = None  # names the file with the chunks that are here
    offer: UpdateOffer | None = None
    have: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Part:
    """How far an agent is, and how it ended."""

    key: Key
    assignment: Assignment
    stage: Stage = Stage.WORKING
    status: OutcomeStatus = OutcomeStatus.MISSED
    reason: str = ""
    receipt: ReceiptStatus | None = None
    after_s: float | None = None
    """From the order to its last chunk (not to the verdict), or to its end without an update."""
    answered: bool = False  # it showed that it has this order, which is repeated otherwise
    order_again_at: float = 0.0
    order_wait_s: float = 3.0
    credit_bytes: int = 0  # what the order gave in advance
    offer: UpdateOffer | None = None
    receiver: Receiver | None = None
    stalls: int = 0  # how often in a row its transfer was silent
    spooled: tuple[UpdateOffer, set[int]] | None = None  # chunks from before it left
    late: LateWork | None = None  # what it may go on with instead of training anew
    fresh: bool = False  # it asked for the round's own model
    verdict: Verdict = NO_VERDICT
    told: Contribution | None = None
    weighed: Weighed = UNWEIGHED
    term: Term = NO_TERM  # of what is in the sum, and was as told before the close

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

    def record(self) -> UpdateRecord:
        """Return its end without an update, as it is kept on disk."""
        return UpdateRecord(
            key=self.key, after_s=self.after_s or 0.0, status=self.status, reason=self.reason
        )

    def end(self, status: OutcomeStatus, reason: str, after_s: float) -> bool:
        """End it without an update; False if it had ended."""
        if self.stage is Stage.ENDED:
            return False
        self.stage, self.status, self.reason = Stage.ENDED, status, reason
        self.after_s = after_s if self.after_s is None else self.after_s
        return True

    def withdraw(self, status: OutcomeStatus, reason: str, after_s: float) -> bool:
        """End it as the agent wants; False if its update is whole, which it cannot take back.

        Such an update is as good as in the sum, where nothing can be subtracted.
        """
        return self.stage is not Stage.CHECKING and self.end(status, reason, after_s)

    def reset(self) -> None:
        """Wait for this agent again, from the start of its transfer."""
        self.stage, self.status, self.reason = Stage.WORKING, OutcomeStatus.MISSED, ""
        self.offer = self.receiver = self.receipt = self.after_s = None

    def come_back(self) -> None:
        """Wait for it again if it had left."""
        if self.status is OutcomeStatus.GONE:
            self.reset()
