"""Trust in devices: who lies or does no work loses it, is ordered less, and can win it back."""

from dataclasses import replace

import numpy as np
import pytest

from fedagent_coordinator.core.trust import Trust, evidence
from fedagent_coordinator.policies.adaptive import AdaptivePolicy
from fedagent_coordinator.policies.base import Feedback, RoundView
from fedagent_task.aggregation.alignment import COPIED, ELSEWHERE, OPPOSED
from tests.fakes.rounds import column_view, ended

CLIENTS = 10
LIARS = 2


def view(round_: int) -> RoundView:
    """Return a round of ten devices at one edge, which can pay half of them."""
    return column_view(round_, price=[1] * CLIENTS, budget=5)


def feedback(seen: RoundView, pairs: np.ndarray, believed: np.ndarray) -> Feedback:
    n = len(pairs)
    told = ended(seen, pairs.tolist(), tau_s=[0.1] * n)
    return replace(told, num_samples=np.full(n, 10), evidence=believed)


def believed(norms: list[float], **given: object) -> list[float]:
    n = len(norms)
    facts = {
        "samples": np.full(n, 10),
        "reason": [""] * n,
        "valid": np.ones(n, np.bool_),
        **given,
    }
    found = evidence(np.zeros(n, np.int64), norm=np.array(norms), **facts)  # type: ignore[arg-type]
    return [float(one) for one in found]


def test_an_update_is_held_against_those_of_its_round() -> None:
    assert believed([1.0, 1.2, 0.8, 1.0, 100.0]) == [1.0, 1.0, 1.0, 1.0, pytest.approx(0.02)]
    # Who sends the model back has done no work.
    assert believed([1.0, 1.2, 0.8, 1.0, 0.001])[-1] == 0.0
    assert believed([1.0] * 5, samples=np.array([10, 12, 9, 11, 10**9]))[-1] < 1e-6
    for why in (COPIED, ELSEWHERE, OPPOSED):
        assert believed([1.0] * 4, reason=["", "", "", why]) == [1.0, 1.0, 1.0, 0.0]
    assert believed([1.0] * 4, reason=["", "", "", "is over its quota"])[-1] == 1.0
    # Of three nobody can tell; of what is not valid nothing is known.
    assert believed([1.0, 1.0, 100.0]) == [1.0] * 3
    assert np.isnan(believed([1.0] * 4, valid=np.array([True] * 3 + [False]))[-1])


def test_nobody_is_doubted_for_norms_that_an_edge_keeps_to_itself() -> None:
    """As where updates are masked, or get their noise in the sum."""
    assert believed([0.0] * 5) == [1.0] * 5


def test_trust_is_lost_and_won_back_and_kept() -> None:
    trust, seen = Trust(), view(1)
    lies = np.where(np.arange(CLIENTS) < LIARS, 0.0, 1.0)
    for _ in range(10):
        trust.learn(feedback(seen, np.arange(CLIENTS), lies))
    assert (trust.of(CLIENTS)[:LIARS] < 0.12).all()
    assert (trust.of(CLIENTS)[LIARS:] == 1.0).all()
    again = Trust()
    again.restore(trust.state())
    again.learn(feedback(seen, np.arange(CLIENTS), np.ones(CLIENTS)))
    assert (again.of(CLIENTS) > trust.of(CLIENTS))[:LIARS].all()
    # What is not known changes nothing; a claim gap of over three counts too.
    trust.learn(feedback(seen, np.arange(CLIENTS), np.full(CLIENTS, np.nan)))
    gaps = np.array([np.nan] * 9 + [6.0])
    assert trust.of(CLIENTS, gaps)[-1] == 0.5
    assert trust.shown(seen, gaps).trust is not None
    assert Trust().shown(seen, gaps[:-1]) is seen


@pytest.mark.parametrize("doubted", [False, True])
def test_adaptive_orders_a_free_rider_less(doubted: bool) -> None:
    """E14: of 60 rounds in which half of ten can be paid, its share falls below a third."""
    policy, trust, rng = AdaptivePolicy(), Trust(), np.random.default_rng(0)
    orders, gaps = np.zeros(CLIENTS), np.full(CLIENTS, np.nan)
    for round_ in range(1, 61):
        seen = trust.shown(view(round_), gaps) if doubted else view(round_)
        pairs = np.sort(policy.select(seen, rng).pairs)
        told = feedback(seen, pairs, np.where(pairs < LIARS, 0.0, 1.0))
        policy.learn(told)
        trust.learn(told)
        orders[pairs] += 1
    rest = orders[LIARS:].mean()
    assert (orders[:LIARS] < rest / 3).all() == doubted
