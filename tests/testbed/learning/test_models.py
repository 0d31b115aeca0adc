"""Gradients are those of the losses, and the batch axis changes nothing."""

import numpy as np
import numpy.typing as npt
import pytest

from fedagent_task.models import create
from fedagent_task.spec import ModelSpec
from fedagent_testbed.learning import Linear, Mlp, Model, SettingError
from fedagent_testbed.learning.losses import losses

MODELS: dict[str, Model] = {
    "softmax": Linear(6, 4, "softmax", l2=0.1),
    "crammer-singer": Linear(6, 4, "crammer-singer", l2=0.1),
    "one-vs-rest": Linear(6, 4, "one-vs-rest"),
    "mlp": Mlp(6, 4, hidden=5, l2=0.1),
}
STEP = 1e-6


def batch(
    model: Model, clients: int = 3, samples: int = 7
) -> tuple[
    npt.NDArray[np.float64],
    npt.NDArray[np.float64],
    npt.NDArray[np.int64],
    npt.NDArray[np.float64],
]:
    """Return random parameters, samples, labels, and weights with some padding."""
    rng = np.random.default_rng(5)
    theta = rng.standard_normal((clients, model.size))
    x = rng.standard_normal((clients, samples, model.features))
    y = rng.integers(0, model.classes, (clients, samples))
    weight = np.full((clients, samples), 1.0 / (samples - 2))
    weight[:, -2:] = 0.0
    return theta, x, y, weight


@pytest.mark.parametrize("name", list(MODELS))
def test_gradient_is_the_finite_difference(name: str) -> None:
    model = MODELS[name]
    theta, x, y, weight = batch(model)
    gradient = np.empty_like(theta)
    model.gradient(theta, x, y, weight, gradient)
    numeric = np.empty_like(theta)
    for i in range(model.size):
        up, down = theta.copy(), theta.copy()
        up[:, i] += STEP
        down[:, i] -= STEP
        numeric[:, i] = model.loss(up, x, y, weight) - model.loss(down, x, y, weight)
    assert np.abs(gradient).max() > 0.1
    np.testing.assert_allclose(gradient, numeric / (2 * STEP), atol=1e-6)


@pytest.mark.parametrize("name", list(MODELS))
def test_padding_counts_nothing(name: str) -> None:
    model = MODELS[name]
    theta, x, y, weight = batch(model)
    whole, cut = np.empty_like(theta), np.empty_like(theta)
    model.gradient(theta, x, y, weight, whole)
    model.gradient(theta, x[:, :-2], y[:, :-2], weight[:, :-2], cut)
    np.testing.assert_allclose(whole, cut, atol=1e-12)


@pytest.mark.parametrize("name", list(MODELS))
def test_clients_do_not_mix(name: str) -> None:
    model = MODELS[name]
    theta, x, y, weight = batch(model)
    together = np.empty_like(theta)
    model.gradient(theta, x, y, weight, together)
    for i in range(3):
        alone = np.empty_like(theta[:1])
        one = slice(i, i + 1)
        model.gradient(theta[one], x[one], y[one], weight[one], alone)
        assert np.array_equal(alone[0], together[i])


def test_losses_are_their_definitions() -> None:
    z, true = np.array([0.3, 1.0, -2.0]), 0
    expected = {
        "softmax": -0.3 + np.log(np.exp(z).sum()),
        "crammer-singer": (1.0 + 1.0) - 0.3,
        "one-vs-rest": (1.0 - 0.3) + (1.0 + 1.0) + 0.0,
    }
    y = np.array([[true]])
    assert losses("softmax", z[None, :, None], y)[0, 0] == pytest.approx(expected["softmax"])
    assert losses("crammer-singer", z[None, :, None], y)[0, 0] == pytest.approx(
        expected["crammer-singer"]
    )
    assert losses("one-vs-rest", z[None, :, None], y)[0, 0] == pytest.approx(
        expected["one-vs-rest"]
    )


def test_softmax_survives_large_scores() -> None:
    model = Linear(1, 3)
    theta = np.zeros((1, model.size), np.float32)
    theta[0, :3] = [1e4, -1e4, 0.0]
    out = np.empty_like(theta)
    ones = np.ones((1, 1), np.float32)
    model.gradient(theta, ones[None], np.array([[1]]), ones, out)
    assert np.array_equal(out[0, :3], np.array([1.0, -1.0, 0.0], np.float32))


def test_softmax_is_the_product_s_own() -> None:
    spec = ModelSpec(kind="softmax", features=6, classes=4, l2=0.1)
    own = create(spec)
    model = MODELS["softmax"]
    theta, x, y, weight = batch(model)
    out = np.empty_like(theta)
    model.gradient(theta, x, y, weight, out)
    weights = {"bias": theta[0, :4], "weight": theta[0, 4:].reshape(4, 6)}
    expected = own.gradient(weights, x[0, :-2], y[0, :-2])
    names = [tensor.name for tensor in own.manifest().specs]
    flat = np.concatenate([expected[name].ravel() for name in names])
    np.testing.assert_allclose(out[0], flat, atol=1e-12)


@pytest.mark.parametrize("name", list(MODELS))
def test_starts_are_seeded_and_small(name: str) -> None:
    model = MODELS[name]
    first, again, other = model.init(1), model.init(1), model.init(2)
    assert first.dtype == np.float32
    assert first.shape == (model.size,)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert 0 < np.abs(first).max() < 5


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(SettingError, match="loss_kind"):
        Linear(6, 4, "hinge")  # type: ignore[arg-type]  # what a recipe might say
    with pytest.raises(SettingError, match="l2"):
        Linear(6, 4, l2=-1.0)
    with pytest.raises(SettingError, match="hidden"):
        Mlp(6, 4, hidden=0)
    with pytest.raises(SettingError, match="model"):
        Mlp(6, 1)
