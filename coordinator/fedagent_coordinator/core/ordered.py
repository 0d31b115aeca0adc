"""The phase in which edges train with the chosen agents, and how it settles the round."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedagent_node.effects import Effect, Emit, Mark
from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import ReportReceipt, RoundReport

from .backoff import MAX_NAMED
from .edges import EdgeSession
from .effects import Learn, Reserve, Settle, ShowStatus
from .orders import EdgePart, OrderedRound
from .outcomes import round_event, settle_round
from .phases import Phase, milliseconds
from .readiness import DECLINED
from .settings import learnt_weight

if TYPE_CHECKING:
    from .engine import Engine
    from .evaluation_schedule import DueEvaluation

MAX_WARNINGS = 100
"""Different warnings of devices that a run names."""


@dataclass(frozen=True, slots=True, eq=False)
class SettledRound:
    """A settled round, whose model may still be merged and evaluated.

    Attributes:
        evaluation: Of its model, if it is due.
        held: What the policy learns when the model is evaluated; None if it has learnt.
    """

    ordered: OrderedRound
    settled: Settle
    evaluation: "DueEvaluation | None"
    held: Learn | None

    def event(self, total_micro: int, now: float) -> Emit:
        """Return the event of the round, which ends now."""
        seconds = round(now - self.ordered.opened_at, 6)
        return round_event(self.settled, self.ordered.controls, total_micro, seconds)


class Ordered(Phase):
    """Edges train with the chosen agents, and report."""

    name = "ordered"

    def __init__(self, engine: "Engine", ordered: OrderedRound) -> None:
        super().__init__(engine)
        self._ordered = ordered

    def begin(self, now: float) -> list[Effect]:
        """Reserve, then order; a round in which nobody is chosen ends at once."""
        ordered = self._ordered
        reserve = Reserve(
            ordered.round,
            ordered.observed.view,
            ordered.selection,
            ordered.context_seq,
            ordered.controls,
            ordered.timing_ms,
        )
        effects: list[Effect] = [reserve]
        if self.engine.status.waiting or self.engine.settings.every_s:
            effects.append(self.engine.show(ShowStatus()))
        if not ordered.parts:
            return effects + self._settle(now)
        orders = [self._order(part, now) for part in ordered.parts.values()]
        half = (len(orders) + 1) // 2
        return [*effects, *orders[:half], Mark("orders.half"), *orders[half:]]

    def tick(self, now: float) -> list[Effect]:
        """Repeat orders; settle when no report is waited for any longer."""
        if now >= self._ordered.give_up_at:
            return self._settle(now)
        return [self._order(part, now) for part in self._ordered.due_again(now)]

    def next_due(self) -> float | None:
        """Return when an order must be repeated or an edge given up."""
        return self._ordered.next_due()

    def greet(self, edge: EdgeSession, now: float) -> list[Effect]:
        """Have the order repeated at the next tick."""
        part = self._ordered.parts.get(edge.id)
        if part is not None and part.report is None:
            part.resend_at = now
        return []

    def receive_report(self, edge: str, report: RoundReport, now: float) -> list[Effect] | None:
        """Take in a report; None if this round did not order it."""
        ordered = self._ordered
        part = ordered.parts.get(edge)
        if part is None or report.round != ordered.round:
            return None
        if part.report is not None:
            self.engine.counters["report_twice"] += 1
            return []
        part.report, part.resend_at = report, None
        return self._settle(now) if ordered.complete else []

    def _order(self, part: EdgePart, now: float) -> Effect:
        order = self._ordered.order(part, self.engine.settings, now)
        return self.engine.send(part.edge, order)

    def _settle(self, now: float) -> list[Effect]:
        """End the round: books first, then receipts, then what is learnt."""
        engine, ordered = self.engine, self._ordered
        ordered.timing_ms["train"] = milliseconds(now - ordered.ordered_at)
        settled, odd = settle_round(ordered, now)
        engine.counters.update({**odd, "client_declined": settled.declined})
        engine.rounds_done += 1
        engine.spent_micro += settled.spent_micro
        engine.last_settled = ordered.round
        reports = {p.edge: p.report for p in ordered.parts.values() if p.report is not None}
        last = engine.settings.over(engine.rounds_done)
        due = engine.evaluations.due(ordered, settled.feedback, last=last)
        learn = Learn(ordered.round, settled.feedback, ordered.controls)
        held = learn if due is not None and engine.evaluations.taught else None
        effects: list[Effect] = [settled]
        receipt = ReportReceipt(round=ordered.round)
        effects += [engine.send(edge, receipt) for edge in reports]
        effects += [learn] if held is None else []
        void = settled.feedback.void
        engine.opens_at = engine.empty_rounds.after(void, began=ordered.opened_at, now=now)
        declined = engine.client_backoff.settle(ordered, settled, now)
        effects += declined
        if declined and not settled.feedback.used.any():
            # Until a round begins with others.
            detail = str(declined[0].fields["reason"])
            effects.append(engine.show(ShowStatus(waiting=DECLINED, detail=detail)))
        effects += self._warnings(settled)
        self._note_models(settled)
        done = SettledRound(ordered, settled, due, held)
        if not ordered.want_model:
            return effects + engine.round_over(done, now)
        firsts = {edge: report.first for edge, report in reports.items()}
        return effects + engine.merge(done, firsts, now)

    def _warnings(self, settled: Settle) -> list[Effect]:
        rows_of: dict[str, list[int]] = {}
        for row in np.flatnonzero(~settled.feedback.void).tolist():
            if text := safe_text(settled.details.reason[row], limit=200):
                rows_of.setdefault(text, []).append(row)
        known = self.engine.warnings
        fresh = [text for text in rows_of if text not in known][: MAX_WARNINGS - len(known)]
        known.update(fresh)
        agents = self._ordered.agents
        return [
            Emit("warning", {"agents": agents(rows_of[text])[:MAX_NAMED], "reason": text})
            for text in fresh
        ]

    def _note_models(self, settled: Settle) -> None:
        for result in settled.edges:
            if result.model and not result.failed:
                edge = self.engine.edges.by_id[result.edge]
                edge.model = edge.expected = result.model
                limit = self.engine.settings.max_samples
                edge.window_weight += learnt_weight(result.weight, result.ordered, limit)
