"""Gradients of many clients at once are those of the task package, and of the margin loss."""

import numpy as np
import numpy.typing as npt

from fedagent_task.models import create
from fedagent_task.recipe.spec import ModelSpec
from fedagent_testbed.learning.local_sgd import BatchedModel

SVM = BatchedModel(create(ModelSpec(kind="svm", features=6, classes=4, l2=0.1)))
STEP = 1e-6
Doubles = npt.NDArray[np.float64]


def batch(
    model: BatchedModel, clients: int = 3, samples: int = 7
) -> tuple[Doubles, Doubles, npt.NDArray[np.int64], Doubles]:
    """Return random parameters, samples, labels, and weights with some padding."""
    rng = np.random.default_rng(5)
    theta = rng.standard_normal((clients, model.size))
    x = rng.standard_normal((clients, samples, model.features))
    y = rng.integers(0, model.classes, (clients, samples))
    weight = np.full((clients, samples), 1.0 / (samples - 2))
    weight[:, -2:] = 0.0
    return theta, x, y, weight


def gradient(
    model: BatchedModel, theta: Doubles, x: Doubles, y: npt.NDArray[np.int64], weight: Doubles
) -> Doubles:
    out = np.empty_like(theta)
    model.gradient(theta, x, y, weight, out)
    return out


def margin_loss(theta: Doubles, x: Doubles, y: npt.NDArray[np.int64], weight: Doubles) -> Doubles:
    """Return Crammer's and Singer's loss with its penalty, float64[S], by their words."""
    bias, slope = theta[:, :4], theta[:, 4:].reshape(-1, 4, 6)
    total = 0.05 * (slope**2).sum(axis=(1, 2))
    for s, row in enumerate(x):
        for k, sample in enumerate(row):
            z = slope[s] @ sample + bias[s]
            rivals = z + (np.arange(4) != y[s, k])
            total[s] += weight[s, k] * (rivals.max() - z[y[s, k]])
    return np.asarray(total)


def test_the_gradient_of_an_svm_is_the_finite_difference_of_the_largest_violation() -> None:
    theta, x, y, weight = batch(SVM)
    numeric = np.empty_like(theta)
    for i in range(SVM.size):
        up, down = theta.copy(), theta.copy()
        up[:, i] += STEP
        down[:, i] -= STEP
        numeric[:, i] = margin_loss(up, x, y, weight) - margin_loss(down, x, y, weight)
    found = gradient(SVM, theta, x, y, weight)
    assert np.abs(found).max() > 0.1
    np.testing.assert_allclose(found, numeric / (2 * STEP), atol=1e-6)
