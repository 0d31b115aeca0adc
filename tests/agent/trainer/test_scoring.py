"""Scores of a base model on new samples: before they are learnt from."""

import math

import numpy as np
import pytest

from fedagent_agent.trainer.samples import Proportions
from fedagent_agent.trainer.scoring import MAX_SAMPLES, Scorer
from fedagent_task.models import create
from fedagent_task.recipe.spec import ModelSpec, TaskSpec

MLP = ModelSpec(kind="mlp", features=64, hidden=(16,), classes=10)


def _scorer(spec: ModelSpec) -> Scorer:
    return Scorer(TaskSpec(model=spec, on_device=True), create(spec))


def test_a_regressions_score_falls_with_its_error_and_stays_in_range() -> None:
    spec = ModelSpec(kind="linear", features=2)
    scorer = _scorer(spec)
    weights = {"weight": np.zeros((1, 2), np.float32), "bias": np.zeros(1, np.float32)}
    for y, score in (([0.0, 0.0], 1.0), ([3.0, -3.0], 0.25), ([1e200, 1e200], 0.0)):
        scorer.begin(weights)
        with np.errstate(over="ignore"):
            scorer.look(np.zeros((2, 2), np.float32), np.array(y))
        assert scorer.score == pytest.approx(score)
        assert math.isfinite(scorer.score)


def test_what_is_scored_of_a_flood_is_spread_over_all_of_it() -> None:
    model, rng = create(MLP), np.random.default_rng(3)
    weights, scorer = model.init(0), _scorer(MLP)
    x = rng.normal(size=(4 * MAX_SAMPLES, 64)).astype(np.float32)
    y = model.forward(weights, x).argmax(axis=1).copy()
    y[: 3 * MAX_SAMPLES] = (y[: 3 * MAX_SAMPLES] + 1) % 10
    scorer.begin(weights)
    scorer.look(x, y)
    assert scorer.score == pytest.approx(0.25, abs=0.002)


def test_large_and_tiny_features_are_named_once() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal((0, 101_325, 1, 0), (1, 500, 1, 1e-7), (200, 4))
    proportions = Proportions()
    proportions.names = [f"f{i}" for i in range(4)]
    assert [proportions.look(x[i : i + 29]) for i in range(0, 200, 29)].count(True) == 1
    assert proportions.note == "out of proportion: f1, f3"
