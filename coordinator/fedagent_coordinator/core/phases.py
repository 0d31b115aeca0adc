"""The phases between rounds, and the one in which a round is decided.

`Idle` waits for what is missing, or for the schedule; `Observing` asks the edges and decides;
`Evaluating`, `Ordered` and `Merging` go on from there and come back here; `Ended` is the last.
"""

import math
from dataclasses import replace
from functools import partial

import numpy as np

from fedagent_coordinator.policies.state import grown
from fedagent_node.effects import Emit, Warn
from fedagent_protocol.columns import Columns
from fedagent_protocol.messages import STARTS_BITS, OpinionMode, RunEnded

from .answers import Call
from .decision import decide
from .edges import EdgeSession
from .effects import End, Reserve, RunClosed, Standardize
from .evaluating import Evaluating
from .merge import Merging
from .observation import Observation, Observed, merge_observations
from .ordered import Ordered
from .readiness import BUDGET, EDGES, RENTS, STATISTICS
from .run import Phase, Run
from .settings import milliseconds

REOPEN_S = 0.25
FAREWELL_S = 0.3


# ----------------------------------------------------- from one round to the next


def wait(run: Run, reason: str, now: float, *, edges: int = 0, agents: int = 0) -> Phase:
    """Pause for what is missing; without any edge, until one comes."""
    run.announce(reason, now, edges=edges, agents=agents)
    return Idle(run, run.waits_until if run.edges.live() else math.inf)


def next_round(run: Run, now: float) -> Phase:
    """Ask all edges for the columns of the next round; end the run where none follows."""
    live = run.edges.live()
    if reason := run.over:
        patient = now - run.readiness.started_at < run.settings.resume_wait_s
        if not (reason == "rounds" and run.edges.windows and patient):
            return finish(run, reason, now)
        # The last round was settled before a crash and not merged: its edges may come yet.
        run.announce(EDGES, now, edges=len(live))
        return Idle(run, run.waits_until)
    if not live:
        run.readiness.insolvent_since = None
        return wait(run, EDGES, now)
    return Observing(run, now)


def after_round(run: Run, now: float) -> Phase:
    """Go on after a round that was settled, merged and evaluated."""
    run.numbers.go_on()
    opens_at = max(run.opens_at, run.not_before)
    return next_round(run, now) if run.over or now >= opens_at else Idle(run, opens_at)


def finish(run: Run, reason: str, now: float) -> Phase:
    """End the run, after a last merge if edges have learnt since the one before."""
    if not run.models.learnt:
        return Ended(run, reason)
    return Merging(run, run.numbers.settled, now, lambda _: Ended(run, reason))


def prepare(run: Run, now: float) -> Phase | None:
    """Begin what comes before a round is decided; None if nothing does."""
    if run.unmeasured:
        return _measure(run, now)
    pending, run.evaluations.pending = run.evaluations.pending, None
    if pending is None:
        return None
    run.waited = "", 0
    return Evaluating(run, run.call(pending, now), lambda _, now: next_round(run, now), now)


def _measure(run: Run, now: float) -> Phase:
    """Ask every live edge what its agents' samples add up to, before the first round."""
    s, live = run.settings, run.edges.live()
    run.measurements += 1
    until = now + s.recipe.data.standardize_s
    call = Call(
        mode=OpinionMode.MOMENTS,
        round=0,
        slot=run.measurements,
        digest=run.models.digest,
        began=now,
        until=until,
        give_up_at=until + s.grace_s,
    )
    agents = sum(edge.agents for edge in live)
    run.announce(STATISTICS, now, edges=len(live), agents=agents)

    def added_up(evaluation: Evaluating, now: float) -> Phase:
        # An edge that fell silent does not count: its agents may have moved to another one.
        live = run.edges.able()
        parts = [evaluation.parts[edge.id] for edge in live if edge.id in evaluation.parts]
        answers = [part.answer for part in parts if part.answer is not None]
        found = [answer.moments for answer in answers if answer.moments is not None]
        if not found:
            return wait(run, STATISTICS, now, edges=len(live))
        agents = sum(answer.agents for answer in answers)
        total = sum(found[1:], found[0])
        if total.names is None and not s.recipe.data.features:
            why = "streams call their features differently, and may mean others"
            run.do(Warn("", f"{why}; name them in data.features of the recipe", once=True))
        run.do(Standardize(total, agents))
        return Phase(run)  # the engine goes on when it is written

    return Evaluating(run, call, added_up, now)


class Idle(Phase):
    """No round can be decided, or none may begin before `until`, or before an edge comes."""

    def __init__(self, run: Run, until: float) -> None:
        super().__init__(run)
        self.due = max(until, run.not_before)

    def step(self, now: float) -> Phase:
        """Ask the edges when it is time."""
        return next_round(self.run, now) if now >= self.due else self

    def greet(self, edge: EdgeSession, now: float) -> None:  # noqa: ARG002
        """Ask as soon as the schedule lets us."""
        self.due = max(now, self.run.not_before)


class Ended(Phase):
    """The run is over: every edge is told, and once the last model is evaluated, the books."""

    def __init__(self, run: Run, reason: str) -> None:
        super().__init__(run)
        self._reason, self._closing, self._until = reason, False, -math.inf
        for edge in run.edges.live():
            self.greet(edge, 0.0)

    def greet(self, edge: EdgeSession, now: float) -> None:  # noqa: ARG002
        """Announce the end."""
        self.run.send(edge.id, RunEnded(reason=self._reason))

    def closed(self, ended: RunClosed, now: float) -> None:
        """Announce the end for a while."""
        self.run.do(Emit("end", ended.fields))
        self.due, self._until = now, now + self.run.settings.linger_s

    takes = {RunClosed: closed}  # noqa: RUF012 - of the class

    def step(self, now: float) -> Phase:
        """Commit the end, or announce it again."""
        run, digest = self.run, self.run.models.digest
        if not (self._closing or run.evaluating):
            if run.settings.held_out and run.evaluated != digest:
                # A process that came back at the very end has not evaluated the last model.
                run.evaluate_model(run.models.round, digest)
                return self
            self._closing = True
            run.do(End(self._reason))
        if now >= self.due:
            for edge in run.edges.live() if now < self._until else ():
                self.greet(edge, now)
            again = now + FAREWELL_S
            self.due = again if again < self._until else math.inf
        return self


class Observing(Phase):
    """All edges are asked for the columns of their agents; `answers` has the newest of each."""

    def __init__(self, run: Run, now: float) -> None:
        super().__init__(run)
        self.opened_at, self._reopen_at, self._heard = now, now + REOPEN_S, True
        self.answers: dict[str, Observation] = {}
        for edge in run.edges.able():
            run.ask_columns(edge)

    def step(self, now: float) -> Phase:
        """Decide if nobody is waited for any longer; else ask again."""
        if now < self.due and not self._heard:
            return self
        run, able, self._heard = self.run, self.run.edges.able(), False
        until = self._waits_until(able)
        if now >= until:
            for edge in able:
                edge.quiet = edge.id not in self.answers
            ready = [edge for edge in able if self._ready(edge)]
            return self._decide(ready, now) if ready else wait(run, EDGES, now)
        if now >= self._reopen_at:
            self._reopen_at = now + REOPEN_S
            for edge in able:
                if not self._ready(edge):
                    run.ask_columns(edge)
                    if edge.id in self.answers:
                        run.models.catch_up(edge, run.numbers.round, now)
        self.due = min(until, self._reopen_at)
        return self

    def greet(self, edge: EdgeSession, now: float) -> None:  # noqa: ARG002
        """Ask the edge: what a former process answered is of sessions that are no more."""
        self.answers.pop(edge.id, None)
        self._heard = True
        self.run.ask_columns(edge)

    def caught_up(self, edge: EdgeSession) -> None:
        """Ask an edge again that has got the model it lacked when it answered."""
        outdated = edge.id in self.answers and not self._ready(edge)
        if outdated and edge.model == edge.expected != "":
            self.run.ask_columns(edge)

    def receive_columns(self, edge: EdgeSession, columns: Columns, now: float) -> None:
        """Take in an answer."""
        client = edge.client[columns.session]
        seen = Observation(edge.index, client, columns, now, edge.model, edge.id, edge.ids)
        self.answers[edge.id], self._heard = seen, True
        if edge.model != edge.expected:
            self.run.models.catch_up(edge, self.run.numbers.round, now)

    def _ready(self, edge: EdgeSession) -> bool:
        answer = self.answers.get(edge.id)
        return answer is not None and answer.model == edge.expected != ""

    def _waits_until(self, able: list[EdgeSession]) -> float:
        """Return until when the round is held up.

        An edge that did not answer the last observation, and has been silent since, holds
        nobody up; one that is fetching the model does so for longer.
        """
        s, answers = self.run.settings, self.answers
        if any(edge.id in answers and not self._ready(edge) for edge in able):
            return self.opened_at + s.recipe.rounds.merge_timeout_s
        if any(edge.id not in answers and not edge.quiet for edge in able):
            return self.opened_at + s.observe_timeout_s
        return self.opened_at + (0.0 if answers else REOPEN_S)

    def _decide(self, ready: list[EdgeSession], now: float) -> Phase:
        run, observed = self.run, self._view(ready, now)
        for name, unsigned in run.terms.unsigned.items():
            run.do(*run.edges.by_id[name].suspect("terms", unsigned))
        readiness, live, view = run.readiness, run.edges.live(), observed.view
        agents, edges = len(np.unique(view.pair_client[view.eligible])), len(ready)
        began, money = run.clock(), (run.free_micro, run.rounds_done)
        found = (
            readiness.missing(observed, edges=edges, agents=agents, free_micro=money[0], now=now)
            or prepare(run, now)
            or decide(run.learning, run.settings, observed, ready, live, *money)
        )
        if found != BUDGET:
            readiness.insolvent_since = None
        if isinstance(found, Phase):
            return found
        if isinstance(found, Reserve):
            run.waited = "", 0
            run.not_before = self.opened_at + run.settings.recipe.rounds.every_s
            found.timing_ms["observe"] = milliseconds(now - self.opened_at)
            found.timing_ms["decide"] = milliseconds(run.clock() - began)
            return Ordered(run, found, ready, self.opened_at, now, partial(after_round, run))
        if found != BUDGET:
            return wait(run, found, now, edges=edges, agents=agents)
        rents, known = run.settings.recipe.placement.rents, run.indices.sizes()
        everybody = len(np.unique(view.pair_edge)) == known[1]
        if rents:
            everybody &= all(edge.rent is not None for edge in live)
        else:
            everybody &= len(np.unique(view.pair_client)) == known[0]
        if readiness.out_of_means(now, rounds=run.rounds_done, everybody=everybody):
            return finish(run, BUDGET, now)
        return wait(run, RENTS if rents else BUDGET, now, edges=edges, agents=agents)

    def _view(self, ready: list[EdgeSession], now: float) -> Observed:
        run, s = self.run, self.run.settings
        clients, edges = run.indices.sizes()
        budget = s.recipe.budget.per_edge_micro
        if run.free_micro is not None:
            budget = min(budget, run.free_micro)
        observed = merge_observations(
            [self.answers[edge.id] for edge in ready],
            round_=run.numbers.round,
            now=now,
            sizes=(clients, edges),
            needs=run.readiness.needs,
            edge_budget=np.full(edges, budget, dtype=np.int64),
            deadline_s=s.deadline_ms / 1000,
            model_bytes=run.models.size,
            terms=run.terms if run.members.agents is not None else None,
            away=partial(run.client_backoff.away, now=now),
        )
        run.counters.update({f"pairs_{why}": n for why, n in observed.left_out.items()})
        # No number of starts falls, whatever edges say.
        starts = observed.client_seq >> STARTS_BITS
        run.starts = np.maximum(starts, grown(run.starts, clients))
        said = run.evaluations.shown(clients)
        return replace(observed, view=replace(observed.view, client_starts=run.starts, **said))
