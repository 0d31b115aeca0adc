"""The round engine: observe, decide, reserve, order, settle, merge, evaluate, and again.

A pure state machine (docs/protocol.md, One round). Messages, ticks and results
of jobs go in with the time; effects come out, to be performed in order. A disk
effect stands before everything that relies on it.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedagent_coordinator.policies.base import NOT_FEATURES
from fedagent_protocol.errors import safe_text

from .backoff import MAX_NAMED, RoundBackoff
from .decision_policies import Decider, Decision, DecisionPolicies, Refusal
from .edge_messages import Phase
from .edges import EdgeSession, Indices
from .effects import (
    CommitModel,
    CrashPoint,
    EdgeResult,
    Effect,
    End,
    Evaluate,
    Event,
    Reserve,
    Send,
)
from .errors import NeedsUnmetError
from .evaluation_phase import EvaluationPhase, called_for
from .observe import Observed, merge_observations
from .orders import OrderedRound, plan_round
from .outcomes import Settled, round_event, settle_outcomes
from .pending_observation import REOPEN_S, PendingObservation
from .readiness import BUDGET, DECLINED, RENTS, Readiness
from .round_placement import with_rent
from .settings import Progress, Settings, learnt_weight
from .settled_reports import SettledLookup, SettledReports

MAX_NOTES = 100
"""Warnings of devices that are told in a run."""


class RoundEngine(EvaluationPhase):
    """All rounds of one run.

    Args:
        settings: The run.
        progress: Where it stands.
        minds: Decide; they learn when the runtime performs `Learn`.
        indices: Run-wide indices of clients and edges.
        fate: Asked about rounds that this process did not settle itself.
        clock: For durations only; the caller's idea of now otherwise.

    Attributes:
        phase: What is waited for.
        round: The round that is open, or the next.
        rounds_done, spent_micro: Progress.
        models: The global model, and who lacks it.
        timing_ms: Durations of the steps of this round; the runtime adds its own,
            and the event of the round refers to it.
        counters: What was refused or odd, by reason.

    Raises:
        NeedsUnmetError: The policy needs what only a testbed knows, or what this run does
            not call for.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        progress: Progress,
        policies: DecisionPolicies,
        indices: Indices,
        fate: SettledLookup,
        clock: Callable[[], float],
    ) -> None:
        unmet = policies.policy.needs & (NOT_FEATURES - called_for(settings.opinions))
        if unmet:
            raise NeedsUnmetError(settings.policy, unmet, ())
        super().__init__(settings, progress, indices, SettledReports(fate))
        self.needs = policies.policy.needs - NOT_FEATURES
        self.rounds_done = progress.rounds_done
        self.spent_micro = progress.spent_micro
        self._summary: Event | None = None
        self._opened_at = 0.0
        self._decider = Decider(settings, policies, clock)
        self._readiness = Readiness(settings, self.needs, resumed=progress.rounds_done > 0)
        self._first_at = progress.open_at
        self._backoff = RoundBackoff()
        self._notes: set[str] = set()

    # ------------------------------------------------------------------ inputs

    def start(self, now: float) -> list[Effect]:
        """Begin: edges will say hello when they hear the beacon."""
        self._readiness.started_at = now
        if self.settings.over(self.rounds_done):
            return self._finish_late(now)
        opens_at = min(self._first_at, now + self.settings.every_s)
        if now < opens_at:
            self._patience.not_before = opens_at
            self._patience.until(opens_at)
            return []
        return self._wait("edges", now)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due.

        Raises:
            PolicyError: See `receive`.
        """
        effects: list[Effect] = [
            Event("edge_lost", {"edge": edge.id, "name": edge.name})
            for edge in self.edges.lose_silent(now)
        ]
        match self.phase:
            case Phase.IDLE:
                due = self._patience.due
                if due is not None and now >= due:
                    effects += self._open(now)
            case Phase.OBSERVING:
                effects += self._consider(now)
                if self.phase is Phase.OBSERVING and now >= self._observation.reopen_at:
                    effects += self._reopen(now)
            case Phase.ORDERED:
                effects += self._tick_ordered(now)
            case Phase.MERGING:
                if self.models.work is not None:
                    effects += self.models.work.tick(now)
                effects += self._merge_if_complete(now)
            case Phase.EVALUATING:
                effects += self._tick_evaluating(now)
            case Phase.ENDED:
                pass
        return effects

    def next_due(self) -> float | None:
        """Return when `tick` is wanted; None while only messages matter."""
        times = [self.edges.next_loss()]
        match self.phase:
            case Phase.IDLE:
                times.append(self._patience.due)
            case Phase.OBSERVING:
                times += [self._observation.reopen_at, self._observed_at()]
            case Phase.ORDERED:
                assert self._ordered is not None
                times.append(self._ordered.next_due())
            case Phase.MERGING:
                if self.models.work is not None:
                    times.append(self.models.work.next_due())
            case Phase.EVALUATING:
                assert self._call is not None
                times.append(self._call.next_due())
            case Phase.ENDED:
                return None
        return min((time for time in times if time is not None), default=None)

    @property
    def not_before(self) -> float:
        """Return when the next round may begin by the schedule; 0 if at once."""
        return self._patience.not_before

    def farewell(self) -> list[Send]:
        """Return the end of the run for every edge, to be said again for a while."""
        if self.phase is not Phase.ENDED:
            return []
        return [self._messages.run_ended(edge.id, self._finishing) for edge in self.edges.live()]

    def part_checked(self, digest: str, *, intact: bool, now: float) -> list[Effect]:
        """Take in whether a pulled model is what its digest says."""
        work = self.models.work
        if work is None or digest not in work.pulls:
            return []
        if not intact:
            self.counters["digest_mismatch"] += 1
        return work.checked(digest, intact=intact, now=now) + self._merge_if_complete(now)

    def merged(self, round_: int, digest: str, now: float) -> list[Effect]:
        """Take in the merged model; an empty digest says that no model was usable."""
        work = self.models.work
        if work is None or work.round != round_:
            return []
        if not digest:
            self.counters["merge_failed"] += 1
        self.timing_ms["merge"] = _ms(now - work.started_at)
        if digest in {"", self.models.digest}:
            return self.models.adopt(self.models.digest, now) + self._round_over(now)
        return [
            CommitModel(round_, digest),
            *self.models.adopt(digest, now),
            *self._round_over(now),
            Evaluate(round_, digest),
        ]

    # ----------------------------------------------------------------- observe

    def _open(self, now: float) -> list[Effect]:
        """Ask all edges for this round's columns."""
        if self.settings.over(self.rounds_done):
            return self._finish_late(now)
        self.phase = Phase.OBSERVING
        self._observation = PendingObservation(now, now + REOPEN_S)
        live = self.edges.live()
        if not live:
            self._readiness.solvent()
            return self._wait("edges", now)
        return [self._messages.open(edge, self.round) for edge in live]

    def _reopen(self, now: float) -> list[Effect]:
        """Ask those again that did not answer, or did not have the model."""
        self._observation.reopen_at = now + REOPEN_S
        live = self.edges.live()
        ready = {edge.id for edge in self._observation.ready(live)}
        effects: list[Effect] = []
        for edge in live:
            if edge.id not in ready:
                effects.append(self._messages.open(edge, self.round))
                if edge.id in self._observation.answers:
                    effects += self.models.catch_up(edge, self.round, now)
        return effects

    def _consider(self, now: float) -> list[Effect]:
        """Decide once everybody has answered, or nobody is waited for any longer."""
        due = self._observed_at()
        if due is not None and now < due:
            return []
        live = self.edges.live()
        ready = self._observation.ready(live)
        for edge in live:
            edge.quiet = edge.id not in self._observation.answers
        if not ready:
            return self._wait("edges", now)
        return self._decide(ready, now)

    def _observed_at(self) -> float | None:
        return self._observation.waits_until(
            self.edges.live(),
            silent_s=self.settings.observe_timeout_s,
            transfer_s=self.settings.merge_timeout_s,
        )

    # ------------------------------------------------------------------ decide

    def _decide(self, ready: list[EdgeSession], now: float) -> list[Effect]:
        observed = self._view(ready, now)
        view = observed.view
        self.counters.update({f"pairs_{why}": n for why, n in observed.left_out.items()})
        agents = len(np.unique(view.pair_client[view.eligible]))
        missing = self._readiness.closed_by(
            observed, edges=len(ready), agents=agents, free_micro=self._free_micro, now=now
        )
        if missing == BUDGET:
            everybody = len(np.unique(view.pair_edge)) == len(self.edges.live())
            return self._broke(ready, agents, now, sure=everybody)
        if missing:
            return self._wait(missing, now, edges=len(ready), agents=agents)
        if self._unmeasured:
            self._readiness.solvent()
            return self._measure(now)
        if self._pending_round is not None:
            self._readiness.solvent()
            self._patience.over()
            return self._evaluate(self._pending_round, now, opening=True)
        decision = self._decider.decide(
            observed,
            ready,
            self.edges.live(),
            free_micro=self._free_micro,
            done=self.rounds_done,
        )
        if isinstance(decision, Refusal):
            if decision.reason == BUDGET:
                return self._broke(ready, agents, now, sure=decision.sure)
            self._readiness.solvent()
            return self._wait(decision.reason, now, edges=len(ready), agents=agents)
        self._readiness.solvent()
        self._patience.over()
        self._opened_at = self._observation.opened_at
        self._patience.not_before = self._opened_at + self.settings.every_s
        self.timing_ms = {
            "observe": _ms(now - self._opened_at),
            "decide": _ms(decision.seconds),
        }
        return self._order(decision, ready, now)

    def _broke(
        self, ready: list[EdgeSession], agents: int, now: float, *, sure: bool
    ) -> list[Effect]:
        """End the run; a placed one waits first for edges that may be cheaper."""
        known = self._indices.sizes()[1] == len(self.edges.live())
        if self.settings.placed and not self._readiness.broke(now, sure=sure and known):
            return self._wait(RENTS, now, edges=len(ready), agents=agents)
        return self._finish(BUDGET, now)

    def _view(self, ready: list[EdgeSession], now: float) -> Observed:
        clients, edges = self._indices.sizes()
        budget = self.settings.per_edge_micro
        if self._free_micro is not None:
            budget = min(budget, self._free_micro)
        observed = merge_observations(
            [self._observation.answers[edge.id] for edge in ready],
            round_=self.round,
            now=now,
            sizes=(clients, edges),
            needs=self.needs,
            edge_budget=np.full(edges, budget, dtype=np.int64),
            deadline_s=self.settings.deadline_ms / 1000,
            model_bytes=self.models.size,
        )
        return self._heard(observed.without(self._backoff.away(observed.client_seq, now)))

    @property
    def _free_micro(self) -> int | None:
        total = self.settings.total_micro
        return None if total is None else max(0, total - self.spent_micro)

    # ------------------------------------------------------- order and settle

    def _order(self, decision: Decision, ready: list[EdgeSession], now: float) -> list[Effect]:
        """Reserve, then tell the edges; an empty round ends at once."""
        s = self.settings
        last = s.over(self.rounds_done + 1)
        ordered = plan_round(
            decision.observed,
            decision.selection,
            decision.controls,
            ready,
            now=now,
            settings=s,
            want_model=last or self.round % s.merge_every == 0,
        )
        self._ordered = ordered
        self.phase = Phase.ORDERED
        reserve = Reserve(
            self.round,
            decision.observed.view,
            decision.selection,
            ordered.context_seq,
            decision.controls,
        )
        if not ordered.parts:
            return [reserve, *self._settle(now)]
        orders: list[Effect] = [
            self._messages.order(ordered, part, now) for part in ordered.parts.values()
        ]
        half = (len(orders) + 1) // 2
        return [reserve, *orders[:half], CrashPoint("orders.half"), *orders[half:]]

    def _tick_ordered(self, now: float) -> list[Effect]:
        ordered = self._ordered
        assert ordered is not None
        if now >= ordered.give_up_at:
            return self._settle(now)
        return [self._messages.order(ordered, part, now) for part in ordered.due_again(now)]

    def _settle(self, now: float) -> list[Effect]:
        """End the round: books first, then receipts, then what is learnt."""
        ordered = self._ordered
        assert ordered is not None
        self._ordered = None
        parts = list(ordered.parts.values())
        waited_s = now - ordered.ordered_at
        result = _outcome(ordered, waited_s)
        self.counters.update({**result.odd, "client_declined": result.declined})
        self.timing_ms["train"] = _ms(waited_s)
        self.rounds_done += 1
        self.spent_micro += result.spent_micro
        reporters = [part for part in parts if part.report is not None]
        self._settled_reports.remember(ordered.round, frozenset(part.edge for part in reporters))
        effects: list[Effect] = [
            result.booked(ordered.round, self.timing_ms),
            *(
                self._messages.receipt(part.edge, ordered.round, too_late=False)
                for part in reporters
            ),
            *self._learn_or_hold(
                ordered, result.feedback, last=self.settings.over(self.rounds_done)
            ),
            *self._backoff.settle(ordered, result, began=self._opened_at, now=now),
        ]
        effects += self._warned(ordered, result)
        for edge in result.edges:
            self._trained(edge)
        self._over = ordered.round
        self._summary = round_event(
            ordered.round, result, ordered.controls, self.spent_micro, self.timing_ms
        )
        if ordered.want_model:
            firsts = {p.edge: p.report.first for p in reporters if p.report is not None}
            return effects + self._begin_merge(ordered.round, firsts, now)
        return effects + self._round_over(now)

    def _warned(self, ordered: OrderedRound, result: Settled) -> list[Effect]:
        """Return what devices that trained have to say of their samples, each text once."""
        details, rows = result.details, np.flatnonzero(~result.feedback.void).tolist()
        said: dict[str, list[int]] = {}
        for row in rows:
            if text := safe_text(details.reason[row], limit=200):
                said.setdefault(text, []).append(row)
        fresh = {text: rows for text, rows in said.items() if text not in self._notes}
        self._notes.update(itertools.islice(fresh, MAX_NOTES - len(self._notes)))
        return [
            Event("warning", {"agents": ordered.agents(rows)[:MAX_NAMED], "reason": text})
            for text, rows in fresh.items()
            if text in self._notes
        ]

    def _trained(self, result: EdgeResult) -> None:
        """Note the model that an edge has from now on."""
        session = self.edges.by_id[result.edge]
        if result.model and not result.failed:
            session.model = session.expected = result.model
            most = self.settings.max_samples
            session.window_weight += learnt_weight(result.weight, result.ordered, most)

    # --------------------------------------------------------- merge, and what follows

    def _begin_merge(self, round_: int, firsts: dict[str, bytes], now: float) -> list[Effect]:
        self.phase = Phase.MERGING
        return self.models.begin(round_, firsts, now) + self._merge_if_complete(now)

    def _merge_if_complete(self, now: float) -> list[Effect]:
        job = self.models.ask()
        if job is None:
            return []
        if {digest for digest, _ in job.models} <= {self.models.digest}:
            return self.merged(job.round, self.models.digest, now)
        return [job]

    def _round_over(self, now: float) -> list[Effect]:
        """Have its model evaluated if that is due; tell of the round, and go on at once."""
        if self._due is not None:
            return self._evaluate(self._due, now)
        summary, self._summary = self._summary, None
        effects: list[Effect] = []
        if summary is not None:
            seconds = round(now - self._opened_at, 6)
            effects.append(replace(summary, fields={**summary.fields, "seconds": seconds}))
        if self._finishing:
            return effects + self._end(self._finishing)
        self.round = self._over + 1
        if self.settings.over(self.rounds_done):
            return effects + self._end("rounds")
        opens_at = max(self._backoff.open_at, self._patience.not_before)
        if summary is not None and now < opens_at:
            self.phase = Phase.IDLE
            self._patience.until(opens_at)
            return effects
        return effects + self._open(now)

    def _after_call(self, now: float, *, opening: bool) -> list[Effect]:
        """Go on when a call is booked: decide the first round, or end the one before it."""
        return self._open(now) if opening else self._round_over(now)

    def _finish(self, reason: str, now: float) -> list[Effect]:
        """End the run, after a last merge if edges have learnt since the one before."""
        if self.models.learnt:
            self._finishing = reason
            return self._begin_merge(self._over, {}, now)
        return self._end(reason)

    def _finish_late(self, now: float) -> list[Effect]:
        """End a run whose last round was settled before a crash and not merged."""
        patient = now - self._readiness.started_at < self.settings.resume_wait_s
        if self.edges.windows and patient:
            self.phase = Phase.IDLE
            return self._patience.wait("edges", now, edges=len(self.edges.live()), agents=0)
        return self._finish("rounds", now)

    def _end(self, reason: str) -> list[Effect]:
        self.phase = Phase.ENDED
        self._patience.sleep()
        self._finishing = reason
        return [End(reason), *self.farewell()]

    def _wait(self, reason: str, now: float, *, edges: int = 0, agents: int = 0) -> list[Effect]:
        self.phase = Phase.IDLE
        detail = self._backoff.reason(now) if reason == DECLINED else ""
        wanted = self._readiness.wanted(reason, now)
        effects = self._patience.wait(
            reason, now, edges=edges, agents=agents, wanted=wanted, detail=detail
        )
        if not self.edges.live():
            self._patience.sleep()
        return effects


def _ms(seconds: float) -> float:
    return round(1000.0 * seconds, 3)


def _outcome(ordered: OrderedRound, waited_s: float) -> Settled:
    """Return how a round ended, with the rent that is due."""
    parts = list(ordered.parts.values())
    result = settle_outcomes(
        ordered.observed.view, ordered.selection.pairs, parts, waited_s=waited_s
    )
    placement = ordered.controls.placement
    return replace(result, feedback=with_rent(result.feedback, placement, parts))
