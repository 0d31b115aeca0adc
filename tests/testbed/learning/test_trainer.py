"""The batched trainer learns as live agents do, whatever is trained together."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedagent_agent.learners import create as create_learner
from fedagent_task.models import create
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec
from fedagent_testbed.learning import trainer
from fedagent_testbed.learning.aggregating import EdgeModels, Updates
from fedagent_testbed.learning.datasets import StudyData, load_classes
from fedagent_testbed.learning.local_sgd import BatchedModel, split
from fedagent_testbed.learning.partition import Partition, dirichlet
from fedagent_testbed.learning.trainer import FederatedTrainer
from fedagent_testbed.recipe import Training, Weighting

from .test_learner import merged

Floats = npt.NDArray[np.float32]
RATE, BATCH, L2 = 0.1, 16, 0.01


@pytest.fixture(scope="module")
def digits() -> StudyData:
    return load_classes("digits")


def model_of(kind: str = "softmax", l2: float = 0.0, hidden: tuple[int, ...] = ()) -> BatchedModel:
    spec = ModelSpec(kind=kind, features=64, classes=10, l2=l2, hidden=hidden)
    return BatchedModel(create(spec))


def labels(data: StudyData) -> npt.NDArray[np.int64]:
    return data.y.astype(np.int64)


def uneven(data: StudyData) -> Partition:
    """Return parts of 0, 1, 2, 16, 40 and all other samples."""
    order = np.random.default_rng(3).permutation(len(data.y))
    return np.split(order, [0, 1, 3, 19, 59])


def live(
    trainer: FederatedTrainer, spec: ModelSpec, theta: Floats, client: int, **keys: Any
) -> Floats:
    """Return the update that a live agent makes of a client's samples in round 4."""
    part, model = trainer._train.of(client), create(spec)
    rng = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(1, 4, client)))
    keys = {"rate": RATE, "batch": BATCH, "buffer": part.stop - part.start, **keys}
    agent = create_learner(model, LearnerSpec(name="minibatch", backend="numpy", **keys), rng)
    weights, at = {}, 0
    for one in model.manifest().specs:
        size = int(np.prod(one.shape))
        weights[one.name] = theta[at : at + size].reshape(one.shape)
        at += size
    agent.begin(weights)
    agent.absorb(trainer._train.x[part], trainer._train.y[part])
    agent.step(2)
    update = agent.update()
    return np.concatenate([update[one.name].ravel() for one in model.manifest().specs])


def trainer_of(
    data: StudyData,
    partition: Partition,
    *,
    epochs: int = 2,
    model: BatchedModel | None = None,
    seed: int = 7,
) -> FederatedTrainer:
    training = Training(rate=RATE, batch=BATCH, epochs=epochs, weighting="samples")
    return FederatedTrainer(
        data,
        partition,
        model or model_of(l2=L2),
        training,
        seed=seed,
    )


def all_of(trainer: FederatedTrainer, start: Floats, clients: list[int], round_: int) -> Floats:
    """Return the deltas of clients that train from edge 0's model."""
    parts = trainer.train(start, np.array(clients), np.zeros(len(clients), np.int64), round_)
    return np.concatenate([part.deltas for part in parts])


@pytest.mark.parametrize("hidden", [(), (8,), (8, 5)])
def test_a_client_learns_what_a_live_agent_would(
    digits: StudyData, hidden: tuple[int, ...]
) -> None:
    kind = "mlp" if hidden else "softmax"
    spec = ModelSpec(kind=kind, features=64, classes=10, l2=L2, hidden=hidden)
    training = trainer_of(digits, uneven(digits), model=BatchedModel(create(spec)))
    start = training.initial(2)
    start[1] += np.random.default_rng(1).standard_normal(start.shape[1], dtype=np.float32)
    clients, edges = np.array([3, 5, 0, 2, 4, 1]), np.array([0, 1, 1, 0, 0, 1])
    (updates,) = training.train(start, clients, edges, round_=4)
    assert updates.clients.tolist() == clients.tolist()
    for i, (client, edge) in enumerate(zip(clients.tolist(), edges, strict=True)):
        if client:
            expected = live(training, spec, start[edge], client)
            np.testing.assert_allclose(updates.deltas[i], expected, atol=1e-5)
    assert np.abs(updates.deltas[1]).max() > 0.05
    assert not updates.deltas[2].any()


@pytest.mark.parametrize("hidden", [0, 8])
def test_memory_and_company_change_no_bit(
    digits: StudyData, hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("mlp", hidden=(hidden,)) if hidden else model_of()
    partition = dirichlet(labels(digits), 9, gamma=0.5, seed=2)
    wide = trainer_of(digits, partition, model=model)
    start = wide.initial(3)
    clients, edges = np.arange(9), np.arange(9) % 3

    def models() -> Floats:
        held = EdgeModels(start, weighting="samples")
        held.take(wide.train(start, clients, edges, 0))
        return held.models

    whole = models()
    with monkeypatch.context() as narrow:
        narrow.setattr(trainer, "AT_ONCE", 1)
        parts = list(wide.train(start, clients, edges, 0))
        assert [len(part.clients) for part in parts] == [1] * 9
        assert np.array_equal(models(), whole)
    alone = all_of(wide, start, [2], 0)
    assert np.array_equal(all_of(wide, start, [8, 2, 4], 0)[1], alone[0])
    assert not np.array_equal(all_of(wide, start, [2], 1), alone), "a round has its own batches"


def test_aggregate_is_the_weighted_mean_by_edge() -> None:
    rng = np.random.default_rng(1)
    start = rng.standard_normal((3, 5), dtype=np.float32)
    deltas = rng.standard_normal((4, 5), dtype=np.float32)
    edges, samples = np.array([0, 2, 0, 2]), np.array([10, 30, 90, 0])
    parts = [
        Updates(np.arange(2), edges[:2], samples[:2], deltas[:2]),
        Updates(np.arange(2, 4), edges[2:], samples[2:], deltas[2:]),
    ]

    def aggregate(weighting: Weighting) -> Floats:
        held = EdgeModels(start, weighting=weighting)
        held.take(parts)
        return held.models

    uniform = aggregate("uniform")
    np.testing.assert_allclose(uniform[0], start[0] + (deltas[0] + deltas[2]) / 2, atol=1e-6)
    assert np.array_equal(uniform[1], start[1])
    weighted = aggregate("samples")
    np.testing.assert_allclose(weighted[0], start[0] + 0.1 * deltas[0] + 0.9 * deltas[2], atol=1e-6)
    np.testing.assert_allclose(weighted[2], start[2] + deltas[1], atol=1e-6)
    np.testing.assert_allclose(merged(start), np.tile(start.mean(axis=0), (3, 1)), atol=1e-6)


def test_opinions_are_accuracies_on_what_was_held_out(digits: StudyData) -> None:
    partition = uneven(digits)
    trainer = trainer_of(digits, partition)
    train, held = split(digits, partition, held_out=0.2, seed=7)
    assert held.counts.tolist()[:5] == [0, 0, 1, 3, 8]
    assert np.array_equal(train.counts + held.counts, [len(rows) for rows in partition])
    theta = all_of(trainer, trainer.initial(1), [5], 0)[0]
    weight, bias = theta[10:].reshape(10, 64), theta[:10]
    opinions = trainer.opinions(theta)
    assert np.isnan(opinions[:2]).all()
    for client in range(2, 6):
        rows = held.of(client)
        predicted = (held.x[rows] @ weight.T + bias).argmax(axis=1)
        assert opinions[client] == pytest.approx((predicted == held.y[rows]).mean())
    predicted = (digits.test_x @ weight.T + bias).argmax(axis=1)
    assert trainer.accuracy(theta) == pytest.approx((predicted == digits.test_y).mean())
