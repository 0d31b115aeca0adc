"""The phase in which edges train with the chosen agents, and how it settles the round."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from msgspec import structs

from fedagent_node.effects import Mark, Warn
from fedagent_protocol.messages import (
    Assignment,
    OpinionMode,
    ReportReceipt,
    RoundOrder,
    RoundReport,
)
from fedagent_protocol.signed import Assigning
from fedagent_task.scoring.measures import DEVICE_SCORE

from .edges import EdgeSession
from .effects import Learn, NoteWork, Reserve, Settle, ShowStatus
from .evaluating import Evaluating
from .merge import Merging
from .outcomes import EdgePart, round_event, settle_round
from .paid_work import BAD_CLAIM, proved
from .readiness import DECLINED, longer
from .run import Phase, Run
from .settings import by_client, is_last, merges, milliseconds, most_weight

TOO_FAR = frozenset({"norm", "diverged", "non_finite"})
"""Reasons of devices, and of edges, why an update cannot be: its model is where nobody learns."""
RESEND_FIRST_S = 1.0
RESEND_LONGEST_S = 8.0
LONGEST_OUTAGE_S = 60.0
"""How long a round waits at most for an own broker that is gone, or goes again and again."""


class Ordered(Phase):
    """Edges train with the chosen agents; `then` goes on when the round is over.

    What is planned is reserved before it is ordered; a round of nobody ends at once.
    """

    def __init__(
        self,
        run: Run,
        plan: Reserve,
        ready: Iterable[EdgeSession],
        opened_at: float,
        now: float,
        then: Callable[[float], Phase],
    ) -> None:
        super().__init__(run)
        self._plan, self._opened_at, self._ordered_at, self._then = plan, opened_at, now, then
        self._merges = merges(run.settings.recipe, run.rounds_done + 1)
        self._max_wait_ms = round(1000 * run.settings.recipe.rounds.max_wait_s)
        self._until = now + self._max_wait_ms / 1000.0 + run.settings.grace_s
        self._parts = _parts_of(plan, ready, now)
        run.do(plan)
        if run.status.waiting or run.settings.recipe.rounds.every_s:
            run.show(ShowStatus())
        half = (len(self._parts) + 1) // 2
        for sent, part in enumerate(self._parts.values(), start=1):
            self._order(part, now)
            if sent == half:
                run.do(Mark("orders.half"))

    def step(self, now: float) -> Phase:
        """Repeat orders; settle when no report is waited for any longer."""
        # Silent edges have not failed while our own broker was away.
        give_up = min(self._until + LONGEST_OUTAGE_S, max(self._until, self.run.cut_until))
        self.due = min(self.due, give_up)
        if now < self.due and any(part.report is None for part in self._parts.values()):
            return self
        waiting = [part for part in self._parts.values() if part.report is None]
        if not waiting or now >= give_up:
            return self._settle(now)
        for part in waiting:
            if now >= part.resend_at:
                self._order(part, now)
        self.due = min(give_up, *(part.resend_at for part in waiting))
        return self

    def greet(self, edge: EdgeSession, now: float) -> None:
        """Have the order repeated."""
        part = self._parts.get(edge.id)
        if part is not None:
            part.resend_at = self.due = now

    def receive_report(self, edge: str, report: RoundReport) -> bool:
        """Take in a report, the first of an edge; False if it was not ordered in this round."""
        part, run, s = self._parts.get(edge), self.run, self.run.settings
        if part is None or report.round != self._plan.round:
            return False
        if part.report is not None:
            return True
        part.report = report
        if s.proofs:
            part.report = proved(report, run=s.run, edge=edge, task=s.task, paid=run.paid_work)
            pairs = zip(report.outcomes, part.report.outcomes, strict=True)
            refused = [old for old, new in pairs if old is not new]
            run.counters[BAD_CLAIM] += len(refused)
            part.unpaid = tuple(one.agent for one in refused if one.valid)
        return True

    def _order(self, part: EdgePart, now: float) -> None:
        """Send an edge its order, with what is left of `max_wait`."""
        plan, s = self._plan, self.run.settings
        part.patience_s = longer(part.patience_s, RESEND_FIRST_S, RESEND_LONGEST_S)
        part.resend_at = now + part.patience_s
        self.due = min(self.due, part.resend_at)
        rounds, limits = s.recipe.rounds, s.recipe.limits
        elapsed_ms = int(1000 * max(0.0, now - self._ordered_at))
        max_wait_ms = max(1, self._max_wait_ms - elapsed_ms)
        each = plan.controls.of_each(len(plan.clients))[part.rows]
        had = self.run.paid_work.updates if s.recipe.privacy.wanted else Counter[str]()
        made = partial(Assigning, s.run, plan.round, part.edge, task=s.task)
        assignments = tuple(
            Assignment(
                agent=agent,
                iterations=iterations,
                price=price,
                context_seq=context,
                releases=had[agent],
                assigned=self.run.vouching.sign(made(agent)),
            )
            for agent, iterations, price, context in zip(
                part.agents,
                each.tolist(),
                plan.view.client_price[plan.clients[part.rows]].tolist(),
                plan.context_seq[part.rows].tolist(),
                strict=True,
            )
        )
        order = RoundOrder(
            round=plan.round,
            task=s.task,
            assignments=assignments,
            deadline_ms=min(s.deadline_ms, max_wait_ms),
            max_wait_ms=max_wait_ms,
            min_updates=rounds.min_updates,
            weighting=rounds.weighting,
            norm_limit=limits.norm,
            max_samples=limits.max_samples,
            want_bytes=int(self.run.edges.by_id[part.edge].pace.piece_bytes) if self._merges else 0,
            load_limit_ms=s.load_limit_ms,
        )
        self.run.send(part.edge, order)

    def _settle(self, now: float) -> Phase:
        """End the round: books first, then receipts, then what is learnt."""
        run, plan, s, parts = self.run, self._plan, self.run.settings, list(self._parts.values())
        waited_s = now - self._ordered_at
        plan.timing_ms["train"] = milliseconds(waited_s)
        settled = settle_round(plan, parts, s, run.counters, waited_s=waited_s)
        feedback = settled.feedback
        run.do(settled)
        run.rounds_done += 1
        run.spent_micro += settled.spent_micro
        run.numbers.settled = plan.round
        reports = {part.edge: part.report for part in parts if part.report is not None}
        run.paid_work.settled(plan.round, reports.values())
        for part in parts:
            if part.report is not None:
                run.send(part.edge, ReportReceipt(round=plan.round, unpaid=part.unpaid))
        evaluates = run.evaluations.is_due(
            merges=self._merges,
            used=[agent for part in parts for row, agent in part.pairs() if feedback.used[row]],
            played=bool(len(feedback.pairs)),
            last=is_last(s.recipe, run.rounds_done),
        )
        learn = Learn(plan.round, feedback, plan.controls)
        held = learn if evaluates and s.opinions is OpinionMode.REPORT else None
        if held is None:
            run.do(learn)
        self._take_in(settled)
        run.pace(feedback.unpaid, began=self._opened_at, now=now)
        run.client_backoff.settle(plan, settled, now)
        if settled.declined and not feedback.used.any():
            # Until a round begins with others.
            run.show(ShowStatus(waiting=DECLINED, detail=run.client_backoff.reason(now)))
        over = partial(self._over, settled, held, evaluates=evaluates)
        if self._leads_nowhere(settled):
            run.commit_model(plan.round, run.models.good, "", now)
            return over(now)
        if feedback.used.any():
            run.models.good = run.models.digest
        if not self._merges:
            return over(now)
        firsts = {edge: report.first for edge, report in reports.items()}
        return Merging(run, plan.round, now, over, settled.timing_ms, firsts)

    def _leads_nowhere(self, settled: Settle) -> bool:
        """Say that most devices cannot train from the model; True if there is one before it."""
        reasons, models = settled.details.reason, self.run.models
        lost = [reason for reason in reasons if reason.partition(":")[0] in TOO_FAR]
        if 2 * len(lost) <= len(reasons) or models.good == models.digest:
            return False
        most = self.run.members.called(models.farthest, "")
        who = f"; edge {most} moved most in its merge" if most else ""
        text = f"most devices cannot train from the model of round {models.round} ({lost[0]})"
        self.run.do(Warn("", f"{text}: the run goes on from the one before{who}"))
        return True

    def _take_in(self, settled: Settle) -> None:
        """Note who brought work, what each edge holds now, and what devices say of their samples.

        The latter is said beside a valid update, once.
        """
        run, s, said = self.run, self.run.settings, settled.details.reason
        valid, most = ~settled.feedback.unpaid, most_weight(s.strategy, s.recipe)
        for part, found in zip(self._parts.values(), settled.edges, strict=True):
            worked = [(row, agent) for row, agent in part.pairs() if valid[row]]
            agents = tuple(agent for _, agent in worked)
            if worked:
                run.do(NoteWork(part.edge, agents))
            for row, agent in worked:
                if said[row] not in ("", run.said.get(agent)):
                    run.said[agent] = said[row]
                    name = run.members.called(agent, run.called.get(agent, ""))
                    run.do(Warn("", f"device {name}: {said[row]}"))
            if s.recipe.privacy.wanted:
                # What was settled, not what a report says: that may name anybody, and repeat.
                run.paid_work.updates.update(agents)
            if found.model and not found.failed:
                edge = run.edges.by_id[found.edge]
                learnt = (found.model, found.weight, found.local_steps, found.norm)
                edge.window = edge.window.after(*learnt, ordered=found.ordered, most=most)
                edge.model = found.model

    def _over(self, settled: Settle, held: Learn | None, now: float, *, evaluates: bool) -> Phase:
        """Have the model of the round evaluated if that is due, then go on with the next round."""
        if not evaluates:
            return self._close(settled, now)

        def answered(evaluation: Evaluating, now: float) -> Phase:
            settled.timing_ms["evaluate"] = milliseconds(now - evaluation.call.began)
            found = evaluation.found
            if held is not None and found is not None:
                clients = len(held.feedback.view.client_price)
                opinions = by_client(found.client, found.score, clients)
                feedback = replace(held.feedback, opinions=opinions)
                self.run.do(structs.replace(held, feedback=feedback))
            return self._close(settled, now)

        return Evaluating(self.run, self.run.call(settled.round, now), answered, now)

    def _close(self, settled: Settle, now: float) -> Phase:
        seconds = round(now - self._opened_at, 6)
        self.run.do(round_event(settled, self._plan.controls, self.run.spent_micro, seconds))
        if settled.details.score_n:
            self.run.judge({DEVICE_SCORE.key: settled.details.score})
        return self._then(now)


def _parts_of(plan: Reserve, edges: Iterable[EdgeSession], now: float) -> dict[str, EdgePart]:
    sessions = {edge.index: edge for edge in edges}
    names: dict[int, dict[int, str]] = {}
    parts: dict[str, EdgePart] = {}
    places = plan.view.pair_edge[plan.selection.pairs].tolist()
    for row, (client, place) in enumerate(zip(plan.clients.tolist(), places, strict=True)):
        session = sessions[place]
        if place not in names:
            names[place] = dict(zip(session.client.tolist(), session.ids, strict=True))
            parts[session.id] = EdgePart(session.id, place, now)
        part = parts[session.id]
        part.rows.append(row)
        part.agents.append(names[place][client])
    return parts
