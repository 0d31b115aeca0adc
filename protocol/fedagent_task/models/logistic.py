"""Logistic regression: cross-entropy over two classes, 0 and 1."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_protocol.tensors import Manifest
from fedagent_task.spec import ModelSpec

from .base import (
    Doubles,
    Floats,
    Inputs,
    Labels,
    Weights,
    affine,
    linear_init,
    linear_manifest,
    penalty,
    pull_back,
)


@dataclass(frozen=True, slots=True)
class Logistic:
    """Logistic regression with one output; see `Model` for shapes."""

    spec: ModelSpec

    def manifest(self) -> Manifest:
        """Return the exact tensors of this model."""
        return linear_manifest(self.spec)

    def init(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return starting weights, the same for the same seed."""
        return linear_init(self.spec, seed)

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return the probabilities of class 0 and 1, float64 [n, 2]."""
        one = sigmoid(affine(weights, x))
        return np.hstack([1.0 - one, one])

    def predict(self, weights: Weights, x: Inputs) -> Labels:
        """Return the more likely class, int64 [n]."""
        return (affine(weights, x)[:, 0] > 0).astype(np.int64)

    def loss(self, weights: Weights, x: Inputs, y: Labels) -> float:
        """Return the mean cross-entropy in nats, with the L2 penalty."""
        return _cross_entropy(affine(weights, x)[:, 0], y) + penalty(self.spec, weights)

    def gradient(self, weights: Weights, x: Inputs, y: Labels) -> dict[str, Floats]:
        """Return the gradient of `loss`."""
        return self.loss_and_gradient(weights, x, y)[1]

    def loss_and_gradient(
        self, weights: Weights, x: Inputs, y: Labels
    ) -> tuple[float, dict[str, Floats]]:
        """Return both from one forward pass."""
        z = affine(weights, x)
        loss = _cross_entropy(z[:, 0], y) + penalty(self.spec, weights)
        residual = sigmoid(z) - y.astype(np.float64)[:, None]
        return loss, pull_back(self.spec, weights, x, residual)


def sigmoid(z: Doubles) -> Doubles:
    """Return 1 / (1 + exp(-z)) without overflow."""
    return np.exp(-np.logaddexp(0.0, -z))


def _cross_entropy(z: Doubles, y: Labels) -> float:
    return float((np.logaddexp(0.0, z) - y * z).mean()) if len(y) else 0.0
