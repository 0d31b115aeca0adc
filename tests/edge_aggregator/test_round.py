"""When a round closes and which updates count: the rule, and what surrounds it at an edge."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fedagent_edge.core.admission import Verdict
from fedagent_edge.core.effects import Ended
from fedagent_edge.core.round import HANDOVER_S, Client, Round, Stage
from fedagent_protocol import messages as m
from fedagent_protocol.transfer import Layout
from fedagent_task.aggregation import RoundRule

DIGEST = "a" * 64


def _round(ordered: int, *, enough: int = 1, deadline: int = 1000, most: int = 3000) -> Round:
    order = m.RoundOrder(
        run="0" * 32,
        round=1,
        task=DIGEST,
        assignments=tuple(m.Assignment(agent=f"a{i}") for i in range(ordered)),
        deadline_ms=deadline,
        max_wait_ms=most,
        min_updates=enough,
    )
    return Round("0" * 32, order, DIGEST, Layout(9, 1024), 10.0)


def _outcomes(rnd: Round, now: float) -> list[m.Outcome]:
    return [rnd.outcome(client, now) for client in rnd.clients.values()]


def _offer(samples: int = 10) -> m.UpdateOffer:
    return m.UpdateOffer(
        digest=DIGEST,
        size=9,
        chunk_bytes=1024,
        base=DIGEST,
        task=DIGEST,
        stats=m.TrainStats(num_samples=samples),
    )


def _complete(rnd: Round, agent: str, at: float) -> Client:
    client = rnd.clients[agent]
    client.offer, client.after_s = _offer(), rnd.after(at)
    client.go(Stage.CHECKING)
    return client


def _arrive(rnd: Round, agent: str, at: float) -> None:
    rnd.admit(_complete(rnd, agent, at), Verdict(norm=1.0))


moments = st.lists(st.floats(0.001, 5.0) | st.just(math.inf), max_size=8).filter(bool)
rules = st.builds(
    lambda deadline, more, enough: RoundRule(deadline / 1000, (deadline + more) / 1000, enough),
    st.integers(100, 4000),
    st.integers(-1000, 3000),
    st.integers(1, 9),
)


@given(rule=rules, moments=moments)
def test_a_round_ends_by_the_rule(rule: RoundRule, moments: list[float]) -> None:
    rnd, closed_at = _played(rule, moments)
    assert closed_at <= 10.0 + rule.give_up_s + 2 * HANDOVER_S
    outcomes = _outcomes(rnd, closed_at)
    assert sum(o.used for o in outcomes) == len(rnd.placed)
    for outcome, tau in zip(outcomes, moments, strict=True):
        assert outcome.in_time == (outcome.status is m.OutcomeStatus.ARRIVED)
        assert tau <= rule.deadline_s + 1e-9 or not outcome.in_time
        assert outcome.censored == (not outcome.valid)
    # An arrival within the hand-over grace of a limit, or of another, may fall on either side.
    limits = [rule.deadline_s, rule.give_up_s, *moments]
    if any(0 < abs(tau - one) <= 2 * HANDOVER_S for tau in moments for one in limits):
        return
    if len(set(moments) - {math.inf}) < sum(tau < math.inf for tau in moments):
        return
    ended = rule.settle(np.array(moments))
    assert [o.in_time for o in outcomes] == ended.in_time.tolist()
    assert [o.valid for o in outcomes] == ended.known.tolist()
    # An edge that fails keeps no aggregate, whatever was in its sum.
    assert [o.used and not rnd.failed for o in outcomes] == ended.used.tolist()
    waited = np.where(ended.known, moments, ended.wait_s)
    assert closed_at - 10.0 == pytest.approx(waited.max(), abs=2 * HANDOVER_S)


def _played(rule: RoundRule, moments: list[float]) -> tuple[Round, float]:
    """Let updates come until the round is over; return it, and when it closed."""
    limits = {"deadline": round(1000 * rule.deadline_s), "most": round(1000 * rule.max_wait_s)}
    rnd = _round(len(moments), enough=rule.min_updates, **limits)
    waiting, now = sorted((10.0 + tau, f"a{i}") for i, tau in enumerate(moments)), 10.0
    while not rnd.is_over(now):
        due = min((moment for moment in rnd.moments if moment > now), default=now + 1e-9)
        if waiting and waiting[0][0] <= due:
            now, agent = waiting.pop(0)
            _arrive(rnd, agent, now)
        else:
            now = due
    return rnd, now


@given(moments=st.lists(st.sampled_from([0.5, 1.0, 1.0 + 1e-9, 2.0, 3.0, 3.5]), min_size=1))
def test_a_restart_decides_the_same_again(moments: list[float]) -> None:
    before, after = _round(len(moments), enough=2), _round(len(moments), enough=2)
    for index, moment in enumerate(moments):
        _arrive(before, f"a{index}", 10.0 + moment)
    for client in before.clients.values():
        assert client.offer is not None
        record = Ended(client.key, client.after_s or 0.0, client.offer)
        after.restore(record, client.verdict)
    assert _outcomes(after, 14.0) == _outcomes(before, 14.0)
    assert [client.agent for client in after.placed] == [client.agent for client in before.placed]


def test_who_is_complete_in_time_is_waited_for_and_counts_by_its_stamp() -> None:
    rnd = _round(2)
    client = _complete(rnd, "a0", 10.99)
    assert not rnd.is_over(11.5), "its check is not done yet"
    rnd.admit(client, Verdict(norm=2.0))
    assert rnd.is_over(11.5)
    assert _outcomes(rnd, 11.5)[0].in_time
    assert _outcomes(rnd, 11.5)[0].tau_ms == 990


def test_nobody_claims_more_samples_of_a_score_than_of_an_update() -> None:
    rnd = _round(2)
    for agent, claimed in (("a0", 40), ("a1", 2**50)):
        _arrive(rnd, agent, 10.5)
        stats = structs.replace(_offer().stats, score=0.25, score_n=claimed)
        rnd.clients[agent].offer = structs.replace(_offer(), stats=stats)
    honest, boastful = _outcomes(rnd, 11.0)
    assert (honest.stats.score, honest.stats.score_n) == (0.25, 40)
    assert boastful.stats.score_n == rnd.order.max_samples


def test_an_agent_that_an_order_names_twice_is_waited_for_once() -> None:
    order = structs.replace(_round(1).order, assignments=(m.Assignment(agent="a0"),) * 2)
    rnd = Round("0" * 32, order, DIGEST, Layout(9, 1024), 10.0)
    _arrive(rnd, "a0", 10.1)
    assert rnd.is_over(10.2)
