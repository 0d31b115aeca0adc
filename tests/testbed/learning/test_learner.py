"""When the edges' models are merged, and where a slot begins: seen from the mean model."""

import numpy as np
import numpy.typing as npt
import pytest

from fedagent_coordinator.policies import Feedback
from fedagent_testbed.learning.trainer import FederatedLearner
from fedagent_testbed.study import TestbedRecipe as Study
from fedagent_testbed.study import load_recipe, make_world

DIGITS = (
    *("clients=6", "edges=2", "training.dataset=digits", "training.epochs=1"),
    *("training.samples_per_client=30", "training.rate=0.1", "rounds.deadline_s=1e9"),
)


def recipe(*sets: str) -> Study:
    return load_recipe("cocs-decisions", (*DIGITS, *sets))


def feedback(setting: Study, round_: int) -> Feedback:
    """Let clients 0 to 2 train at edge 0 and the others at edge 1; all are in time."""
    world = make_world(setting, 1)
    view = world.view(round_)
    here = (view.pair_client < 3) == (view.pair_edge == 0)
    found = world.play(view, np.flatnonzero(here))
    assert found.used.all()
    return found


def models(setting: Study, rounds: range) -> list[npt.NDArray[np.float32]]:
    """Return the mean model after each of these rounds."""
    learner, found = FederatedLearner(setting, 1), []
    for t in rounds:
        learner.advance(feedback(setting, t))
        found.append(learner.model)
    return found


@pytest.mark.parametrize("every", [1, 2, 3])
def test_edges_go_on_from_the_merged_model_after_every_merge(every: int) -> None:
    rounds = range(1, 5)
    merging = models(recipe(f"rounds.merge_every={every}"), rounds)
    alone = models(recipe("rounds.merge_every=100"), rounds)
    same = [np.allclose(a, b, atol=1e-6) for a, b in zip(merging, alone, strict=True)]
    assert same == [t <= every for t in rounds]


@pytest.mark.parametrize("reset", [True, False])
def test_with_reset_a_slot_begins_at_the_first_model(reset: bool) -> None:
    setting = recipe("training.slot_rounds=2", f"training.reset={str(reset).lower()}")
    whole, second = models(setting, range(1, 5)), models(setting, range(3, 5))
    assert np.array_equal(whole[2], second[0]) == reset
    assert np.array_equal(whole[3], second[1]) == reset
    assert not np.array_equal(whole[1], models(setting, range(2, 3))[0])


def test_clients_evaluate_on_their_own_samples_or_on_a_share_of_the_test_set() -> None:
    asked = ("training.opinions=true", "training.rate=0.02")
    own = FederatedLearner(recipe(*asked), 1)
    shared = FederatedLearner(recipe(*asked, "training.evaluated_on=test"), 1)
    for learner in (own, shared):
        for t in range(1, 6):
            learner.advance(feedback(recipe(*asked), t))
    assert np.array_equal(own.model, shared.model), "they train on the same samples"
    assert np.ptp(own.opinions()) > np.ptp(shared.opinions()) > 0
