"""Softmax regression: cross-entropy over any number of classes."""

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
class Softmax:
    """Softmax regression; see `Model` for shapes."""

    spec: ModelSpec

    def manifest(self) -> Manifest:
        """Return the exact tensors of this model."""
        return linear_manifest(self.spec)

    def init(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return starting weights, the same for the same seed."""
        return linear_init(self.spec, seed)

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return the probability of each class, float64 [n, classes]."""
        return np.exp(log_softmax(affine(weights, x)))

    def predict(self, weights: Weights, x: Inputs) -> Labels:
        """Return the most likely class, int64 [n]."""
        return np.asarray(affine(weights, x).argmax(axis=1), np.int64)

    def loss(self, weights: Weights, x: Inputs, y: Labels) -> float:
        """Return the mean cross-entropy in nats, with the L2 penalty."""
        log_p = log_softmax(affine(weights, x))
        return _cross_entropy(log_p, y) + penalty(self.spec, weights)

    def gradient(self, weights: Weights, x: Inputs, y: Labels) -> dict[str, Floats]:
        """Return the gradient of `loss`."""
        return self.loss_and_gradient(weights, x, y)[1]

    def loss_and_gradient(
        self, weights: Weights, x: Inputs, y: Labels
    ) -> tuple[float, dict[str, Floats]]:
        """Return both from one forward pass."""
        log_p = log_softmax(affine(weights, x))
        loss = _cross_entropy(log_p, y) + penalty(self.spec, weights)
        residual = np.exp(log_p)
        residual[np.arange(len(y)), y.astype(np.intp)] -= 1.0
        return loss, pull_back(self.spec, weights, x, residual)


def log_softmax(logits: Doubles) -> Doubles:
    """Return log-probabilities [n, classes], safe for large logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _cross_entropy(log_p: Doubles, y: Labels) -> float:
    if len(y) == 0:
        return 0.0
    return -float(log_p[np.arange(len(y)), y.astype(np.intp)].mean())
