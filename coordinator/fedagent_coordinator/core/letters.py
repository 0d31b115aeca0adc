"""What the coordinator says to edges, numbered."""

from dataclasses import dataclass

from fedagent_protocol.messages import EdgeWelcome, ReportReceipt, RoundOpen, RunEnded

from .edges import EdgeSession
from .effects import Effect, Send
from .orders import OrderedRound
from .outcomes import EdgePart
from .settings import Settings


@dataclass(slots=True)
class Letters:
    """Builds messages of the run; sequence numbers grow over restarts.

    Attributes:
        seq: The last number given.
    """

    settings: Settings
    seq: int

    def welcome(self, edge: str) -> Send:
        """Return the answer to a hello."""
        s = self.settings
        message = EdgeWelcome(
            run=s.run, seq=self._next(), coordinator=s.coordinator, task=s.task, body=s.body
        )
        return Send(edge, message)

    def open(self, edge: EdgeSession, round_: int) -> Send:
        """Return the question for this round's columns."""
        message = RoundOpen(
            run=self.settings.run,
            round=round_,
            seq=self._next(),
            epoch=edge.epoch,
            known=len(edge.ids),
        )
        return Send(edge.id, message)

    def order(self, ordered: OrderedRound, part: EdgePart, now: float) -> Effect:
        """Return an edge's order, with the time that is left."""
        return Send(part.edge, ordered.order(part, self.settings, now, self._next()))

    def receipt(self, edge: str, round_: int, *, expired: bool) -> Send:
        """Return the answer to a report."""
        run = self.settings.run
        return Send(edge, ReportReceipt(run=run, round=round_, seq=self._next(), expired=expired))

    def run_ended(self, edge: str, why: str) -> Send:
        """Return the end of the run."""
        return Send(edge, RunEnded(run=self.settings.run, seq=self._next(), why=why))

    def _next(self) -> int:
        self.seq += 1
        return self.seq
