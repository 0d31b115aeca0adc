"""The phases of a round, but for the merge and the evaluation; each has its own data.

A phase ends by having the engine enter another one.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedagent_node.effects import Effect
from fedagent_protocol.columns import Columns
from fedagent_protocol.messages import RunEnded

from .decision import Decision
from .edges import EdgeSession
from .effects import End
from .observation import Observation, Observed, merge_observations
from .readiness import BUDGET, EDGES, RENTS

if TYPE_CHECKING:
    from .engine import Engine

REOPEN_S = 0.25
FAREWELL_S = 0.3


def milliseconds(seconds: float) -> float:
    """Return a duration as events and the books keep it."""
    return round(1000.0 * seconds, 3)


class Phase:
    """What the engine is doing; what a phase does not handle changes nothing."""

    name = ""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine

    def begin(self, now: float) -> list[Effect]:  # noqa: ARG002 - the interface's argument
        """Do what comes first."""
        return []

    def tick(self, now: float) -> list[Effect]:  # noqa: ARG002 - the interface's argument
        """Do what is due."""
        return []

    def next_due(self) -> float | None:
        """Return when `tick` is wanted; None while only messages matter."""
        return None

    def greet(self, edge: EdgeSession, now: float) -> list[Effect]:  # noqa: ARG002
        """Bring an edge that is new, back or restarted up to date."""
        return []


class Idle(Phase):
    """No round can be decided, or none may begin yet; `until` None waits for an edge."""

    name = "idle"

    def __init__(self, engine: "Engine", until: float | None) -> None:
        super().__init__(engine)
        self._until = until

    def tick(self, now: float) -> list[Effect]:
        """Ask the edges when it is time."""
        due = self.next_due()
        return self.engine.open(now) if due is not None and now >= due else []

    def next_due(self) -> float | None:
        """Return when to ask, never before the schedule."""
        return None if self._until is None else max(self._until, self.engine.not_before)

    def greet(self, edge: EdgeSession, now: float) -> list[Effect]:  # noqa: ARG002
        """Ask at the next tick."""
        self.hurry(now)
        return []

    def hurry(self, now: float) -> None:
        """Ask as soon as the schedule lets us."""
        self._until = now


class Ended(Phase):
    """The run is over."""

    name = "ended"

    def __init__(self, engine: "Engine", reason: str) -> None:
        super().__init__(engine)
        self._reason = reason
        self._closing = False
        self._repeat_at = self._until = math.inf

    def greet(self, edge: EdgeSession, now: float) -> list[Effect]:  # noqa: ARG002
        """Announce the end."""
        return [self.engine.send(edge.id, RunEnded(reason=self._reason))]

    def begin(self, now: float) -> list[Effect]:  # noqa: ARG002
        """Announce the end to every edge, and commit it."""
        return self._farewell() + self.evaluated()

    def evaluated(self) -> list[Effect]:
        """Commit the end once the last model is evaluated."""
        engine = self.engine
        if engine.evaluating or self._closing:
            return []
        if engine.settings.held_out and engine.evaluated != engine.models.digest:
            # A process that came back at the very end has not evaluated the last model.
            return [engine.evaluate_model(engine.models.round, engine.models.digest)]
        self._closing = True
        return [End(self._reason)]

    def closed(self, now: float) -> list[Effect]:
        """Announce the end for a while."""
        self._repeat_at, self._until = now, now + self.engine.settings.linger_s
        return self.tick(now)

    def tick(self, now: float) -> list[Effect]:
        """Announce the end again."""
        if now < self._repeat_at or now >= self._until:
            return []
        self._repeat_at = now + FAREWELL_S
        return self._farewell()

    def next_due(self) -> float | None:
        """Return when to announce the end again."""
        return self._repeat_at if self._repeat_at < self._until else None

    def _farewell(self) -> list[Effect]:
        ended = RunEnded(reason=self._reason)
        return [self.engine.send(edge.id, ended) for edge in self.engine.edges.live()]


class Observing(Phase):
    """All edges are asked for the columns of their agents; `answers` has the newest of each."""

    name = "observing"

    def __init__(self, engine: "Engine", now: float) -> None:
        super().__init__(engine)
        self.opened_at = now
        self.answers: dict[str, Observation] = {}
        self._reopen_at = now + REOPEN_S

    def begin(self, now: float) -> list[Effect]:  # noqa: ARG002
        """Ask every edge."""
        return [self.engine.ask_columns(edge) for edge in self.engine.edges.able()]

    def tick(self, now: float) -> list[Effect]:
        """Decide if nobody is waited for any longer; else ask again."""
        effects = self._consider(now)
        if self.engine.phase is self and now >= self._reopen_at:
            effects += self._reopen(now)
        return effects

    def next_due(self) -> float | None:
        """Return when to ask again, or to decide."""
        until = self._waits_until(self.engine.edges.able())
        return self._reopen_at if until is None else min(until, self._reopen_at)

    def greet(self, edge: EdgeSession, now: float) -> list[Effect]:  # noqa: ARG002
        """Ask the edge."""
        return [self.engine.ask_columns(edge)]

    def restarted(self, edge: str) -> None:
        """Drop what the former process of an edge answered: its sessions are no more."""
        self.answers.pop(edge, None)

    def model_is_coming(self, now: float) -> None:
        """Ask soon: an edge will hold the model in a moment."""
        self._reopen_at = min(self._reopen_at, now + 0.01)

    def caught_up(self, edge: EdgeSession) -> list[Effect]:
        """Ask an edge again that has got the model it lacked when it answered."""
        outdated = edge.id in self.answers and not self._ready(edge)
        return (
            [self.engine.ask_columns(edge)]
            if outdated and edge.model == edge.expected != ""
            else []
        )

    def receive_columns(self, edge: EdgeSession, columns: Columns, now: float) -> list[Effect]:
        """Take in an answer."""
        client = edge.client[columns.session]
        seen = Observation(edge.index, client, columns, now, edge.model, edge.id, edge.ids)
        self.answers[edge.id] = seen
        effects: list[Effect] = []
        if edge.model != edge.expected:
            effects = self.engine.models.catch_up(edge, self.engine.round, now)
        return effects + self._consider(now)

    def _ready(self, edge: EdgeSession) -> bool:
        answer = self.answers.get(edge.id)
        return answer is not None and answer.model == edge.expected != ""

    def _waits_until(self, live: list[EdgeSession]) -> float | None:
        """Return until when the round is held up, or None if by nobody.

        An edge that did not answer the last observation, and has been silent since, holds
        nobody up; one that is fetching the model does so for longer.
        """
        s = self.engine.settings
        if any(edge.id in self.answers and not self._ready(edge) for edge in live):
            return self.opened_at + s.recipe.rounds.merge_timeout_s
        if any(edge.id not in self.answers and not edge.quiet for edge in live):
            return self.opened_at + s.observe_timeout_s
        return None

    def _reopen(self, now: float) -> list[Effect]:
        self._reopen_at = now + REOPEN_S
        effects: list[Effect] = []
        for edge in self.engine.edges.able():
            if not self._ready(edge):
                effects.append(self.engine.ask_columns(edge))
                if edge.id in self.answers:
                    effects += self.engine.models.catch_up(edge, self.engine.round, now)
        return effects

    def _consider(self, now: float) -> list[Effect]:
        live = self.engine.edges.able()
        until = self._waits_until(live)
        if until is not None and now < until:
            return []
        for edge in live:
            edge.quiet = edge.id not in self.answers
        ready = [edge for edge in live if self._ready(edge)]
        if not ready:
            return self.engine.wait(EDGES, now)
        decided = self._decide(ready, now)
        said: list[Effect] = []
        for edge_id, agents in self.engine.terms.unsigned.items():
            said += self.engine.edges.by_id[edge_id].suspect("terms", agents)
        return said + decided

    def _decide(self, ready: list[EdgeSession], now: float) -> list[Effect]:
        engine, readiness, live = self.engine, self.engine.readiness, self.engine.edges.live()
        observed = self._view(ready, now)
        view, known = observed.view, engine.indices.sizes()
        engine.counters.update({f"pairs_{why}": n for why, n in observed.left_out.items()})
        agents = len(np.unique(view.pair_client[view.eligible]))
        heard = len(np.unique(view.pair_client)), len(np.unique(view.pair_edge))
        missing = readiness.missing(
            observed, edges=len(ready), agents=agents, free_micro=engine.free_micro, now=now
        )
        sure = heard[1] == len(live)
        if not missing:
            if (preparing := engine.prepare(now)) is not None:
                return preparing
            decision = engine.decider.decide(
                observed, ready, live, free_micro=engine.free_micro, done=engine.rounds_done
            )
            if isinstance(decision, Decision):
                engine.not_before = self.opened_at + engine.settings.recipe.rounds.every_s
                return engine.order(decision, ready, self.opened_at, now)
            missing, sure = decision.reason, decision.sure
        if missing != BUDGET:
            readiness.solvent()
            return engine.wait(missing, now, edges=len(ready), agents=agents)
        rents = engine.settings.recipe.placement.rents
        everybody = sure and len(live) == known[1]
        everybody &= rents or heard[0] == known[0]
        if readiness.out_of_means(now, rounds=engine.rounds_done, everybody=everybody):
            return engine.finish(BUDGET, now)
        return engine.wait(RENTS if rents else BUDGET, now, edges=len(ready), agents=agents)

    def _view(self, ready: list[EdgeSession], now: float) -> Observed:
        engine, s = self.engine, self.engine.settings
        clients, edges = engine.indices.sizes()
        budget = s.recipe.budget.per_edge_micro
        if engine.free_micro is not None:
            budget = min(budget, engine.free_micro)
        observed = merge_observations(
            [self.answers[edge.id] for edge in ready],
            round_=engine.round,
            now=now,
            sizes=(clients, edges),
            needs=engine.readiness.needs,
            edge_budget=np.full(edges, budget, dtype=np.int64),
            deadline_s=s.deadline_ms / 1000,
            model_bytes=engine.models.size,
            terms=engine.terms if engine.enrolled is not None else None,
        )
        left = observed.without(engine.client_backoff.away(observed.client_seq, now))
        view = replace(left.view, client_starts=engine.starts.note(observed.client_seq))
        return replace(left, view=engine.evaluations.shown_in(view))
