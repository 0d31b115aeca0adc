"""What clients claim against what is observed: the gap, in both ways to play a round."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.books.reader import open_reader
from fedagent_coordinator.core.decision import Learning
from fedagent_coordinator.core.trust import ClaimGaps
from fedagent_coordinator.policies.base import CLAIM_GAP, Feedback, RoundView
from fedagent_coordinator.policies.baselines import CheapestPolicy
from fedagent_testbed.study import load_recipe, make_world
from fedagent_testbed.study.full import play_full
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


def test_a_whole_federation_comes_to_the_gaps_of_a_study(tmp_path: Path) -> None:
    """A whole federation's model is tiny, so its transfers count as work: near, not equal."""
    sets = [
        "world.clients=8",
        "world.edges=1",
        "rounds.count=25",
        "budget.per_edge=100",
        "world.liars.share=0.4",
    ]
    sets += ["world.liars.factor=4", "rounds.deadline_s=60", "rounds.max_wait_s=120"]
    recipe = load_recipe("cocs-decisions", sets)
    play_full(recipe, "all", 3, tmp_path)
    with open_reader(tmp_path / "coordinator") as read:
        run = read.run().run_id
        live = read.claim_gaps(run)
        replayed = ClaimGaps()
        for feedback in read.learnt(run):
            replayed.learn(feedback)
    assert live == pytest.approx(dict(enumerate(replayed.of(0).tolist())))
    study, world = ClaimGaps(), make_world(recipe, 3)
    for t in range(1, 26):
        view = world.view(t)
        study.learn(feedback_of(world.play(view, np.arange(8)), view))
    assert len(live) == 8
    assert sorted(live.values()) == pytest.approx(sorted(study.of(8).tolist()), rel=0.25)


def feedback_of(feedback: Feedback, view: RoundView) -> Feedback:
    return replace(feedback, view=replace(view, truth=None))
