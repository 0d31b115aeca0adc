"""Strategies in studies: their client terms against plain loops, and what they are equal to."""

import numpy as np
import numpy.typing as npt
import pytest

from fedagent_task import aggregation
from fedagent_task.errors import RecipeError
from fedagent_task.models import create
from fedagent_task.recipe.spec import ModelSpec
from fedagent_testbed.learning.aggregating import EdgeModels
from fedagent_testbed.learning.datasets import StudyData, load_classes
from fedagent_testbed.learning.local_sgd import BatchedModel
from fedagent_testbed.learning.partition import dirichlet
from fedagent_testbed.learning.trainer import FederatedLearner, FederatedTrainer
from fedagent_testbed.recipe import Training
from fedagent_testbed.recipe_file import load_recipe

Floats = npt.NDArray[np.float32]
RATE, CLIENTS = 0.1, 5


@pytest.fixture(scope="module")
def digits() -> StudyData:
    return load_classes("digits")


def trainer_of(
    digits: StudyData,
    strategy: aggregation.Strategy,
    *,
    epochs: int = 1,
) -> FederatedTrainer:
    labels = digits.y.astype(np.int64)
    parts = dirichlet(labels, CLIENTS, gamma=0.3, seed=2, samples_per_client=None)
    spec = ModelSpec(kind="softmax", features=64, classes=10)
    training = Training(dataset="digits", rate=RATE, batch=1000, epochs=epochs)
    model = BatchedModel(create(spec))
    return FederatedTrainer(digits, parts, model, training, seed=7, held_out=0.0, strategy=strategy)


def play(
    trainer: FederatedTrainer, rounds: int, *, edges: int = 1, absent: bool = False
) -> list[Floats]:
    """Return the models of rounds; with `absent` one client is away, each time another."""
    held = EdgeModels(trainer.initial(edges), trainer.strategy, clients=CLIENTS, rate=RATE)
    found = []
    for round_ in range(rounds):
        clients = np.delete(np.arange(CLIENTS), [round_] if absent else [])
        edge = clients % edges
        held.take(trainer.train(held.models, clients, edge, round_, held.controls))
        held.merge()
        found.append(held.last[""])
    return found


def gradient(trainer: FederatedTrainer, theta: Floats, client: int) -> Floats:
    """Return the gradient on all samples of a client: batches are larger than they are."""
    shards, out = trainer._train, np.zeros((1, trainer.model.size), np.float32)
    part = shards.of(client)
    x, y = shards.x[part], shards.y[part]
    each = np.full((1, len(y)), 1 / len(y), np.float32)
    assert isinstance(trainer.model, BatchedModel)
    trainer.model.gradient(theta[None], x[None], y[None], each, out)
    return np.asarray(out[0])


def test_scaffold_follows_its_algorithm(digits: StudyData) -> None:
    trainer = trainer_of(digits, aggregation.create("scaffold", eta_g=0.9), epochs=3)
    x, c = trainer.initial(1)[0].astype(np.float64), np.zeros(trainer.model.size)
    own = np.zeros((CLIENTS, trainer.model.size))
    for round_, found in enumerate(play(trainer, 4, edges=2, absent=True)):
        deltas, changes = [], []
        for i in set(range(CLIENTS)) - {round_}:
            y = x.copy()
            for _ in range(3):
                y -= RATE * (gradient(trainer, y.astype(np.float32), i) - own[i] + c)
            fresh = own[i] - c + (x - y) / (3 * RATE)
            deltas.append(y - x)
            changes.append(fresh - own[i])
            own[i] = fresh
        x = x + 0.9 * np.mean(deltas, axis=0)
        c = c + np.sum(changes, axis=0) / CLIENTS
        np.testing.assert_allclose(found, x, atol=2e-5)


def test_fedprox_holds_clients_back(digits: StudyData) -> None:
    trainer = trainer_of(digits, aggregation.create("fedprox", mu=0.5), epochs=4)
    x = trainer.initial(1)[0].astype(np.float64)
    deltas = []
    for i in range(CLIENTS):
        y = x.copy()
        for _ in range(4):
            y -= RATE * (gradient(trainer, y.astype(np.float32), i) + 0.5 * (y - x))
        deltas.append(y - x)
    np.testing.assert_allclose(play(trainer, 1)[0], x + np.mean(deltas, axis=0), atol=1e-5)


@pytest.mark.parametrize("name", ["fednova", "qfedavg", "scaffold"])
def test_edges_come_to_the_flat_model(digits: StudyData, name: str) -> None:
    flat, split_ = (
        play(trainer_of(digits, aggregation.create(name), epochs=2), 2, edges=edges)
        for edges in (1, 3)
    )
    np.testing.assert_allclose(split_[-1], flat[-1], atol=1e-6)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("aggregation.name=fedbn",), "fedavg"),
        (("aggregation.name=scaffold", "rounds.merge_every=2"), "take 1"),
        (
            ("aggregation.name=fedprox", "world.training.model=cnn", "world.training.epochs=1"),
            "mlp",
        ),
    ],
)
def test_what_a_study_has_not_is_refused_with_the_mend(sets: tuple[str, ...], words: str) -> None:
    digits = ("world.training.dataset=digits", "world.training.samples_per_client=20")
    epochs = () if any("epochs" in one for one in sets) else ("world.training.epochs=1",)
    with pytest.raises(RecipeError, match=words):
        FederatedLearner(load_recipe("cocs-decisions", (*digits, *epochs, *sets)), 0)
