"""The phase in which edges train with the chosen agents, and how it settles the round."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import structs

from fedagent_coordinator.policies.base import RoundView, Selection
from fedagent_node.effects import Effect, Emit, Mark
from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import Assignment, ReportReceipt, RoundOrder, RoundReport
from fedagent_protocol.signed import Assigning

from .decision import Decision
from .edges import EdgeSession
from .effects import Controls, Learn, NoteWork, Reserve, Settle, ShowStatus
from .merge import Merging
from .observation import Observed
from .outcomes import BAD_CLAIM, proofs_of, proved, round_event, settle_round
from .phases import Phase, milliseconds
from .readiness import DECLINED, MAX_NAMED
from .settings import learnt_weight, merges

if TYPE_CHECKING:
    from .engine import Engine

RESEND_FIRST_S = 1.0
RESEND_LONGEST_S = 8.0
LONGEST_OUTAGE_S = 60.0
"""How long a round waits at most for an own broker that is gone, or goes again and again."""
MAX_WARNINGS = 100
"""Different warnings of devices that a run names."""


@dataclass(slots=True)
class EdgePart:
    """One edge's part in a round; `rows` of the selection are its agents, in the same order."""

    edge: str
    index: int
    rows: list[int]
    agents: list[str]
    resend_at: float | None
    patience_s: float = 2 * RESEND_FIRST_S
    report: RoundReport | None = None


@dataclass(slots=True)
class OrderedRound:
    """A round between its reservation and its end."""

    round: int
    observed: Observed
    selection: Selection
    controls: Controls
    want_model: bool  # a merge follows, so the reports shall bring the models
    opened_at: float  # when the edges were first asked for its columns
    ordered_at: float
    give_up_at: float  # when an edge that has not reported has failed
    parts: dict[str, EdgePart]  # one per edge with orders, by edge id
    timing_ms: dict[str, float] = field(default_factory=dict)

    @property
    def clients(self) -> npt.NDArray[np.int32]:
        """int32[S], the chosen clients."""
        return self.observed.view.pair_client[self.selection.pairs]

    @property
    def context_seq(self) -> npt.NDArray[np.int64]:
        """int64[S], the report each chosen client was evaluated by."""
        return self.observed.client_seq[self.clients]

    def agents(self, rows: Sequence[int]) -> list[str]:
        """Return the ids of the agents ordered in these rows of the selection."""
        names = {
            row: agent
            for part in self.parts.values()
            for row, agent in zip(part.rows, part.agents, strict=True)
        }
        return [names[row] for row in rows]


@dataclass(frozen=True, slots=True, eq=False)
class SettledRound:
    """A settled round; `held` is what the policy learns once its model is evaluated."""

    ordered: OrderedRound
    settled: Settle
    evaluates: bool
    held: Learn | None

    def event(self, total_micro: int, now: float) -> Emit:
        """Return the event of the round, which ends now."""
        seconds = round(now - self.ordered.opened_at, 6)
        return round_event(self.settled, self.ordered.controls, total_micro, seconds)


class Ordered(Phase):
    """Edges train with the chosen agents, and report."""

    name = "ordered"

    def __init__(
        self,
        engine: "Engine",
        decision: Decision,
        ready: Iterable[EdgeSession],
        opened_at: float,
        now: float,
    ) -> None:
        super().__init__(engine)
        s, view, selection = engine.settings, decision.observed.view, decision.selection
        self._ordered = OrderedRound(
            round=engine.round,
            observed=decision.observed,
            selection=selection,
            controls=decision.controls,
            want_model=merges(s.recipe, engine.rounds_done + 1),
            opened_at=opened_at,
            ordered_at=now,
            give_up_at=now + s.max_wait_ms / 1000.0 + s.grace_s,
            parts=_parts_of(view, selection, ready, now),
            timing_ms={
                "observe": milliseconds(now - opened_at),
                "decide": milliseconds(decision.seconds),
            },
        )

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
        if self.engine.status.waiting or self.engine.settings.recipe.rounds.every_s:
            effects.append(self.engine.show(ShowStatus()))
        if not ordered.parts:
            return effects + self._settle(now)
        orders = [self._order(part, now) for part in ordered.parts.values()]
        half = (len(orders) + 1) // 2
        return [*effects, *orders[:half], Mark("orders.half"), *orders[half:]]

    def tick(self, now: float) -> list[Effect]:
        """Repeat orders; settle when no report is waited for any longer."""
        if now >= self._give_up_at():
            return self._settle(now)
        effects: list[Effect] = []
        for part in self._ordered.parts.values():
            if part.resend_at is not None and now >= part.resend_at:
                part.resend_at = now + part.patience_s
                part.patience_s = min(part.patience_s * 2, RESEND_LONGEST_S)
                effects.append(self._order(part, now))
        return effects

    def next_due(self) -> float | None:
        """Return when an order must be repeated or an edge given up."""
        times = [part.resend_at for part in self._ordered.parts.values()]
        return min([self._give_up_at(), *(time for time in times if time is not None)])

    def _give_up_at(self) -> float:
        """Return when silent edges have failed: not for an outage of our own broker."""
        latest = self._ordered.give_up_at + LONGEST_OUTAGE_S
        return min(latest, max(self._ordered.give_up_at, self.engine.cut_until))

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
            return []
        settings = self.engine.settings
        if settings.proofs:
            given = report
            paid = self.engine.paid_work
            report = proved(given, run=settings.run, edge=edge, task=settings.task, paid=paid)
            pairs = zip(given.outcomes, report.outcomes, strict=True)
            unproved = sum(old is not new for old, new in pairs)
            if unproved:
                self.engine.counters[BAD_CLAIM] += unproved
        part.report, part.resend_at = report, None
        waits = any(part.report is None for part in ordered.parts.values())
        return [] if waits else self._settle(now)

    def _order(self, part: EdgePart, now: float) -> Effect:
        """Send an edge its order, with what is left of `max_wait`."""
        ordered, settings = self._ordered, self.engine.settings
        rounds, limits = settings.recipe.rounds, settings.recipe.limits
        elapsed_ms = int(1000 * max(0.0, now - ordered.ordered_at))
        max_wait_ms = max(1, settings.max_wait_ms - elapsed_ms)
        view = ordered.observed.view
        clients = view.pair_client[ordered.selection.pairs[part.rows]]
        each = ordered.controls.of_each(len(ordered.selection.pairs))[part.rows].tolist()
        had = self.engine.paid_work.updates if settings.recipe.privacy.wanted else Counter[str]()
        made = partial(Assigning, settings.run, ordered.round, part.edge, task=settings.task)
        assignments = tuple(
            Assignment(
                agent=agent,
                iterations=iterations,
                price=price,
                context_seq=context,
                releases=had[agent],
                assigned=self.engine.vouching.sign(made(agent)),
            )
            for agent, iterations, price, context in zip(
                part.agents,
                each,
                view.client_price[clients].tolist(),
                ordered.observed.client_seq[clients].tolist(),
                strict=True,
            )
        )
        order = RoundOrder(
            round=ordered.round,
            task=settings.task,
            assignments=assignments,
            deadline_ms=min(settings.deadline_ms, max_wait_ms),
            max_wait_ms=max_wait_ms,
            min_updates=rounds.min_updates,
            weighting=rounds.weighting,
            norm_limit=limits.norm,
            max_samples=limits.max_samples,
            want_model=ordered.want_model,
            load_limit_ms=settings.load_limit_ms,
        )
        return self.engine.send(part.edge, order)

    def _settle(self, now: float) -> list[Effect]:
        """End the round: books first, then receipts, then what is learnt."""
        engine, ordered = self.engine, self._ordered
        ordered.timing_ms["train"] = milliseconds(now - ordered.ordered_at)
        settled, odd = settle_round(
            ordered, now, engine.settings.recipe.learner, engine.settings.weight_cap
        )
        proofs = proofs_of(ordered, run=engine.settings.run, task=engine.settings.task)
        settled = structs.replace(settled, proofs=proofs)
        engine.counters.update(odd)
        engine.rounds_done += 1
        engine.spent_micro += settled.spent_micro
        engine.last_settled = ordered.round
        reports = {p.edge: p.report for p in ordered.parts.values() if p.report is not None}
        engine.paid_work.settled(ordered.round, reports.values())
        last = engine.settings.over(engine.rounds_done)
        due = engine.evaluations.is_due(
            merges=ordered.want_model,
            used=ordered.agents(np.flatnonzero(settled.feedback.used).tolist()),
            played=bool(len(settled.feedback.pairs)),
            last=last,
        )
        learn = Learn(ordered.round, settled.feedback, ordered.controls)
        held = learn if due and engine.evaluations.taught else None
        effects: list[Effect] = [settled]
        receipt = ReportReceipt(round=ordered.round)
        effects += [engine.send(edge, receipt) for edge in reports]
        effects += [learn] if held is None else []
        void = settled.feedback.void
        worked = self._worked(void)
        effects += worked
        if engine.settings.recipe.privacy.wanted:
            # What was settled, and not what a report says: that may name anybody, and repeat.
            engine.paid_work.updates.update(agent for one in worked for agent in one.agents)
        engine.opens_at = engine.empty_rounds.after(void, began=ordered.opened_at, now=now)
        declined = engine.client_backoff.settle(ordered, settled, now)
        effects += declined
        if declined and not settled.feedback.used.any():
            # Until a round begins with others.
            detail = str(declined[0].fields["reason"])
            effects.append(engine.show(ShowStatus(waiting=DECLINED, detail=detail)))
        effects += self._warnings(settled)
        self._note_models(settled)
        over = partial(engine.round_over, SettledRound(ordered, settled, due, held))
        if not ordered.want_model:
            return effects + over(now)
        firsts = {edge: report.first for edge, report in reports.items()}
        timing_ms = settled.timing_ms
        merging = Merging(engine, ordered.round, now, over, timing_ms=timing_ms, firsts=firsts)
        return effects + engine.enter(merging, now)

    def _worked(self, void: npt.NDArray[np.bool_]) -> list[NoteWork]:
        """Note of whom each edge has brought signed work."""
        return [
            NoteWork(part.edge, agents)
            for part in self._ordered.parts.values()
            if (
                agents := tuple(
                    a for r, a in zip(part.rows, part.agents, strict=True) if not void[r]
                )
            )
        ]

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
                most = self.engine.settings.most_weight
                edge.window_weight += learnt_weight(result.weight, result.ordered, most)
                edge.window_steps += result.local_steps


def _parts_of(
    view: RoundView, selection: Selection, edges: Iterable[EdgeSession], now: float
) -> dict[str, EdgePart]:
    by_index: Mapping[int, EdgeSession] = {edge.index: edge for edge in edges}
    names: dict[int, dict[int, str]] = {}
    parts: dict[str, EdgePart] = {}
    clients = view.pair_client[selection.pairs].tolist()
    places = view.pair_edge[selection.pairs].tolist()
    for row, (client, place) in enumerate(zip(clients, places, strict=True)):
        session = by_index[place]
        if place not in names:
            names[place] = dict(zip(session.client.tolist(), session.ids, strict=True))
            resend_at = now + RESEND_FIRST_S
            parts[session.id] = EdgePart(session.id, place, [], [], resend_at)
        part = parts[session.id]
        part.rows.append(row)
        part.agents.append(names[place][client])
    return parts
