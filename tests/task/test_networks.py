"""Neural networks in numpy: shapes of the papers, slopes of convolutions, learning."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_protocol.tensors import Manifest, decode_tensors, encode_tensors
from fedagent_task.features import scaled
from fedagent_task.metrics import evaluate
from fedagent_task.models import create
from fedagent_task.models.cnn import Cnn
from fedagent_task.readers import load
from fedagent_task.spec import DataSpec, ModelSpec

FASHION = ModelSpec(kind="cnn", layout="fashion", features=784, classes=10)
CIFAR = ModelSpec(kind="cnn", layout="cifar", features=3072, classes=10)
SMALL = ModelSpec(
    kind="cnn", layout="fashion", features=17 * 18 * 2, image=(17, 18, 2), classes=3, l2=0.1
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


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 3))
def test_the_gradient_of_convolutions_is_the_slope_of_the_loss(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    model = create(SMALL)
    weights = {name: t.astype(np.float64) for name, t in model.init(seed).items()}
    x, y = rng.normal(size=(count, SMALL.features)), rng.integers(0, 3, count)
    loss, gradient = model.loss_and_gradient(weights, x, y)
    assert loss == pytest.approx(model.loss(weights, x, y))
    step = 1e-6
    for name, tensor in weights.items():
        index = tuple(int(rng.integers(size)) for size in tensor.shape)
        around = []
        for sign in (1, -1):
            moved = {n: t.copy() for n, t in weights.items()}
            moved[name][index] += sign * step
            around.append(model.loss(moved, x, y))
        slope = (around[0] - around[1]) / (2 * step)
        assert gradient[name][index] == pytest.approx(slope, rel=1e-3, abs=1e-6)


def test_samples_in_parts_are_samples_at_once() -> None:
    rng = np.random.default_rng(1)
    model = create(SMALL)
    assert isinstance(model, Cnn)
    count = 2 * model.part + 5
    x = rng.normal(size=(count, SMALL.features)).astype(np.float32)
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


@pytest.mark.parametrize("hidden", [(32,), (32, 16)])
def test_gradient_descent_on_a_perceptron_learns_the_digits(hidden: tuple[int, ...]) -> None:
    model = create(ModelSpec(kind="mlp", features=64, classes=10, hidden=hidden))
    data = DataSpec(dtype="uint8", scale=1 / 16)
    train, test = load("digits-train"), load("digits-test")
    x, weights = scaled(train.x, data), model.init(0)
    for _ in range(120):
        for name, slope in model.loss_and_gradient(weights, x, train.y)[1].items():
            weights[name] -= np.float32(0.5) * slope.astype(np.float32)
    result = evaluate(model, weights, scaled(test.x, data), test.y)
    assert result.accuracy is not None
    assert result.accuracy > 0.93
