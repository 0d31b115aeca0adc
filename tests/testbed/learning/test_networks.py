"""A cnn in a study is learnt as a live agent learns it, and refused in words where it cannot be."""

import numpy as np
import pytest

from fedagent_task.errors import RecipeError
from fedagent_task.recipe.spec import ModelSpec
from fedagent_testbed.learning.datasets import StudyData
from fedagent_testbed.learning.networks import Network
from fedagent_testbed.learning.partition import iid
from fedagent_testbed.learning.trainer import FederatedLearner, FederatedTrainer
from fedagent_testbed.recipe import Training
from fedagent_testbed.study import load_recipe

from .test_trainer import live

SIDE, CLASSES = 16, 4
TRAINING = Training(model="cnn", rate=0.05, batch=8, epochs=2)


@pytest.fixture(scope="module")
def quarters() -> StudyData:
    """Return noisy images with one bright quarter, which is the class."""
    rng = np.random.default_rng(4)
    x = rng.uniform(0, 0.5, (120, SIDE, SIDE)).astype(np.float32)
    y = np.arange(len(x)) % CLASSES
    for image, label in zip(x, y.tolist(), strict=True):
        down, right = 8 * (label // 2), 8 * (label % 2)
        image[down : down + 8, right : right + 8] += 0.5
    flat = x.reshape(len(x), -1)
    return StudyData(
        name="quarters",
        x=flat[:80],
        y=y[:80].astype(np.float64),
        test_x=flat[80:],
        test_y=y[80:].astype(np.float64),
        model={"features": SIDE * SIDE, "classes": CLASSES},
    )


def trainer_of(data: StudyData, training: Training = TRAINING) -> FederatedTrainer:
    pytest.importorskip("torch")
    model = Network(training, features=data.features, classes=data.classes)
    partition = iid(data.y.astype(np.int64), 4, seed=3)
    return FederatedTrainer(data, partition, model, training, seed=7, held_out=0.0)


def test_a_client_learns_what_a_live_agent_would(quarters: StudyData) -> None:
    trainer = trainer_of(quarters)
    start = trainer.initial(1)
    (updates,) = trainer.train(start, np.array([2]), np.array([0]), round_=4)
    spec = ModelSpec(
        kind="cnn", features=256, classes=CLASSES, layout="fashion", image=(SIDE, SIDE, 1)
    )
    expected = live(trainer, spec, start[0], 2, rate=0.05, batch=8)
    np.testing.assert_allclose(updates.deltas[0], expected, atol=1e-5)
    assert np.abs(expected).max() > 0.01


def test_images_that_are_too_small_are_refused() -> None:
    sets = ("world.training.dataset=digits", "world.training.model=cnn", "world.training.epochs=1")
    with pytest.raises(RecipeError, match="8 x 8 are too small for two convolutions"):
        FederatedLearner(load_recipe("cocs-decisions", sets), 0)
