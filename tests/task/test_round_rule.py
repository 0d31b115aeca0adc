"""The edge's rule: against a slow one, asked at once or update by update, and the live edge's."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_edge.core.admission import Verdict
from fedagent_edge.core.round import EdgeRound, Stage
from fedagent_protocol import messages as m
from fedagent_task.round_rule import RoundRule

DIGEST = "ab" * 32
BEGAN = 1000.0

# Away from deadline and give-up, which an edge handles a moment late.
moments = st.lists(st.integers(1, 60).map(lambda k: 0.1 * k + 0.05), max_size=8, unique=True)
taus = st.builds(lambda found, never: [*found, *[math.inf] * never], moments, st.integers(0, 2))
rules = st.builds(
    RoundRule,
    st.integers(0, 50).map(lambda k: 0.1 * k + 0.1),
    st.integers(0, 60).map(lambda k: 0.1 * k + 0.1),
    st.integers(1, 5),
)
Ended = list[tuple[bool, bool, bool]]
"""In time, used and known of each update."""


def slow(rule: RoundRule, found: list[float]) -> Ended:
    """One after the other, by the words of eq. 6."""
    here, give_up = sorted(found), max(rule.deadline_s, rule.max_wait_s)
    wanted = min(rule.min_updates, len(here))
    in_time = [t for t in here if t <= rule.deadline_s]
    possible = [t for t in here if t <= give_up]
    if len(in_time) >= wanted:
        aggregate, end = in_time, rule.deadline_s
    elif len(possible) >= wanted:
        aggregate, end = possible[:wanted], possible[wanted - 1]
    else:
        aggregate, end = [], give_up
    return [(tau <= rule.deadline_s, tau in aggregate, tau <= end) for tau in found]


def settled(rule: RoundRule, found: list[float]) -> Ended:
    ended = rule.settle(np.array(found, dtype=np.float64))
    return list(zip(ended.in_time.tolist(), ended.used.tolist(), ended.known.tolist(), strict=True))


def one_by_one(rule: RoundRule, found: list[float]) -> tuple[Ended, float]:
    """As a live edge asks: in the order of arrival, until the round is over."""
    ordered, joined, known = len(found), set[int](), set[int]()
    for place in np.argsort(found, kind="stable").tolist():
        tau = found[place]
        if rule.is_over(tau, used=len(joined), ordered=ordered):
            break
        known.add(place)
        if rule.counts(tau, used=len(joined), ordered=ordered):
            joined.add(place)
    enough = len(joined) >= rule.enough(ordered)
    ended = [
        (t <= rule.deadline_s, i in joined and enough, i in known) for i, t in enumerate(found)
    ]
    return ended, max((found[i] for i in joined), default=0.0)


@given(rule=rules, found=taus)
def test_it_is_the_rule(rule: RoundRule, found: list[float]) -> None:
    assert settled(rule, found) == slow(rule, found)


@given(rule=rules, found=taus)
def test_asked_update_by_update_it_is_the_same(rule: RoundRule, found: list[float]) -> None:
    ended, last = one_by_one(rule, found)
    assert ended == settled(rule, found)
    wait = rule.settle(np.array(found)).wait_s
    assert rule.deadline_s <= wait <= rule.give_up_s
    if rule.deadline_s < wait < rule.give_up_s:
        assert wait == last


@given(rule=rules, found=taus)
def test_it_is_what_the_live_edge_does(rule: RoundRule, found: list[float]) -> None:
    if not found:
        return
    live = live_edge(rule, found)
    assert settled(rule, found) == [
        # An edge that fails keeps no aggregate, whatever was in its sum.
        (one.in_time, one.used and not live.failed, one.valid)
        for one in live.outcomes(live.closed_at)
    ]
    ended = rule.settle(np.array(found))
    longest = max(
        tau if known else ended.wait_s
        for tau, known in zip(found, ended.known.tolist(), strict=True)
    )
    assert live.closed_at - BEGAN == pytest.approx(longest, abs=0.012)


def live_edge(rule: RoundRule, found: list[float]) -> EdgeRound:
    """Let a round of the edge aggregator run to its end."""
    order = m.RoundOrder(
        run="0" * 32,
        round=1,
        task=DIGEST,
        assignments=tuple(m.Assignment(agent=f"a{i}") for i in range(len(found))),
        deadline_ms=round(rule.deadline_s * 1000),
        max_wait_ms=round(rule.max_wait_s * 1000),
        min_updates=rule.min_updates,
        weighting=m.Weighting.UNIFORM,
    )
    live = EdgeRound("0" * 32, order, DIGEST, BEGAN)
    arrivals = sorted((BEGAN + tau, f"a{i}") for i, tau in enumerate(found))
    now = BEGAN
    while not live.is_over(now):
        due = live.next_due(now)
        if arrivals and arrivals[0][0] <= due:
            now, agent = arrivals.pop(0)
            part = live.parts[agent]
            part.offer = m.UpdateOffer(
                digest=DIGEST,
                size=9,
                chunk_bytes=1024,
                base=DIGEST,
                task=DIGEST,
                stats=m.TrainStats(num_samples=1),
            )
            live.complete(agent, now)
            live.checked(agent, Verdict(norm=1.0))
            part.stage = Stage.ENDED
        else:
            now = due
    live.closed_at = now
    return live
