"""The edge's rule: against a slow one, asked at once or update by update."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedagent_task.round_rule import RoundRule

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
