"""Learners: what every one promises, and what each one does."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_agent.learners import Learner, create, registry
from fedagent_agent.learners.gradient_descent import Ring
from fedagent_protocol.tensors import Manifest
from fedagent_task.errors import TaskFormatError
from fedagent_task.models import Model
from fedagent_task.models import create as create_model
from fedagent_task.models.base import Csr, densed
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec

MODEL = create_model(ModelSpec(kind="softmax", features=4, classes=3))
TRAINING = registry.names()


def _learner(name: str, model: Model = MODEL, seed: int = 0, **keys: float) -> Learner:
    spec = LearnerSpec(name=name, **{"rate": 0.1, **keys})  # type: ignore[arg-type] # by test
    return create(model, spec, np.random.default_rng(seed))


def _samples(count: int, seed: int = 0) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    x[np.arange(count), y] += 2
    return x, y


def _round(learner: Learner, iterations: int = 0) -> dict[str, bytes]:
    learner.begin(MODEL.init(1))
    learner.step(iterations or learner.default_iterations)
    return {name: tensor.tobytes() for name, tensor in learner.update().items()}


@pytest.mark.parametrize("name", registry.names())
def test_an_update_has_the_models_manifest_and_is_the_same_for_the_same_seed(name: str) -> None:
    runs = []
    for _ in range(2):
        learner = _learner(name, seed=5)
        learner.absorb(*_samples(40))
        runs.append(_round(learner))
        assert Manifest.of(learner.update()) == MODEL.manifest()
    assert runs[0] == runs[1]


@pytest.mark.parametrize("name", TRAINING)
def test_a_round_lowers_the_loss_and_leaves_the_base_alone(name: str) -> None:
    learner = _learner(name)
    x, y = _samples(200)
    base = MODEL.init(1)
    before = {n: t.copy() for n, t in base.items()}
    learner.absorb(x, y)
    learner.begin(base)
    result = learner.step(learner.default_iterations)
    update = learner.update()
    moved = {n: t + update[n] for n, t in base.items()}
    assert MODEL.loss(moved, x, y) < 0.9 * MODEL.loss(base, x, y)
    assert result.samples >= 200
    assert result.loss > 0
    for n in base:
        np.testing.assert_array_equal(base[n], before[n])
        assert update[n].dtype == np.float32


@pytest.mark.parametrize("name", TRAINING)
def test_sparse_samples_teach_the_same(name: str) -> None:
    updates = []
    for sparse in (False, True):
        learner = _learner(name, batch=7)
        learner.begin(MODEL.init(1))
        for seed in range(3):
            x, y = _samples(10, seed)
            x[np.abs(x) < 0.5] = 0
            learner.absorb(Csr.from_dense(x) if sparse else x, y)
            learner.step(5)
        updates.append(learner.update())
    for name_, tensor in updates[0].items():
        np.testing.assert_allclose(updates[1][name_], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TRAINING)
def test_ratings_are_learnt(name: str) -> None:
    model = create_model(ModelSpec(kind="mf", features=2, users=9, items=7, rank=2))
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(9, 2)) @ rng.normal(size=(2, 7)) + 3.0
    ids = rng.integers(0, (9, 7), (400, 2))
    x, y = ids.astype(np.float32), truth[ids[:, 0], ids[:, 1]]
    learner = _learner(name, model, batch=10, passes=400 if name == "bgd" else 20)
    base = model.init(1)
    learner.begin(base)
    learner.absorb(x, y)
    learner.step(learner.default_iterations)
    moved = {n: base[n] + tensor for n, tensor in learner.update().items()}
    assert model.loss(moved, x, y) < 0.3 * model.loss(base, x, y)


def test_bgd_steps_on_the_whole_memory() -> None:
    learner, base = _learner("bgd", passes=3), MODEL.init(0)
    x, y = _samples(20)
    learner.absorb(x, y)
    learner.begin(base)
    assert learner.default_iterations == 3
    assert learner.step(1).samples == 20
    slope = MODEL.loss_and_gradient(base, x, y)[1]
    for name, tensor in learner.update().items():
        np.testing.assert_allclose(tensor, -0.1 * slope[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_memory_keeps_the_newest(sparse: bool) -> None:
    ring = Ring(5, 4)
    x, y = _samples(15)
    for part in (slice(0, 3), slice(3, 6), slice(6, 13), slice(13, 15)):
        ring.absorb(Csr.from_dense(x[part]) if sparse else x[part], y[part])
    assert (len(ring), ring.dropped) == (5, 2)
    kept, labels = ring.rows(slice(0, 5))
    rows = densed(kept)
    assert sorted(zip(rows.tolist(), labels.tolist(), strict=True)) == sorted(
        zip(x[-5:].tolist(), y[-5:].tolist(), strict=True)
    )


@pytest.mark.parametrize("name", TRAINING)
def test_without_samples_nothing_is_done(name: str) -> None:
    learner = _learner(name)
    learner.begin(MODEL.init(0))
    assert learner.step(3).iterations == 0
    assert learner.num_samples == 0
    assert not any(tensor.any() for tensor in learner.update().values())


@settings(max_examples=30)
@given(
    name=st.sampled_from(TRAINING),
    gushes=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    buffer=st.integers(1, 20),
)
def test_memory_is_bounded_and_drops_are_counted(name: str, gushes: list[int], buffer: int) -> None:
    learner = _learner(name, buffer=buffer, batch=7)
    for gush in gushes:
        learner.absorb(*_samples(gush))
    learner.begin(MODEL.init(0))
    learner.step(learner.default_iterations)
    if name == "strsaga":
        assert learner.num_samples == min(buffer, gushes[-1])
    else:
        assert learner.num_samples == min(buffer, sum(gushes))
    if name in ("sgd", "strsaga"):
        assert learner.num_samples + learner.dropped == sum(gushes)
    else:
        assert learner.dropped == sum(max(0, gush - buffer) for gush in gushes)


def test_sgd_uses_each_sample_once() -> None:
    learner = _learner("sgd", batch=8)
    learner.absorb(*_samples(20))
    learner.begin(MODEL.init(0))
    assert learner.default_iterations == 3
    assert learner.step(2).samples == 16
    last = learner.step(5)
    assert (last.iterations, last.samples) == (1, 4)
    assert learner.num_samples == 20
    assert learner.step(1).iterations == 0
    learner.begin(MODEL.init(0))
    assert learner.num_samples == 0


def test_strsaga_refuses_a_penalty_that_its_rate_cannot_bear() -> None:
    model = create_model(ModelSpec(kind="logistic", features=4, l2=10.0))
    with pytest.raises(TaskFormatError) as caught:
        _learner("strsaga", model)
    assert caught.value.key == "learner.rate"
