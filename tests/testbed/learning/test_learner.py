"""When the edges' models are merged, and where a slot begins: seen from the mean model."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from fedagent_coordinator.policies import Feedback
from fedagent_testbed.learning.aggregating import EdgeModels
from fedagent_testbed.learning.trainer import FederatedLearner
from fedagent_testbed.recipe import Weighting as Weighted
from fedagent_testbed.study import TestbedRecipe as Study
from fedagent_testbed.study import load_recipe, make_world

DIGITS = (
    *(
        "world.clients=6",
        "world.edges=2",
        "world.training.dataset=digits",
        "world.training.epochs=1",
    ),
    *("world.training.samples_per_client=30", "world.training.rate=0.1", "rounds.deadline_s=1e9"),
)


def merged(
    models: npt.NDArray[np.float32],
    learnt: npt.NDArray[np.float64] | None = None,
    weighting: Weighted = "uniform",
) -> npt.NDArray[np.float32]:
    """Return the models of edges, float32[M, d], after a merge."""
    held = EdgeModels(models, weighting=weighting)
    held.learnt = held.learnt if learnt is None else learnt
    held.merge()
    return held.models


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


@pytest.mark.parametrize(("weighting", "mean"), [("uniform", [5.0, 5.0]), ("samples", [2.0, 2.5])])
def test_a_merge_counts_edges_as_the_weighting_says_and_without_updates_changes_nothing(
    weighting: Weighted, mean: list[float]
) -> None:
    parts = np.array([[1.0, 2.0], [5.0, 4.0], [9.0, 9.0]], np.float32)
    found = merged(parts, np.array([3.0, 1.0, 0.0]), weighting)
    np.testing.assert_array_equal(found, np.tile(np.array(mean, np.float32), (3, 1)))
    setting = recipe(f"world.training.weighting={weighting}", "rounds.merge_every=2")
    learner = FederatedLearner(setting, 1)
    silent = np.zeros(6, dtype=np.bool_)
    before = learner.model
    learner.advance(replace(feedback(setting, 2), used=silent))
    np.testing.assert_array_equal(learner.model, before)


def test_samples_come_by_and_by_and_the_newest_are_kept() -> None:
    steady = ("world.training.arrivals=8", "world.training.buffer=20")
    trainer = FederatedLearner(recipe(*steady), 1)._trainer
    assert [int(trainer.samples(t)[0]) for t in (1, 2, 3, 4, 9)] == [8, 16, 20, 20, 20]
    held = [trainer._shards(t).of(2) for t in (3, 4, 9)]
    assert [part.start - trainer._train.of(2).start for part in held] == [4, 10, 10]
    assert held[-1].stop == trainer._train.of(2).stop, "the stream has ended"
    uneven = FederatedLearner(recipe(*steady, "world.training.skew=1"), 1)._trainer
    assert len(set(uneven.samples(1).tolist())) > 3
    first = models(recipe(*steady), range(1, 4))
    assert not np.array_equal(first[0], models(recipe(), range(1, 2))[0])


def test_devices_tell_the_losses_of_the_model_that_they_begin_from() -> None:
    setting = recipe()
    learner = FederatedLearner(setting, 1)
    found = replace(
        feedback(setting, 1), unpaid=np.arange(6) == 5, X=np.arange(6) != 5, ending=None
    )
    first = learner.told(found)
    assert first.num_samples.tolist() == [30] * 5 + [0]
    # The first model gives every class a tenth.
    assert first.loss_rms == pytest.approx([math.log(10)] * 5 + [math.nan], nan_ok=True, rel=0.05)
    for t in range(1, 20):
        learner.advance(feedback(setting, t))
    later = learner.told(found).loss_rms
    assert later is not None
    assert (later[:5] < 0.85 * math.log(10)).all()
