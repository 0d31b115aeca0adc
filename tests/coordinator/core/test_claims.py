"""What clients claim against what is observed: the gap, in both ways to play a round."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fedagent_coordinator.core.decision import Learning
from fedagent_coordinator.core.trust import ClaimGaps
from fedagent_coordinator.policies.base import CLAIM_GAP, RoundView
from fedagent_coordinator.policies.baselines import CheapestPolicy
from tests.fakes.rounds import column_view, ended

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
    gaps, view = ClaimGaps(), view_of([2.0, 2.0, 2.0, 4.0])
    gaps.learn(ended(view, range(4), tau_s=[5.0] * 4))
    assert gaps.of(5)[:4] == pytest.approx([1.0, 1.0, 1.0, 5.0 / 3.5])
    assert np.isnan(gaps.of(5)[4])


def test_gaps_are_means_of_logarithms_in_which_the_newest_weighs_a_fifth() -> None:
    gaps = ClaimGaps()
    for tau in (5.0, 10.0):
        gaps.learn(ended(view_of([2.0] * 3), range(3), tau_s=[5.0, 5.0, tau]))
    assert gaps.of(3) == pytest.approx([1.0, 1.0, 2.0**0.2])


def test_what_cannot_be_compared_is_unknown() -> None:
    """No valid update, no claim of a rate, no model, or no compute: NaN, and nothing else moves."""
    known = view_of([2.0] * 3)
    lone = column_view(compute=[2.0], download_bps=[np.nan], upload_bps=[np.nan])
    for view in (replace(known, model_bytes=0), replace(lone, model_bytes=100)):
        gaps = ClaimGaps()
        gaps.learn(ended(view, [0], tau_s=[5.0]))
        assert np.isnan(gaps.of(3)).all()
    gaps = ClaimGaps()
    silent = ended(known, [0, 1], tau_s=[5.0, 9.0], x=[True, False])
    gaps.learn(replace(silent, censored=np.array([False, True]), void=np.array([False, True])))
    assert gaps.of(3)[0] == pytest.approx(1.0)
    assert np.isnan(gaps.of(3)[1:]).all()


@pytest.mark.parametrize("wrong", [-4.0, 0.0, -(2.0**-100)])
def test_a_claim_that_cannot_be_true_is_none(wrong: float) -> None:
    """It had made a gap of a thousandth, the best of all."""
    for view in (view_of([2.0, 2.0, wrong]), view_of([2.0] * 3, [RATE, RATE, wrong])):
        gaps = ClaimGaps()
        gaps.learn(ended(view, range(3), tau_s=[5.0] * 3))
        assert gaps.of(3)[:2] == pytest.approx([1.0, 1.0])
        # Of the rates the other one stands for both.
        assert gaps.of(3)[2] == pytest.approx(
            np.nan if view.feature("compute")[2] == wrong else 1, nan_ok=True
        )


def test_policies_that_need_it_see_it_and_others_do_not() -> None:
    class Asking(CheapestPolicy):
        needs = frozenset({CLAIM_GAP})

    for policy in (Asking(), CheapestPolicy()):
        decides = Learning(policy)
        decides.gaps.learn(ended(view_of([2.0] * 3), range(3), tau_s=[5.0, 5.0, 10.0]))
        seen = decides.seen(view_of([2.0] * 3))
        asks = isinstance(policy, Asking)
        assert (CLAIM_GAP in seen.feature_names) == asks
        if asks:
            assert seen.feature(CLAIM_GAP) == pytest.approx([1.0, 1.0, 2.0])
