"""Linear regression: half the mean squared error."""

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
class Linear:
    """Linear regression with one output; see `Model` for shapes."""

    spec: ModelSpec

    def manifest(self) -> Manifest:
        """Return the exact tensors of this model."""
        return linear_manifest(self.spec)

    def init(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return starting weights, the same for the same seed."""
        return linear_init(self.spec, seed)

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return the predicted values, float64 [n, 1]."""
        return affine(weights, x)

    def predict(self, weights: Weights, x: Inputs) -> Labels:
        """Return the predicted values, float64 [n]."""
        return affine(weights, x)[:, 0]

    def loss(self, weights: Weights, x: Inputs, y: Labels) -> float:
        """Return half the mean squared error, with the L2 penalty."""
        return _half_mse(affine(weights, x)[:, 0] - y) + penalty(self.spec, weights)

    def gradient(self, weights: Weights, x: Inputs, y: Labels) -> dict[str, Floats]:
        """Return the gradient of `loss`."""
        return self.loss_and_gradient(weights, x, y)[1]

    def loss_and_gradient(
        self, weights: Weights, x: Inputs, y: Labels
    ) -> tuple[float, dict[str, Floats]]:
        """Return both from one forward pass."""
        residual = affine(weights, x)[:, 0] - y
        loss = _half_mse(residual) + penalty(self.spec, weights)
        return loss, pull_back(self.spec, weights, x, residual[:, None])


def _half_mse(residual: npt.NDArray[np.float64]) -> float:
    return 0.5 * float(np.square(residual).mean()) if len(residual) else 0.0
