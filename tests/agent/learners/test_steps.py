"""Steps of an optimiser: numpy and torch do the same, and what strategies add to a gradient."""

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_agent.learners import Learner, Tensors, create
from fedagent_agent.learners.course import local_steps
from fedagent_agent.learners.steps import clip, create_optimizer
from fedagent_task.models import Floats, Weights
from fedagent_task.models import create as create_model
from fedagent_task.recipe.spec import AggregationSpec, LearnerSpec, ModelSpec

MLP = ModelSpec(kind="mlp", features=8, hidden=(12, 6), classes=3, l2=0.01)
SOFTMAX = ModelSpec(kind="softmax", features=8, classes=3)
FORMS: tuple[dict[str, object], ...] = (
    {"momentum": 0.9},
    {"momentum": 0.8, "weight_decay": 0.01},
    {"optimizer": "adam"},
    {"optimizer": "adam", "weight_decay": 0.1},
    {"optimizer": "adamw", "weight_decay": 0.1},
    {"clip_norm": 0.05},
    {"momentum": 0.9, "clip_norm": 0.05, "weight_decay": 0.001},
)
Strategy = AggregationSpec | None


def _spec(**keys: object) -> LearnerSpec:
    return msgspec.structs.replace(LearnerSpec(rate=0.02, batch=10, device="cpu"), **keys)


def _learner(model: ModelSpec, strategy: Strategy = None, **keys: object) -> Learner:
    aggregation = strategy or AggregationSpec()
    rng = np.random.default_rng(1)
    return create(create_model(model), _spec(**keys), rng, aggregation=aggregation)


def _samples(
    model: ModelSpec, count: int = 40, seed: int = 0
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, model.features)).astype(np.float32)
    return x, rng.integers(0, model.classes, count)


def _update(
    learner: Learner, model: ModelSpec, base: Tensors | None = None
) -> dict[str, npt.NDArray[np.float32]]:
    learner.absorb(*_samples(model))
    learner.begin(create_model(model).init(5) if base is None else base)
    learner.step(2)
    return learner.update()


def _same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)


# ------------------------------------------------------------------- optimisers


@settings(max_examples=15)
@given(
    form=st.sampled_from(FORMS),
    seed=st.integers(0, 2**31),
    rate=st.floats(1e-4, 0.5),
    steps=st.integers(1, 5),
)
def test_an_optimizer_in_numpy_steps_as_torchs(
    form: dict[str, object], seed: int, rate: float, steps: int
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    spec, rng = _spec(**form), np.random.default_rng(seed)
    first = {"a": rng.normal(size=(3, 4)), "b": rng.normal(size=5)}
    weights = {name: tensor.astype(np.float32) for name, tensor in first.items()}
    leaves = {n: torch.tensor(t, requires_grad=True) for n, t in weights.items()}
    common = {"lr": rate, "weight_decay": spec.weight_decay}
    if spec.optimizer == "sgd":
        theirs = torch.optim.SGD(leaves.values(), **common, momentum=spec.momentum)
    else:
        kind = torch.optim.AdamW if spec.optimizer == "adamw" else torch.optim.Adam
        theirs = kind(leaves.values(), **common)
    ours = create_optimizer(spec)
    for _ in range(steps):
        slopes = {n: rng.normal(size=t.shape).astype(np.float32) for n, t in weights.items()}
        for name, leaf in leaves.items():
            leaf.grad = torch.tensor(slopes[name])
        if spec.clip_norm:
            torch.nn.utils.clip_grad_norm_(leaves.values(), spec.clip_norm)
        theirs.step()
        gradient: dict[str, Floats] = dict(slopes)
        clip(gradient, spec.clip_norm)
        ours.apply(weights, gradient, rate)
    for name, leaf in leaves.items():
        np.testing.assert_allclose(weights[name], leaf.detach().numpy(), rtol=1e-6, atol=1e-6)


def test_a_learner_takes_the_rate_of_its_round() -> None:
    learner = _learner(SOFTMAX, name="bgd", decay=0.5)
    learner.absorb(*_samples(SOFTMAX))
    deltas = []
    for number in (1, 2, 3):
        learner.begin(create_model(SOFTMAX).init(5), number)
        learner.step(1)
        deltas.append(np.abs(learner.update()["weight"]).sum())
    np.testing.assert_allclose(deltas[1:], [deltas[0] / 2, deltas[0] / 4], rtol=1e-4)


# ------------------------------------------------------- what strategies ask of it


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_fedprox_adds_mu_times_the_way_gone(backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    model, (x, y), base = create_model(MLP), _samples(MLP), create_model(MLP).init(5)
    learner = _learner(
        MLP, AggregationSpec(name="fedprox", params={"mu": 2.0}), name="bgd", backend=backend
    )
    learner.absorb(x, y)
    learner.begin(base)
    learner.step(3)
    now: Weights = base
    for _ in range(3):
        slopes = model.loss_and_gradient(now, x, y)[1]
        now = {n: w - 0.02 * (slopes[n] + 2.0 * (w - base[n])) for n, w in now.items()}
    for name, delta in learner.update().items():
        np.testing.assert_allclose(delta, now[name] - base[name], atol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_scaffold_is_option_two_of_its_paper(backend: str) -> None:
    """Two rounds against a reference; what is kept is used in the second."""
    if backend == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    model, (x, y), rng = create_model(MLP), _samples(MLP), np.random.default_rng(3)
    learner = _learner(MLP, AggregationSpec(name="scaffold"), name="bgd", backend=backend)
    learner.absorb(x, y)
    first = model.init(5)
    base: Weights = first
    own: dict[str, Floats] = {n: np.zeros_like(t) for n, t in base.items()}
    for number in (1, 2):
        fleet = {n: rng.normal(0, 0.1, t.shape).astype(np.float32) for n, t in first.items()}
        learner.begin({**first, **{f"control/{n}": c for n, c in fleet.items()}}, number)
        learner.step(4)
        now: Weights = base
        for _ in range(4):
            slopes = model.loss_and_gradient(now, x, y)[1]
            now = {
                n: np.asarray(w - 0.02 * (slopes[n] + fleet[n] - own[n])) for n, w in now.items()
            }
        update = learner.update()
        change = {n: (base[n] - now[n]) / (4 * 0.02) - fleet[n] for n in base}
        for name in base:
            np.testing.assert_allclose(update[name], now[name] - base[name], atol=2e-6)
            np.testing.assert_allclose(update[f"control/{name}"], change[name], atol=1e-4)
            assert update[f"control/{name}"].dtype == np.float32
        own = {n: own[n] + change[n] for n in own}
        kept = learner.keep()
        for name in own:
            np.testing.assert_allclose(kept[f"control/{name}"], own[name], atol=1e-4)


def test_an_update_that_is_not_settled_moves_no_control_variate() -> None:
    strategy, base = AggregationSpec(name="scaffold"), create_model(SOFTMAX).init(5)
    controls = {f"control/{name}": np.zeros_like(tensor) for name, tensor in base.items()}
    learner = _learner(SOFTMAX, strategy, name="bgd")
    first = _update(learner, SOFTMAX, {**base, **controls})
    learner.begin({**base, **controls})  # cancelled: nobody called `keep`
    learner.step(2)
    assert _same(learner.update(), first)
    kept = learner.keep()
    again = _learner(SOFTMAX, strategy, name="bgd")
    again.restore(kept)
    assert _same(again.keep(), kept)


# ----------------------------------------------------------------------- figures


@settings(max_examples=30)
@given(
    count=st.integers(0, 50),
    momentum=st.floats(0, 0.95),
    mu=st.floats(0, 5),
    proximal=st.booleans(),
)
def test_local_steps_are_the_sum_of_what_each_gradient_weighs(
    count: int, momentum: float, mu: float, proximal: bool
) -> None:
    """Gradients of 1 from a model at 0: how far it goes is |a| times the rate."""
    rate, m = 0.1, 0.0 if proximal else momentum
    pull = mu if proximal else 0.0
    w = speed = 0.0
    for _ in range(count):
        speed = m * speed + 1.0 + pull * w
        w -= rate * speed
    told = local_steps(_spec(momentum=m), pull, rate, count)
    assert told == pytest.approx(-w / rate, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", ["minibatch", "bgd", "sgd"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_the_course_tells_what_is_asked_and_the_losses(name: str, backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    model, base, samples = create_model(MLP), create_model(MLP).init(5), _samples(MLP)
    keys = {"name": name, "backend": backend, "batch": 15}
    told = {}
    for strategy in ("fedavg", "qfedavg", "fednova"):
        learner = _learner(MLP, AggregationSpec(name=strategy), **keys)
        learner.absorb(*samples)
        learner.begin(base)
        learner.step(3)
        told[strategy] = learner.course
    steps = 9 if name == "minibatch" else 3
    assert told["fedavg"].base_loss == told["fedavg"].local_steps == 0
    assert told["qfedavg"].base_loss == pytest.approx(model.loss(base, *samples), rel=1e-4)
    assert told["fednova"].local_steps == steps
    assert told["fedavg"].loss_rms == pytest.approx(model.loss(base, *samples), rel=0.2)
    learner.begin(base)
    assert learner.course.local_steps == learner.course.loss_rms == 0
