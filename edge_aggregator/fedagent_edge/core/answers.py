"""What agents answer when they evaluate a model, and what of it goes up: one class a mode."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedagent_protocol.columns import claim_column
from fedagent_protocol.messages import (
    EdgeMoments,
    EdgeToCoordinator,
    Opinion,
    OpinionMode,
    OpinionOpen,
    Opinions,
    Volunteer,
    Volunteers,
)
from fedagent_protocol.signed import CLAIM_BYTES, Asked, is_claim
from fedagent_task.moments import Moments, MomentsError

from .effects import EdgeState, Ignored
from .sessions import MAX_ROWS_BYTES, AgentSessions


@dataclass(slots=True)
class Scores:
    """An opinion of each agent, in mode ``report``."""

    final: bool = field(default=True, init=False)
    """They go up together, once none is waited for; otherwise as they come."""
    model: str
    _given: dict[str, Opinion] = field(default_factory=dict)
    _invalid: set[str] = field(default_factory=set)

    def __contains__(self, agent: str) -> bool:
        return agent in self._given

    def check(self, agent: str, answer: Opinion | Volunteer, *, asked: bool) -> None:
        """Raise `Ignored` where an answer is not taken."""
        if isinstance(answer, Volunteer):
            raise Ignored("volunteer_unasked")
        if not asked:
            raise Ignored("opinion_unasked")
        if answer.model != self.model:
            raise Ignored("opinion_of_another_model")
        if agent in self._given:
            raise Ignored("opinion_twice")

    def take(self, agent: str, answer: Opinion | Volunteer, counters: Counter[str]) -> str:
        """Take an answer; return what is wrong with it, if a person should know."""
        assert isinstance(answer, Opinion)
        self._given[agent] = answer
        if not 0 <= answer.score <= 1:
            counters["opinion_invalid"] += 1
            self._invalid.add(agent)
        return ""

    def unused(self, agent: str) -> str:
        """Return why the answer of an agent does not count, or an empty string."""
        if agent in self._invalid:
            return "invalid"
        return "" if self._given[agent].samples else "none"

    @property
    def used(self) -> int:
        """How many answers count."""
        return sum(not self.unused(agent) for agent in self._given)

    def message(
        self,
        ask: OpinionOpen,
        sessions: AgentSessions,
        asked: Collection[str],
        reasons: Mapping[str, int],
    ) -> EdgeToCoordinator:
        """Return a row for every opinion that fits.

        What most scores are is the metric of all, so that no single agent decides it; an
        answer with another one, or of an agent whose id does not fit yet, has no row.
        """
        valid = {agent: one for agent, one in self._given.items() if not self.unused(agent)}
        listing = sessions.listing(ask.epoch, ask.known, sorted(valid))
        metrics = Counter(one.metric for one in valid.values())
        metric = max(sorted(metrics), key=metrics.__getitem__, default="")
        without = Counter(reasons)
        rows: list[tuple[int, Opinion]] = []
        for agent, one in valid.items():
            index = sessions.index(agent)
            if one.metric != metric:
                without["metric"] += 1
            elif index >= listing.named:
                without["unnamed"] += 1
            else:
                rows.append((index, one))
        rows.sort(key=lambda row: row[0])
        room = _room(20, [one.claim for _, one in rows])
        if len(rows) > room:
            without["unnamed"] += len(rows) - room
            del rows[room:]
        epsilon = np.array([one.epsilon for _, one in rows], "<f4")
        return Opinions(
            run=ask.run,
            round=ask.round,
            epoch=sessions.epoch,
            model=ask.model,
            known=listing.known,
            new_ids=listing.new_ids,
            session=np.array([index for index, _ in rows], "<i4").tobytes(),
            score=np.array([one.score for _, one in rows], "<f4").tobytes(),
            samples=np.array([one.samples for _, one in rows], "<i8").tobytes(),
            epsilon=epsilon.tobytes() if epsilon.any() else b"",
            metric=metric,
            asked=len(asked),
            reasons=dict(sorted(without.items())),
            claim=claim_column([one.claim for _, one in rows]),
        )


@dataclass(slots=True)
class Statistics(Scores):
    """What the samples of each agent add up to, in mode ``moments``."""

    features: int = 0  # what moments must have, and below may count
    max_samples: int = 0
    _moments: list[Moments] = field(default_factory=list)

    def take(self, agent: str, answer: Opinion | Volunteer, counters: Counter[str]) -> str:
        """As for `Scores`."""
        Scores.take(self, agent, answer, counters)
        assert isinstance(answer, Opinion)
        if not answer.samples:
            return f"sent no statistics: {answer.reason or 'no samples'}"
        try:
            found = Moments.decode(answer.moments, features=self.features, most=self.max_samples)
            reason = "" if found.count == answer.samples else "count"
        except MomentsError as error:
            reason = str(error)
        if reason:
            counters[f"moments_{reason}"] += 1
            self._invalid.add(agent)
            return f"its statistics are invalid: {reason}"
        self._moments.append(found)
        return ""

    def message(
        self,
        ask: OpinionOpen,
        sessions: AgentSessions,
        asked: Collection[str],
        reasons: Mapping[str, int],
    ) -> EdgeToCoordinator:
        """Return one sum of all agents."""
        found = self._moments
        return EdgeMoments(
            run=ask.run,
            round=ask.round,
            epoch=sessions.epoch,
            model=ask.model,
            moments=sum(found[1:], found[0]).encode() if found else b"",
            agents=len(found),
            asked=len(asked),
            reasons=dict(sorted(reasons.items())),
        )


@dataclass(slots=True)
class Volunteering:
    """Who volunteers, in mode ``peers``; opinions do not come here, and are dropped unread."""

    final: bool = field(default=False, init=False)
    _agents: dict[str, bytes] = field(default_factory=dict)
    """With the claim of each."""

    def __contains__(self, agent: str) -> bool:
        return agent in self._agents

    def check(self, agent: str, answer: Opinion | Volunteer, *, asked: bool) -> None:
        """As for `Scores`."""
        if isinstance(answer, Opinion):
            raise Ignored("opinion_unasked")
        if not asked:
            raise Ignored("volunteer_unasked")
        if agent in self._agents:
            # It repeats itself until its order comes.
            raise Ignored("volunteer_twice")

    def take(self, agent: str, answer: Opinion | Volunteer, counters: Counter[str]) -> str:  # noqa: ARG002 - others count
        """As for `Scores`."""
        self._agents[agent] = answer.claim
        return ""

    def unused(self, agent: str) -> str:  # noqa: ARG002 - others have reasons
        """As for `Scores`."""
        return ""

    @property
    def used(self) -> int:
        """As for `Scores`."""
        return len(self._agents)

    def message(
        self,
        ask: OpinionOpen,
        sessions: AgentSessions,
        asked: Collection[str],
        reasons: Mapping[str, int],
    ) -> EdgeToCoordinator:
        """Return all who have volunteered so far and can be named.

        Who was asked is named as well: the coordinator counts who is at two edges once.
        """
        del reasons
        listing = sessions.listing(ask.epoch, ask.known, sorted(self._agents), sorted(asked))
        rows = sorted((sessions.index(agent), claim) for agent, claim in self._agents.items())
        named = [row for row in rows if row[0] < listing.named]
        named = named[: _room(4, [claim for _, claim in named])]
        return Volunteers(
            run=ask.run,
            round=ask.round,
            epoch=sessions.epoch,
            known=listing.known,
            new_ids=listing.new_ids,
            session=np.array([index for index, _ in named], "<i4").tobytes(),
            asked=len(asked),
            claim=claim_column([claim for _, claim in named]),
        )


Answers = Scores | Volunteering


def _room(row_bytes: int, claims: list[bytes]) -> int:
    """Return how many rows fit one message: more than a coordinator takes of one edge."""
    return MAX_ROWS_BYTES // (row_bytes + (CLAIM_BYTES if any(claims) else 0))


def is_theirs(state: EdgeState, ask: OpinionOpen, agent: str, answer: Opinion | Volunteer) -> bool:
    """Return whether the claim of an answer is the agent's, if it has one.

    The coordinator would take a wrong one for the edge's own work; what has none it refuses in a
    site with certificates.
    """
    if not answer.claim:
        return True
    mine = state.memory
    asked = Asked(
        site=state.config.site, run=mine.run, round=ask.round, task=mine.task, model=ask.model
    )
    if isinstance(answer, Opinion):
        return is_claim(answer.claim, agent, asked.opinion(agent, answer))
    return is_claim(answer.claim, agent, asked.volunteer(agent, state.me.edge))


def answers_to(ask: OpinionOpen, features: int, max_samples: int) -> Answers:
    """Return where the answers to a question go."""
    match ask.mode:
        case OpinionMode.REPORT:
            return Scores(ask.model)
        case OpinionMode.MOMENTS:
            return Statistics(ask.model, features=features, max_samples=max_samples)
        case OpinionMode.PEERS:
            return Volunteering()
