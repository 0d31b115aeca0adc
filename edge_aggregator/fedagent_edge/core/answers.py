"""One model under evaluation: what agents answer, and what of it goes up."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

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
    kind,
)
from fedagent_protocol.signed import CLAIM_BYTES, Asked, is_claim
from fedagent_task.moments import Moments, MomentsError

from .effects import EdgeState, Ignored
from .sessions import MAX_ROWS_BYTES, AgentSessions
from .weighing import Task


@dataclass(slots=True)
class Evaluation:
    """One model under evaluation: every agent is called; opinions, statistics or volunteers come.

    In mode ``peers`` opinions do not come here, and are dropped unread.
    """

    ask: OpinionOpen  # the coordinator's newest message about it
    task: Task
    settled_at: float = 0.0
    """Until then agents may come that were here before the edge's start, and it is not over
    although all have answered."""
    deadline: float = 0.0
    size: int = 0  # of the model, once it is here and agents are called
    over: bool = False  # its time is over, or all have answered
    ended: bool = False  # nothing of it is wanted any more
    receipted: bool = False
    up_at: float = math.inf
    asked: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    awaited: dict[str, float] = field(default_factory=dict)
    """When each that has not answered is called again; the first is the next."""
    given: dict[str, Opinion | Volunteer] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    """Why some answers do not count."""
    _moments: list[Moments] = field(default_factory=list)

    @property
    def final(self) -> bool:
        """Whether answers go up together, once none is waited for; otherwise as they come."""
        return self.ask.mode is not OpinionMode.PEERS

    def is_same(self, ask: OpinionOpen) -> bool:
        """Whether this is the evaluation that the coordinator asks for."""
        mine = self.ask
        if ask.mode is OpinionMode.MOMENTS and ask.slot != mine.slot:
            return False  # none had samples: they are asked anew
        return (mine.round, mine.model, mine.mode) == (ask.round, ask.model, ask.mode)

    def is_over(self, now: float) -> bool:
        """Whether nothing is waited for any more."""
        answered = self.final and self.size > 0 and not self.awaited
        return now >= self.deadline or (answered and now >= self.settled_at)

    def take(self, agent: str, answer: Opinion | Volunteer, state: EdgeState) -> str:
        """Take an answer; return what is wrong with it, if a person should know.

        Raises:
            Ignored: It is not the agent's first to what it was asked, in time, and its own.
        """
        name, ask = kind(answer), self.ask
        if agent not in self.asked or isinstance(answer, Opinion) is not self.final:
            raise Ignored(f"{name}_unasked")
        if isinstance(answer, Opinion) and answer.model != ask.model:
            raise Ignored("opinion_of_another_model")
        if agent in self.given:
            raise Ignored(f"{name}_twice")
        if self.over:
            raise Ignored(f"{name}_late")
        if not _is_theirs(state, ask, agent, answer):
            raise Ignored(f"{name}_unsigned")
        self.given[agent] = answer
        if isinstance(answer, Volunteer):
            return ""
        if not answer.samples:
            self.unused[agent] = "none"
        if not 0 <= answer.score <= 1:
            self.unused[agent] = "invalid"
        return self._moments_of(agent, answer) if ask.mode is OpinionMode.MOMENTS else ""

    def _moments_of(self, agent: str, answer: Opinion) -> str:
        if not answer.samples:
            return f"sent no statistics: {answer.reason or 'no samples'}"
        features = self.task.model.features if self.task.model is not None else 0
        most = self.task.limits.max_samples
        try:
            found = Moments.decode(answer.moments, features=features, most=most)
            reason = "" if found.count == answer.samples else "count"
        except MomentsError as error:
            reason = str(error)
        if reason:
            self.unused[agent] = "invalid"
            return f"its statistics are invalid: {reason}"
        self._moments.append(found)
        return ""

    def message(self, sessions: AgentSessions) -> EdgeToCoordinator:
        """Return what goes up, with the reasons why others have no part in it."""
        reasons = Counter({} if self.size else {"not_asked": sessions.present})
        for agent in self.asked:
            reason = "gone" if agent in self.gone else "missing"
            reasons[self.unused.get(agent, "") if agent in self.given else reason] += 1
        del reasons[""]
        match self.ask.mode:
            case OpinionMode.REPORT:
                return self._opinions(sessions, reasons)
            case OpinionMode.PEERS:
                return self._volunteers(sessions)
        found, ask = self._moments, self.ask
        return EdgeMoments(
            run=ask.run,
            round=ask.round,
            epoch=sessions.epoch,
            model=ask.model,
            moments=sum(found[1:], found[0]).encode() if found else b"",
            agents=len(found),
            asked=len(self.asked),
            reasons=dict(sorted(reasons.items())),
        )

    def _opinions(self, sessions: AgentSessions, without: Counter[str]) -> Opinions:
        """Return a row for every opinion that fits.

        What most scores are is the metric of all, so that no single agent decides it; an
        answer with another one, or of an agent whose id does not fit yet, has no row.
        """
        ask, given = self.ask, self.given.items()
        valid = {a: o for a, o in given if isinstance(o, Opinion) and a not in self.unused}
        listing = sessions.listing(ask.epoch, ask.known, sorted(valid))
        metrics = Counter(one.metric for one in valid.values())
        metric = max(sorted(metrics), key=metrics.__getitem__, default="")
        without["metric"] += sum(one.metric != metric for one in valid.values())
        same = {agent: one for agent, one in valid.items() if one.metric == metric}
        rows = _fitting(sessions, same, 20, listing.named)
        without["unnamed"] += len(same) - len(rows)
        opinions = [one for _, one in rows]
        epsilon = np.array([one.epsilon for one in opinions], "<f4")
        return Opinions(
            run=ask.run,
            round=ask.round,
            epoch=sessions.epoch,
            model=ask.model,
            known=listing.known,
            new_ids=listing.new_ids,
            session=np.array([index for index, _ in rows], "<i4").tobytes(),
            score=np.array([one.score for one in opinions], "<f4").tobytes(),
            samples=np.array([one.samples for one in opinions], "<i8").tobytes(),
            epsilon=epsilon.tobytes() if epsilon.any() else b"",
            metric=metric,
            asked=len(self.asked),
            reasons={why: count for why, count in sorted(without.items()) if count},
            claim=claim_column([one.claim for one in opinions]),
        )

    def _volunteers(self, sessions: AgentSessions) -> Volunteers:
        """Return all who have volunteered so far and can be named.

        Who was asked is named as well: the coordinator counts who is at two edges once.
        """
        ask = self.ask
        listing = sessions.listing(ask.epoch, ask.known, sorted(self.given), sorted(self.asked))
        rows = _fitting(sessions, self.given, 4, listing.named)
        return Volunteers(
            run=ask.run,
            round=ask.round,
            epoch=sessions.epoch,
            known=listing.known,
            new_ids=listing.new_ids,
            session=np.array([index for index, _ in rows], "<i4").tobytes(),
            asked=len(self.asked),
            claim=claim_column([one.claim for _, one in rows]),
        )


A = TypeVar("A", Opinion, Opinion | Volunteer)


def _fitting(
    sessions: AgentSessions, given: Mapping[str, A], row_bytes: int, named: int
) -> list[tuple[int, A]]:
    """Return the answers with a named index that fit one message, by it.

    They are more than a coordinator takes of one edge.
    """
    rows = sorted(((sessions.index(a), one) for a, one in given.items()), key=lambda row: row[0])
    rows = [row for row in rows if row[0] < named]
    claimed = any(one.claim for _, one in rows)
    return rows[: MAX_ROWS_BYTES // (row_bytes + (CLAIM_BYTES if claimed else 0))]


def _is_theirs(state: EdgeState, ask: OpinionOpen, agent: str, answer: Opinion | Volunteer) -> bool:
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
