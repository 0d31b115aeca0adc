"""Generalised linear models: an affine map under a loss of its own.

`linear` (half the mean squared error), `logistic` and `softmax` (cross-entropy) and `svm`
(hinge or squared hinge, one class against the rest). Weights are weight
[outputs, features] and bias [outputs].
"""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from .base import Csr, Doubles, Floats, Inputs, Labels, Shaped, Weights, penalty

_INIT_DEVIATION = 0.01


class GeneralisedLinear(Shaped, ABC):
    """What the models share; see `Model` for shapes."""

    @abstractmethod
    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return probabilities [n, classes], scores of an svm, or values [n, 1]."""

    @abstractmethod
    def _losses(self, z: Doubles, y: Labels) -> tuple[float, Doubles]:
        """Return the mean loss of outputs [n, outputs], and d loss / d output of each sample."""

    def init(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return small normal weights and zero biases, the same for the same seed."""
        rng = np.random.default_rng(seed)
        shape = (self.spec.outputs, self.spec.features)
        weight = rng.standard_normal(shape, dtype=np.float32)
        return {
            "bias": np.zeros(self.spec.outputs, np.float32),
            "weight": weight * np.float32(_INIT_DEVIATION),
        }

    def loss(self, weights: Weights, x: Inputs, y: Labels) -> float:
        """Return the mean loss over the samples, with the L2 penalty."""
        return self._losses(_affine(weights, x), y)[0] + self._penalty(weights)

    def loss_and_gradient(
        self, weights: Weights, x: Inputs, y: Labels
    ) -> tuple[float, dict[str, Floats]]:
        """Return both from one forward pass."""
        loss, slopes = self._losses(_affine(weights, x), y)
        return loss + self._penalty(weights), self._pulled_back(weights, x, slopes)

    def _penalty(self, weights: Weights) -> float:
        return penalty(self.spec.l2, [weights["weight"]])

    def _pulled_back(self, weights: Weights, x: Inputs, slopes: Doubles) -> dict[str, Floats]:
        weight = weights["weight"]
        dtype = weight.dtype
        exact = slopes / max(len(x), 1)
        mean = exact.astype(dtype)
        slope = np.empty_like(weight)
        if isinstance(x, Csr):
            slope[...] = x.spread(exact)
        else:
            np.matmul(mean.T, x.astype(dtype, copy=False), out=slope)
        if self.spec.l2:
            slope += dtype.type(self.spec.l2) * weight
        return {"bias": mean.sum(axis=0, dtype=np.float64).astype(dtype), "weight": slope}


class Linear(GeneralisedLinear):
    """Linear regression with one output: half the mean squared error."""

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return the predicted values, float64 [n, 1]."""
        return _affine(weights, x)

    def _losses(self, z: Doubles, y: Labels) -> tuple[float, Doubles]:
        error = z[:, 0] - y
        return 0.5 * float(np.square(error).mean()) if len(error) else 0.0, error[:, None]


class Logistic(GeneralisedLinear):
    """Logistic regression with one output: cross-entropy over two classes, 0 and 1."""

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return the probabilities of class 0 and 1, float64 [n, 2]."""
        one = _sigmoid(_affine(weights, x))
        return np.hstack([1.0 - one, one])

    def _losses(self, z: Doubles, y: Labels) -> tuple[float, Doubles]:
        one = z[:, 0]
        loss = float((np.logaddexp(0.0, one) - y * one).mean()) if len(y) else 0.0
        return loss, _sigmoid(z) - y.astype(np.float64)[:, None]


class Softmax(GeneralisedLinear):
    """Softmax regression: cross-entropy in nats over any number of classes."""

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return the probability of each class, float64 [n, classes]."""
        return np.exp(log_softmax(_affine(weights, x)))

    def _losses(self, z: Doubles, y: Labels) -> tuple[float, Doubles]:
        log_p = log_softmax(z)
        true = (np.arange(len(y)), y.astype(np.intp))
        slopes = np.exp(log_p)
        slopes[true] -= 1.0
        return -float(log_p[true].mean()) if len(y) else 0.0, slopes


class Svm(GeneralisedLinear):
    """A linear support vector machine with hinge or squared hinge.

    Two classes share one output: class 0 is -1, class 1 is +1. With more, each class
    has an output of its own against all others, and a sample's loss is their sum.
    """

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return the score of each class, float64 [n, classes]; no probabilities."""
        z = _affine(weights, x)
        return z if self.spec.outputs > 1 else np.hstack([-z, z])

    def score_loss(self, scores: Doubles, y: Labels) -> float:
        """Return the mean loss without penalty of what `forward` gave."""
        return self._losses(scores if self.spec.outputs > 1 else scores[:, 1:], y)[0]

    def _losses(self, z: Doubles, y: Labels) -> tuple[float, Doubles]:
        outputs = self.spec.outputs
        classes = np.arange(outputs) if outputs > 1 else np.ones(1)
        targets = np.where(y[:, None] == classes, 1.0, -1.0)
        slack = np.maximum(0.0, 1.0 - targets * z)
        squared = self.spec.loss == "squared-hinge"
        each = np.square(slack) if squared else slack
        steep = 2.0 * slack if squared else (slack > 0).astype(np.float64)
        return float(each.sum(axis=1).mean()) if len(slack) else 0.0, -targets * steep


def log_softmax(logits: Doubles) -> Doubles:
    """Return log-probabilities [n, classes], safe for large logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _sigmoid(z: Doubles) -> Doubles:
    """Return 1 / (1 + exp(-z)) without overflow."""
    return np.exp(-np.logaddexp(0.0, -z))


def _affine(weights: Weights, x: Inputs) -> Doubles:
    weight = weights["weight"]
    product = x.dot(weight) if isinstance(x, Csr) else x @ weight.T
    return np.add(product, weights["bias"], dtype=np.float64)
