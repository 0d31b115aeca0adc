"""When a round closes and who counts (ALGORITHMS section 1), against a literal oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fedagent_edge.core.admission import Verdict
from fedagent_edge.core.round import HANDOVER_S, EdgeRound, Stage
from fedagent_protocol import messages as m

DIGEST = "a" * 64


def _round(ordered: int, *, enough: int = 1, deadline: int = 1000, most: int = 3000) -> EdgeRound:
    order = m.RoundOrder(
        run="0" * 32,
        round=1,
        task=DIGEST,
        assignments=tuple(m.Assignment(agent=f"a{i}") for i in range(ordered)),
        deadline_ms=deadline,
        max_wait_ms=most,
        min_updates=enough,
    )
    return EdgeRound("0" * 32, order, DIGEST, 10.0)


def _offer(samples: int = 10) -> m.UpdateOffer:
    return m.UpdateOffer(
        digest=DIGEST,
        size=9,
        chunk_bytes=1024,
        base=DIGEST,
        task=DIGEST,
        stats=m.TrainStats(num_samples=samples),
    )


def _arrive(rnd: EdgeRound, agent: str, at: float) -> None:
    part = rnd.parts[agent]
    part.offer = _offer()
    rnd.complete(agent, at)
    rnd.checked(agent, Verdict(norm=1.0))
    part.stage = Stage.ENDED


@given(
    st.lists(st.one_of(st.none(), st.floats(0.001, 5.0)), min_size=1, max_size=8),
    st.integers(1, 9),
)
def test_the_rule_matches_the_paper_read_literally(
    arrivals: list[float | None], enough: int
) -> None:
    rnd = _round(len(arrivals), enough=enough)
    z_eff = min(enough, len(arrivals))
    waiting = sorted((tau, i) for i, tau in enumerate(arrivals) if tau is not None)
    now, closed_at = 10.0, None
    for tau, index in [*waiting, (99.0, -1)]:
        while now < 10.0 + tau and closed_at is None:
            if rnd.is_over(now):
                closed_at = now
            else:
                now = min(10.0 + tau, max(rnd.next_due(now), now + 1e-9))
        if closed_at is None and index >= 0:
            _arrive(rnd, f"a{index}", 10.0 + tau)
            if rnd.is_over(now):
                closed_at = now
    in_time = [tau for tau, _ in waiting if tau <= 1.0]
    fastest = [tau for tau, _ in waiting[:z_eff] if tau <= 3.0]
    want = len(in_time) if len(in_time) >= z_eff else len(fastest)
    assert closed_at is not None
    assert closed_at <= 13.0 + 2 * HANDOVER_S
    # An arrival within the hand-over grace of an instant may fall on either side of it.
    blurred = any(abs(tau - edge) <= 2 * HANDOVER_S for tau, _ in waiting for edge in (1.0, 3.0))
    if not blurred:
        assert rnd.used == want
        assert bool(rnd.failed) == (want < z_eff)
    outcomes = rnd.outcomes(closed_at)
    assert sum(o.used for o in outcomes) == rnd.used
    for outcome, arrival in zip(outcomes, arrivals, strict=True):
        assert outcome.in_time == (outcome.status is m.OutcomeStatus.ARRIVED)
        if outcome.in_time:
            assert arrival is not None
            assert arrival <= 1.0
        assert outcome.censored == (not outcome.valid)


def test_all_answered_closes_early() -> None:
    rnd = _round(2)
    _arrive(rnd, "a0", 10.1)
    assert not rnd.is_over(10.2)
    assert rnd.decline("a1", m.DeclineReason.BUSY, "", 10.2)
    assert rnd.is_over(10.2)
    assert not rnd.failed


def test_who_is_complete_in_time_is_waited_for_and_counts_by_its_stamp() -> None:
    rnd = _round(2)
    rnd.parts["a0"].offer = _offer()
    rnd.complete("a0", 10.99)
    assert not rnd.is_over(11.5), "its check is not done yet"
    rnd.checked("a0", Verdict(norm=2.0))
    rnd.parts["a0"].stage = Stage.ENDED
    assert rnd.is_over(11.5)
    assert rnd.outcomes(11.5)[0].in_time
    assert rnd.outcomes(11.5)[0].tau_ms == 990


def test_claimed_durations_are_never_longer_than_the_measured_one() -> None:
    rnd = _round(1)
    part = rnd.parts["a0"]
    part.offer = m.UpdateOffer(
        digest=DIGEST,
        size=9,
        chunk_bytes=1024,
        base=DIGEST,
        task=DIGEST,
        stats=m.TrainStats(num_samples=1, dt_ms=400, lc_ms=2**31),
    )
    rnd.complete("a0", 10.5)
    rnd.checked("a0", Verdict())
    outcome = rnd.outcomes(11.0)[0]
    assert (outcome.stats.dt_ms, outcome.stats.lc_ms, outcome.ut_ms) == (400, 100, 0)


@pytest.mark.parametrize("weighting", list(m.Weighting))
def test_weights(weighting: m.Weighting) -> None:
    rnd = _round(1)
    rnd.order = m.RoundOrder(
        task=DIGEST, assignments=(), deadline_ms=1000, max_wait_ms=2000, weighting=weighting
    )
    _arrive(rnd, "a0", 10.1)
    assert rnd.parts["a0"].weight == (10.0 if weighting is m.Weighting.SAMPLES else 1.0)


def test_a_round_that_nobody_is_ordered_in_is_over_and_failed() -> None:
    rnd = _round(0)
    assert rnd.is_over(10.0)
    assert rnd.failed


def test_nobody_claims_more_samples_of_a_score_than_of_an_update() -> None:
    rnd = _round(2)
    for agent, claimed in (("a0", 40), ("a1", 2**50)):
        _arrive(rnd, agent, 10.5)
        stats = structs.replace(_offer().stats, score=0.25, score_n=claimed)
        rnd.parts[agent].offer = structs.replace(_offer(), stats=stats)
    honest, boastful = rnd.outcomes(11.0)
    assert (honest.stats.score, honest.stats.score_n) == (0.25, 40)
    assert boastful.stats.score_n == rnd.order.max_samples
