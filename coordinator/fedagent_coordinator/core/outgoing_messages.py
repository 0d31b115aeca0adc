"""What the coordinator says to edges, numbered."""

from dataclasses import dataclass

from fedagent_protocol.messages import (
    EdgeWelcome,
    OpinionClose,
    OpinionOpen,
    OpinionsReceipt,
    ReportReceipt,
    RoundOpen,
    RunEnded,
)

from .edges import EdgeSession
from .effects import Effect, Send
from .evaluation import EvaluationCall
from .orders import OrderedRound
from .outcomes import EdgePart
from .settings import Settings

MAX_TRAINED = 10_000
"""Ids of 64 letters that one message holds with room to spare."""


@dataclass(slots=True)
class OutgoingMessages:
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
            run=s.run,
            seq=self._next(),
            coordinator=s.coordinator,
            task=s.task,
            body=s.body,
            recipe=s.recipe,
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

    def receipt(self, edge: str, round_: int, *, too_late: bool) -> Send:
        """Return the answer to a report."""
        run = self.settings.run
        return Send(edge, ReportReceipt(run=run, round=round_, seq=self._next(), too_late=too_late))

    def call(self, edge: EdgeSession, call: EvaluationCall, now: float) -> Send:
        """Return the call for opinions of a model, with the time that is left."""
        message = OpinionOpen(
            run=self.settings.run,
            round=call.round,
            seq=self._next(),
            model=call.digest,
            until_ms=max(0, int(1000 * (call.until - now))),
            mode=call.mode,
            slot=call.slot,
            epoch=edge.epoch,
            known=len(edge.ids),
            trained=_trained(edge, call),
        )
        return Send(edge.id, message)

    def call_over(self, edge: str, round_: int) -> Send:
        """Return that nothing is wanted of a call any more."""
        return Send(edge, OpinionClose(run=self.settings.run, round=round_, seq=self._next()))

    def opinions_receipt(self, edge: str, round_: int) -> Send:
        """Return the answer to opinions."""
        return Send(edge, OpinionsReceipt(run=self.settings.run, round=round_, seq=self._next()))

    def run_ended(self, edge: str, why: str) -> Send:
        """Return the end of the run."""
        return Send(edge, RunEnded(run=self.settings.run, seq=self._next(), reason=why))

    def _next(self) -> int:
        self.seq += 1
        return self.seq


def _trained(edge: EdgeSession, call: EvaluationCall) -> tuple[str, ...]:
    """Return the agents of an edge whose updates are in the model that it is called for.

    No more than fit into a message: the others count as if they had not trained, which
    leaves their own mean as it is.
    """
    if not call.trained:
        return ()
    # An edge that has just been started again has named nobody yet.
    known = call.trained.intersection(edge.ids) if edge.ids else call.trained
    return tuple(sorted(known)[:MAX_TRAINED])
