"""What a model is evaluated by: one rule, from the recipe alone."""

import math

import numpy as np
import pytest

from fedagent_task import models
from fedagent_task.errors import RecipeError
from fedagent_task.recipe.spec import Recipe
from fedagent_task.recipe.text import parse_recipe
from fedagent_task.scoring.measures import (
    DEVICE_SCORE,
    RMSE,
    TRAIN_ERROR,
    complete,
    few,
    measures_of,
)
from fedagent_task.scoring.metrics import Evaluation, evaluate

SMALL = """
name = "small"
model = { kind = "linear", features = 2 }
rounds = { count = 3, deadline_s = 1.0 }
budget = { per_edge = 4.0 }
"""
CLASSES = ("model.kind=softmax", "model.classes=3")
RATINGS = ("model.kind=mf", "model.users=3", "model.items=4", "model.rank=2")
HELD_OUT = "evaluation.dataset=room.npz"
SCORED = "evaluation.on_device=true"
PEERS = ("opinions.mode=peers", "policy.name=volunteers")


def of(*sets: str) -> Recipe:
    return parse_recipe(SMALL, sets)


@pytest.mark.parametrize(
    ("sets", "keys", "shown"),
    [
        ((*CLASSES, HELD_OUT), "accuracy loss train_loss", "accuracy loss"),
        (
            (*CLASSES, HELD_OUT, SCORED),
            "accuracy loss device_score train_loss",
            "accuracy loss device_score",
        ),
        ((HELD_OUT,), "rmse mae loss train_error train_loss", "rmse loss"),
        ((*RATINGS, HELD_OUT), "rmse mae loss train_error train_loss", "rmse loss"),
        ((), "train_error train_loss", "train_error train_loss"),
        (CLASSES, "train_loss", "train_loss"),
        (
            (SCORED,),
            "device_score train_error train_loss",
            "device_score train_error train_loss",
        ),
        ((*CLASSES, *PEERS), "", ""),
        ((*CLASSES, *PEERS, HELD_OUT), "accuracy loss", "accuracy loss"),
    ],
)
def test_the_recipe_says_what_its_models_are_primary_metric(
    sets: tuple[str, ...], keys: str, shown: str
) -> None:
    found = measures_of(of(*sets))
    assert [one.key for one in found] == keys.split()
    assert [one.key for one in few(found)] == shown.split()


def test_a_regression_has_an_error_in_the_labels_unit_and_no_accuracy() -> None:
    model = models.create(of().model)
    weights = {"weight": np.zeros((1, 2), np.float32), "bias": np.zeros(1, np.float32)}
    x, y = np.zeros((5000, 2), np.float32), np.tile([1.0, -3.0], 2500)
    found = evaluate(model, weights, x, y)
    assert found.metrics() == {"loss": 5.0, "rmse": math.sqrt(5.0), "mae": 2.0}
    assert found.accuracy is None


def test_what_was_not_measured_has_no_number() -> None:
    nothing = np.zeros((0, 2), np.float32)
    model = models.create(of().model)
    assert evaluate(model, model.init(0), nothing, np.zeros(0)).metrics() == {}
    assert Evaluation(math.inf, 0.5, 9).metrics() == {"accuracy": 0.5}
    assert complete((RMSE, TRAIN_ERROR, DEVICE_SCORE), {}) == {}


def test_a_target_is_an_accuracy_or_an_error() -> None:
    assert of(HELD_OUT, "evaluation.target=2.5").evaluation.target == 2.5
    for sets in (CLASSES, (SCORED,)):
        with pytest.raises(RecipeError, match="must be <= 1"):
            of(*sets, "evaluation.target=2.5")
