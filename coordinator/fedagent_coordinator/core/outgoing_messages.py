"""The coordinator's messages to edges, numbered."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedagent_node.effects import Send
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
from .orders import EdgePart, OrderedRound
from .settings import Settings

if TYPE_CHECKING:
    from .evaluation import ClientEvaluation

MAX_TRAINED = 10_000
"""Ids of 64 letters that one message holds with room to spare."""


@dataclass(slots=True)
class OutgoingMessages:
    """Builds the messages of a run; sequence numbers grow over restarts."""

    settings: Settings
    last_seq: int

    def welcome(self, edge: str) -> Send:
        """Answer a hello."""
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
        """Ask for this round's columns."""
        run, seq = self.settings.run, self._next()
        known = len(edge.ids)
        return Send(
            edge.id, RoundOpen(run=run, round=round_, seq=seq, epoch=edge.epoch, known=known)
        )

    def order(self, ordered: OrderedRound, part: EdgePart, now: float) -> Send:
        """Order an edge's part of a round, with the time that is left."""
        return Send(part.edge, ordered.order(part, self.settings, now, self._next()))

    def receipt(self, edge: str, round_: int, *, too_late: bool) -> Send:
        """Answer a report."""
        run, seq = self.settings.run, self._next()
        return Send(edge, ReportReceipt(run=run, round=round_, seq=seq, too_late=too_late))

    def evaluate(self, edge: EdgeSession, evaluation: "ClientEvaluation", now: float) -> Send:
        """Ask an edge's clients to evaluate a model, with the time that is left.

        The edge's agents whose updates are in the model are named, as many as fit. The others
        count as if they had not trained, which leaves their own mean as it is.
        """
        trained = evaluation.trained
        # An edge that has just been started again has named nobody yet.
        here = trained.intersection(edge.ids) if edge.ids else trained
        message = OpinionOpen(
            run=self.settings.run,
            round=evaluation.round,
            seq=self._next(),
            model=evaluation.digest,
            until_ms=max(0, int(1000 * (evaluation.until - now))),
            mode=evaluation.mode,
            slot=evaluation.slot,
            epoch=edge.epoch,
            known=len(edge.ids),
            trained=tuple(sorted(here)[:MAX_TRAINED]),
        )
        return Send(edge.id, message)

    def evaluation_over(self, edge: str, round_: int) -> Send:
        """Tell an edge that nothing is wanted of an evaluation any more."""
        return Send(edge, OpinionClose(run=self.settings.run, round=round_, seq=self._next()))

    def evaluation_receipt(self, edge: str, round_: int) -> Send:
        """Answer opinions or statistics."""
        return Send(edge, OpinionsReceipt(run=self.settings.run, round=round_, seq=self._next()))

    def run_ended(self, edge: str, reason: str) -> Send:
        """Announce the end of the run."""
        return Send(edge, RunEnded(run=self.settings.run, seq=self._next(), reason=reason))

    def _next(self) -> int:
        self.last_seq += 1
        return self.last_seq
