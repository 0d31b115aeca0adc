"""Models: gradients against finite differences, manifests, numbers that stay finite."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from fedagent_protocol.tensors import Manifest, decode_tensors, encode_tensors
from fedagent_task.errors import DatasetError, TaskFormatError
from fedagent_task.models import Factors, Floats, Inputs, Labels, Model, Weights, create, registry
from fedagent_task.models.base import Csr
from fedagent_task.models.cnn import Cnn
from fedagent_task.models.features import expect_fit, fitting, scaled
from fedagent_task.recipe.spec import DataSpec, ModelSpec
from fedagent_task.scoring.metrics import evaluate

SMALL = tuple(kind for kind in registry.names() if kind not in ("cnn", "graph"))
"""Kinds with few enough weights to look at each; the others have a test of their own."""
KINDS = (*SMALL, "svm-hinge", "svm-4", "svm-4-hinge")
SPARSE = [kind for kind in KINDS if kind != "mf"]


def _model(kind: str, features: int = 3, l2: float = 0.0) -> Model:
    name, *more = kind.split("-")
    keys: dict[str, object] = {"features": features, "l2": l2}
    if name in {"softmax", "mlp"} or "4" in more:
        keys["classes"] = 4
    if name == "mlp":
        keys["hidden"] = (5, 4)
    if "hinge" in more:
        keys["loss"] = "hinge"
    if name == "mf":
        keys |= {"features": 2, "users": 4, "items": 3, "rank": 2}
    return create(ModelSpec(kind=name, **keys))  # type: ignore[arg-type] # by test


def _samples(model: Model, rng: np.random.Generator, count: int) -> tuple[Floats, Labels]:
    if model.spec.kind == "mf":
        ids = rng.integers(0, (model.spec.users, model.spec.items), (count, 2))
        return ids.astype(np.float64), rng.normal(size=count)
    x = rng.normal(size=(count, model.spec.features))
    if model.spec.regression:
        return x, rng.normal(size=count)
    return x, rng.integers(0, model.spec.num_classes, count)


def _slope(
    model: Model, weights: Weights, samples: tuple[Inputs, Labels], at: tuple[Any, ...]
) -> float:
    """The loss's central difference by one weight, over a step within which it has no kink.

    A rectifier or a hinge that turns within the step shows in the loss itself: a step of a tenth
    has another slope. Then that one is tried; an example with kinks below 1e-6 is none.
    """
    slopes = [_difference(model, weights, samples, at, step) for step in (1e-5, 1e-6, 1e-7)]
    steady = [
        slope
        for slope, closer in pairwise(slopes)
        if slope == pytest.approx(closer, rel=3e-5, abs=3e-7)
    ]
    if not steady:
        reject()
    return steady[0]


def _difference(
    model: Model, weights: Weights, samples: tuple[Inputs, Labels], at: tuple[Any, ...], step: float
) -> float:
    name, *index = at
    around = []
    for sign in (1, -1):
        moved = {n: t.copy() for n, t in weights.items()}
        moved[name][tuple(index)] += sign * step
        around.append(model.loss(moved, *samples))
    return (around[0] - around[1]) / (2 * step)


@settings(max_examples=25)
@example(kind="mlp", seed=1342898, count=4, l2=0.0, spread=0.1, sparse=True)  # a rectifier turns
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32),
    count=st.integers(1, 8),
    l2=st.sampled_from([0.0, 0.3]),
    spread=st.sampled_from([0.1, 1.0, 5.0]),
    sparse=st.booleans(),
)
def test_the_gradient_is_the_slope_of_the_loss(
    kind: str, seed: int, count: int, l2: float, spread: float, sparse: bool
) -> None:
    rng = np.random.default_rng(seed)
    model = _model(kind, l2=l2)
    weights = {
        spec.name: rng.normal(scale=spread, size=spec.shape) for spec in model.manifest().specs
    }
    x: Inputs
    x, y = _samples(model, rng, count)
    if sparse and kind in SPARSE:
        x = Csr.from_dense(np.where(rng.random(x.shape) < 0.3, 0.0, x))
    loss, gradient = model.loss_and_gradient(weights, x, y)
    assert loss == pytest.approx(model.loss(weights, x, y))
    for name, tensor in weights.items():
        for index in np.ndindex(tensor.shape):
            slope = _slope(model, weights, (x, y), (name, *index))
            assert gradient[name][index] == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_factors_descend_as_their_gradient_says() -> None:
    model, rng = _model("mf", l2=0.2), np.random.default_rng(4)
    assert isinstance(model, Factors)
    x, y = _samples(model, rng, 30)
    weights = model.init(0)
    gradient = model.loss_and_gradient(weights, x, y)[1]
    expected = {n: t - np.float32(0.5) * gradient[n] for n, t in weights.items()}
    before = model.loss(weights, x, y)
    assert model.descend(weights, x, y, 0.5) == before
    for name, tensor in weights.items():
        assert tensor.dtype == np.float32
        np.testing.assert_allclose(tensor, expected[name], rtol=1e-4, atol=1e-6)


def test_an_svm_of_two_classes_maps_them_to_both_sides() -> None:
    model = _model("svm", features=1)
    weights = {"weight": np.array([[2.0]]), "bias": np.array([0.5])}
    x, y = np.array([[1.0], [0.0]]), np.array([0, 1])
    assert model.loss(weights, x, y) == pytest.approx((3.5**2 + 0.5**2) / 2)
    assert _model("svm-hinge", 1).loss(weights, x, y) == pytest.approx((3.5 + 0.5) / 2)
    assert model.forward(weights, x).argmax(axis=1).tolist() == [1, 1]
    assert evaluate(model, weights, x, y).loss == pytest.approx(model.loss(weights, x, y))
    assert evaluate(model, weights, x, y).accuracy == 0.5


@pytest.mark.parametrize("kind", ["softmax", "logistic", "mlp", "svm-4", "mf"])
def test_huge_margins_stay_finite(kind: str) -> None:
    model = _model(kind)
    weights = {n: t + np.float32(1e4) for n, t in model.init(0).items()}
    x = np.array([[1e3, -1e3, 1e3], [-1e3, 0, 0]], np.float32)
    if kind == "mf":
        x = np.array([[0, 0], [3, 2]], np.float32)
    loss, gradient = model.loss_and_gradient(weights, x, np.array([0, 1]))
    assert np.isfinite(loss)
    assert all(np.isfinite(slope).all() for slope in gradient.values())


def test_features_are_scaled_and_misfits_are_found() -> None:
    spec = ModelSpec(kind="softmax", features=2, classes=3)
    x = np.array([[0, 16], [8, 4], [1, 1], [2, 2]], np.uint8)
    np.testing.assert_array_equal(
        scaled(x, DataSpec(scale=0.5, offset=-1.0))[:2], [[-1.0, 7.0], [3.0, 1.0]]
    )
    y = np.array([0.0, 2.5, 3.0, np.nan])
    assert fitting(scaled(x, DataSpec()), y, spec).tolist() == [True, False, False, False]
    bad = np.array([[np.inf, 0], [0, 0]], np.float32)
    assert fitting(bad, np.array([0, 0]), spec).tolist() == [False, True]
    with pytest.raises(DatasetError, match=r"model\.features"):
        expect_fit("set", x[:, :1], np.zeros(4), spec)
    for features, label, says in (
        (bad[0], 0.0, "sample 3 has a feature that is not finite; leave it out"),
        (x[1], np.nan, "sample 3 has a label that is not finite"),
        (x[1], -1.0, "sample 3 has the label -1, which is below 0; count the classes from 0"),
        (x[1], 0.5, "sample 3 has the label 0.5, which is no whole number"),
        (x[1], 3.0, r"sample 3 has the label 3, but the model's classes are 0 to 2; .*\.classes"),
    ):
        with pytest.raises(DatasetError, match=says):
            expect_fit("set", np.vstack([x[:3], features]), np.array([0, 1, 2, label]), spec)
    with pytest.raises(DatasetError, match="set: has no samples"):
        expect_fit("set", x[:0], y[:0], spec)
    expect_fit("set", x, np.array([0, 1, 2, 0]), spec)


def test_sparse_samples_are_scaled_and_evaluated_as_dense_ones() -> None:
    spec = ModelSpec(kind="logistic", features=2)
    x = np.array([[0, 16], [np.nan, 4], [1, 1]], np.float32)
    sparse = scaled(Csr.from_dense(x), DataSpec(scale=0.5))
    np.testing.assert_array_equal(sparse.dense(), x * np.float32(0.5))
    assert fitting(sparse, np.array([1.0, 0.0, 2.0]), spec).tolist() == [True, False, False]
    with pytest.raises(TaskFormatError, match=r"data\.offset"):
        scaled(sparse, DataSpec(offset=1.0))
    with pytest.raises(DatasetError, match=r"model\.features"):
        expect_fit("set", np.zeros((1, 3)), np.zeros(1), spec)


def test_ratings_of_strangers_do_not_fit() -> None:
    spec = ModelSpec(kind="mf", features=2, users=3, items=2, rank=1)
    x = scaled(np.array([[1, 1], [3, 2], [4, 1], [1, 3], [0, 1]]), DataSpec(offset=-1.0))
    y = np.array([5.0, 0.5, 1.0, 1.0, 1.0])
    assert fitting(x, y, spec).tolist() == [True, True, False, False, False]
    assert fitting(x + np.float32(0.5), y, spec).tolist() == [False] * 5


FASHION = ModelSpec(kind="cnn", layout="fashion", features=784, classes=10)
CIFAR = ModelSpec(kind="cnn", layout="cifar", features=3072, classes=10)
PICTURE = ModelSpec(
    kind="cnn", layout="fashion", features=18 * 16 * 2, image=(18, 16, 2), classes=3, l2=0.1
)


@pytest.mark.parametrize(("spec", "parameters"), [(FASHION, 431_080), (CIFAR, 797_962)])
def test_the_papers_networks_have_the_papers_widths(spec: ModelSpec, parameters: int) -> None:
    model = create(spec)
    weights = model.init(3)
    assert spec.parameters == sum(t.size for t in weights.values()) == parameters
    assert Manifest.of(weights) == model.manifest()
    assert encode_tensors(model.init(3)) == encode_tensors(weights)
    assert encode_tensors(model.init(4)) != encode_tensors(weights)
    decode_tensors(encode_tensors(weights), model.manifest())
    widths = {name: t.shape[0] for name, t in weights.items() if name.endswith("weight")}
    if spec is FASHION:
        assert widths == {"conv1.weight": 20, "conv2.weight": 50} | {
            "dense1.weight": 500,
            "dense2.weight": 10,
        }


@settings(max_examples=3)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 3))
def test_the_gradient_of_convolutions_is_the_slope_of_the_loss(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    model = create(PICTURE)
    weights = {name: t.astype(np.float64) for name, t in model.init(seed).items()}
    x, y = rng.normal(size=(count, PICTURE.features)), rng.integers(0, 3, count)
    loss, gradient = model.loss_and_gradient(weights, x, y)
    assert loss == pytest.approx(model.loss(weights, x, y))
    for name, tensor in weights.items():
        index = tuple(int(rng.integers(size)) for size in tensor.shape)
        slope = _slope(model, weights, (x, y), (name, *index))
        assert gradient[name][index] == pytest.approx(slope, rel=1e-3, abs=1e-6)


def test_samples_in_parts_are_samples_at_once() -> None:
    rng = np.random.default_rng(1)
    model = create(PICTURE)
    assert isinstance(model, Cnn)
    count = 2 * model.part + 5
    x = rng.normal(size=(count, PICTURE.features)).astype(np.float32)
    y = rng.integers(0, 3, count)
    weights = model.init(0)
    whole = model.forward(weights, x)
    assert whole.shape == (count, 3)
    np.testing.assert_allclose(whole.sum(axis=1), 1)
    np.testing.assert_allclose(whole[70:80], model.forward(weights, x[70:80]), atol=1e-6)
    loss, gradient = model.loss_and_gradient(weights, x, y)
    assert loss == pytest.approx(model.loss(weights, x, y), rel=1e-6)
    halves = [model.loss_and_gradient(weights, x[i::2], y[i::2])[1] for i in (0, 1)]
    sizes = [len(y[i::2]) / count for i in (0, 1)]
    for name, slope in gradient.items():
        assert slope.dtype == np.float32
        mean = sum(size * half[name] for size, half in zip(sizes, halves, strict=True))
        np.testing.assert_allclose(slope, mean, atol=1e-5)
