"""Linear support vector machines: hinge or squared hinge, one class against the rest."""

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
class Svm:
    """A linear SVM; see `Model` for shapes.

    Two classes share one output: class 0 is -1, class 1 is +1. With more, each class
    has an output of its own against all others, and a sample's loss is their sum.
    """

    spec: ModelSpec

    def manifest(self) -> Manifest:
        """Return the exact tensors of this model."""
        return linear_manifest(self.spec)

    def init(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return starting weights, the same for the same seed."""
        return linear_init(self.spec, seed)

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return the score of each class, float64 [n, classes]; no probabilities."""
        z = affine(weights, x)
        return z if self.spec.outputs > 1 else np.hstack([-z, z])

    def predict(self, weights: Weights, x: Inputs) -> Labels:
        """Return the class with the highest score, int64 [n]."""
        z = affine(weights, x)
        if self.spec.outputs == 1:
            return (z[:, 0] > 0).astype(np.int64)
        return np.asarray(z.argmax(axis=1), np.int64)

    def loss(self, weights: Weights, x: Inputs, y: Labels) -> float:
        """Return the mean (squared) hinge loss, with the L2 penalty."""
        slack = self._slack(affine(weights, x), self._targets(y))
        return self._mean(slack) + penalty(self.spec, weights)

    def gradient(self, weights: Weights, x: Inputs, y: Labels) -> dict[str, Floats]:
        """Return the gradient of `loss`; 0 at the hinge itself."""
        return self.loss_and_gradient(weights, x, y)[1]

    def loss_and_gradient(
        self, weights: Weights, x: Inputs, y: Labels
    ) -> tuple[float, dict[str, Floats]]:
        """Return both from one forward pass."""
        targets = self._targets(y)
        slack = self._slack(affine(weights, x), targets)
        steep = 2.0 * slack if self.spec.loss == "squared-hinge" else (slack > 0).astype(np.float64)
        loss = self._mean(slack) + penalty(self.spec, weights)
        return loss, pull_back(self.spec, weights, x, -targets * steep)

    def score_loss(self, scores: Doubles, y: Labels) -> float:
        """Return the mean loss without penalty of what `forward` gave."""
        z = scores if self.spec.outputs > 1 else scores[:, 1:]
        return self._mean(self._slack(z, self._targets(y)))

    def _targets(self, y: Labels) -> Doubles:
        """Return -1 or +1 for each output, float64 [n, outputs]."""
        outputs = self.spec.outputs
        classes = np.arange(outputs) if outputs > 1 else np.ones(1)
        return np.where(y[:, None] == classes, 1.0, -1.0)

    def _slack(self, z: Doubles, targets: Doubles) -> Doubles:
        return np.maximum(0.0, 1.0 - targets * z)

    def _mean(self, slack: Doubles) -> float:
        if not len(slack):
            return 0.0
        each = np.square(slack) if self.spec.loss == "squared-hinge" else slack
        return float(each.sum(axis=1).mean())
