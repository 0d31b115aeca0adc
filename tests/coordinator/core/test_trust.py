"""Trust in devices: who lies, claims too much or does no work loses it, and can win it back."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fedagent_coordinator.core.decision import Learning
from fedagent_coordinator.core.trust import Trust, evidence
from fedagent_coordinator.policies.adaptive.policy import AdaptivePolicy
from fedagent_coordinator.policies.base import CLAIM_GAP, Feedback, RoundView
from fedagent_coordinator.policies.baselines import CheapestPolicy
from fedagent_task.aggregation.alignment import COPIED, ELSEWHERE, OPPOSED
from tests.fakes.rounds import column_view, ended

CLIENTS = 10
NOTHING = frozenset[str]()
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
    facts = {"samples": np.full(n, 10), "reason": [""] * n, "valid": np.ones(n, np.bool_), **given}
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
    # What is not known changes nothing.
    before = trust.of(CLIENTS)
    trust.learn(feedback(seen, np.arange(CLIENTS), np.full(CLIENTS, np.nan)))
    assert (trust.of(CLIENTS) == before).all()
    assert trust.seen(seen, NOTHING).trust is not None
    assert Trust().seen(seen, NOTHING) is seen


@pytest.mark.parametrize("doubted", [False, True])
def test_adaptive_orders_a_free_rider_less(doubted: bool) -> None:
    """E14: of 60 rounds in which half of ten can be paid, its share falls below a third."""
    policy, trust, rng = AdaptivePolicy(), Trust(), np.random.default_rng(0)
    orders = np.zeros(CLIENTS)
    for round_ in range(1, 61):
        seen = trust.seen(view(round_), NOTHING) if doubted else view(round_)
        pairs = np.sort(policy.select(seen, rng).pairs)
        told = feedback(seen, pairs, np.where(pairs < LIARS, 0.0, 1.0))
        policy.learn(told)
        trust.learn(told)
        orders[pairs] += 1
    rest = orders[LIARS:].mean()
    assert (orders[:LIARS] < rest / 3).all() == doubted


BITS = 1e6
RATE = 1e6


def view_of(
    compute: Sequence[float], upload: Sequence[float] | None = None, t: int = 1
) -> RoundView:
    """Clients that claim these; a transfer of the model takes a second at `RATE`."""
    n = len(compute)
    rates = {"download_bps": [RATE] * n, "upload_bps": list(upload or [RATE] * n)}
    return replace(column_view(t, compute=list(compute), **rates), model_bytes=int(BITS / 8))  # type: ignore[arg-type] # columns


def test_who_keeps_to_its_claims_has_a_gap_of_one_and_a_liar_its_factor() -> None:
    """Work 6, and 2 s of transfers: three claim 2 and take 3 s of it, one claims 4 and does too."""
    trust, view = Trust(), view_of([2.0, 2.0, 2.0, 4.0])
    for rounds in range(1, 40):
        trust.learn(ended(view, range(4), tau_s=[5.0] * 4))
        # A first round does not count whole.
        gap = (5.0 / 3.5) ** (1.0 - 0.8**rounds)
        assert trust.gaps(5)[:4] == pytest.approx([1.0, 1.0, 1.0, gap])
    assert np.isnan(trust.gaps(5)[4])


def test_gaps_are_means_of_logarithms_in_which_the_newest_weighs_a_fifth() -> None:
    trust = Trust()
    for tau in (5.0, 10.0):
        trust.learn(ended(view_of([2.0] * 3), range(3), tau_s=[5.0, 5.0, tau]))
    assert trust.gaps(3) == pytest.approx([1.0, 1.0, 2.0**0.2])


def test_what_cannot_be_compared_is_unknown() -> None:
    """No valid update, no claim of a rate, no model, or no compute: NaN, and nothing else moves."""
    known = view_of([2.0] * 3)
    lone = column_view(compute=[2.0], download_bps=[np.nan], upload_bps=[np.nan])
    for view in (replace(known, model_bytes=0), replace(lone, model_bytes=100)):
        trust = Trust()
        trust.learn(ended(view, [0], tau_s=[5.0]))
        assert np.isnan(trust.gaps(3)).all()
    trust = Trust()
    silent = ended(known, [0, 1], tau_s=[5.0, 9.0], x=[True, False])
    trust.learn(replace(silent, censored=np.array([False, True]), unpaid=np.array([False, True])))
    assert trust.gaps(3)[0] == pytest.approx(1.0)
    assert np.isnan(trust.gaps(3)[1:]).all()


@pytest.mark.parametrize("wrong", [-4.0, 0.0, -(2.0**-100)])
def test_a_claim_that_cannot_be_true_is_none(wrong: float) -> None:
    """It had made a gap of a thousandth, the best of all."""
    for view in (view_of([2.0, 2.0, wrong]), view_of([2.0] * 3, [RATE, RATE, wrong])):
        trust = Trust()
        trust.learn(ended(view, range(3), tau_s=[5.0] * 3))
        assert trust.gaps(3)[:2] == pytest.approx([1.0, 1.0])
        # Of the rates the other one stands for both.
        assert trust.gaps(3)[2] == pytest.approx(
            np.nan if view.feature("compute")[2] == wrong else 1, nan_ok=True
        )


def test_policies_that_need_it_see_it_and_others_do_not() -> None:
    class Asking(CheapestPolicy):
        needs = frozenset({CLAIM_GAP})

    for policy in (Asking(), CheapestPolicy()):
        decides = Learning(policy)
        decides.trust.learn(ended(view_of([2.0] * 3), range(3), tau_s=[5.0, 5.0, 10.0]))
        seen = decides.trust.seen(view_of([2.0] * 3), decides.policy.needs)
        asks = isinstance(policy, Asking)
        assert (CLAIM_GAP in seen.feature_names) == asks
        if asks:
            assert seen.feature(CLAIM_GAP) == pytest.approx([1.0, 1.0, 2.0**0.2])
