"""What one edge tells of a call: opinions and volunteers as columns."""

from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np

from fedagent_protocol.messages import EdgeMoments, Opinion, OpinionOpen, Opinions, Volunteers

from .sessions import AgentSessions


def opinions_of(
    ask: OpinionOpen,
    sessions: AgentSessions,
    answers: Mapping[str, Opinion],
    reasons: Mapping[str, int],
    asked: Collection[str],
) -> Opinions:
    """Return the message with a row for every answer that fits.

    What most scores are is the metric of all, so that nobody's word alone decides; an
    answer with another one, or of an agent whose id does not fit yet, has no row.

    Args:
        ask: What the coordinator asked, and which ids it has.
        sessions: Where everybody's index is.
        answers: Valid ones with samples.
        reasons: How many have none, by reason.
        asked: Who was called.
    """
    listing = sessions.listing(ask.epoch, ask.known)
    rows, metric, without = _rows(sessions, answers, listing.named)
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
        reasons=dict(sorted((without + Counter(reasons)).items())),
    )


def moments_of(
    ask: OpinionOpen,
    sessions: AgentSessions,
    moments: bytes,
    agents: int,
    reasons: Mapping[str, int],
    asked: Collection[str],
) -> EdgeMoments:
    """Return the message with what the samples of all agents that answered add up to."""
    return EdgeMoments(
        run=ask.run,
        round=ask.round,
        epoch=sessions.epoch,
        model=ask.model,
        moments=moments,
        agents=agents,
        asked=len(asked),
        reasons=dict(sorted(reasons.items())),
    )


def _rows(
    sessions: AgentSessions, answers: Mapping[str, Opinion], named: int
) -> tuple[list[tuple[int, Opinion]], str, Counter[str]]:
    """Return (index, answer) in the order of indices, their metric, and why others have none."""
    metrics = Counter(one.metric for one in answers.values())
    metric = max(sorted(metrics), key=metrics.__getitem__, default="")
    without = Counter[str]()
    rows: list[tuple[int, Opinion]] = []
    for agent, one in answers.items():
        index = sessions.index(agent)
        if one.metric != metric:
            without["metric"] += 1
        elif index >= named:
            without["unnamed"] += 1
        else:
            rows.append((index, one))
    return sorted(rows, key=lambda row: row[0]), metric, without


def volunteers_of(
    ask: OpinionOpen, sessions: AgentSessions, volunteers: Collection[str], asked: Collection[str]
) -> Volunteers:
    """Return the message with everybody who has volunteered so far and can be named."""
    listing = sessions.listing(ask.epoch, ask.known)
    rows = sorted(sessions.index(agent) for agent in volunteers)
    named = [index for index in rows if index < listing.named]
    return Volunteers(
        run=ask.run,
        round=ask.round,
        epoch=sessions.epoch,
        known=listing.known,
        new_ids=listing.new_ids,
        session=np.array(named, "<i4").tobytes(),
        asked=len(asked),
    )
