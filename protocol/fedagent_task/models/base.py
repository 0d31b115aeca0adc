"""What every model offers, and the arithmetic that generalised linear models share.

Weights are stored as float32; with float64 weights and samples everything is
computed in float64. Losses and probabilities are float64 always.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedagent_protocol.tensors import Manifest, TensorSpec
from fedagent_task.samples import Csr
from fedagent_task.spec import ModelSpec

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64] | npt.NDArray[np.float64]
Weights = Mapping[str, Floats]
Doubles = npt.NDArray[np.float64]
Inputs = Floats | Csr
"""Samples [n, features]; sparse ones for linear, logistic, softmax and svm."""

_INIT_DEVIATION = 0.01


class Model(Protocol):
    """A model as functions of its weights; it has no state of its own.

    ``x`` is float [n, features] or sparse, already scaled; of an mf it holds user and
    item. ``y`` is [n]: class indices for classifiers, numbers for regressions.
    """

    @property
    def spec(self) -> ModelSpec:
        """The recipe's section that this model was made from."""
        ...

    def manifest(self) -> Manifest:
        """Return the exact tensors of this model."""
        ...

    def init(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return starting weights, the same for the same seed."""
        ...

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return probabilities [n, classes], scores of an svm, or values [n, 1]."""
        ...

    def predict(self, weights: Weights, x: Inputs) -> Labels:
        """Return class indices int64 [n], or values float64 [n] of a regression."""
        ...

    def loss(self, weights: Weights, x: Inputs, y: Labels) -> float:
        """Return the mean loss over the samples, with the L2 penalty."""
        ...

    def gradient(self, weights: Weights, x: Inputs, y: Labels) -> dict[str, Floats]:
        """Return the gradient of `loss`, in the weights' dtype."""
        ...

    def loss_and_gradient(
        self, weights: Weights, x: Inputs, y: Labels
    ) -> tuple[float, dict[str, Floats]]:
        """Return both from one forward pass."""
        ...


def linear_manifest(spec: ModelSpec) -> Manifest:
    """Return the tensors of an affine map: weight [outputs, features], bias [outputs]."""
    bias = TensorSpec("bias", "float32", (spec.outputs,))
    weight = TensorSpec("weight", "float32", (spec.outputs, spec.features))
    return Manifest((bias, weight))


def linear_init(spec: ModelSpec, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Return small normal weights and zero biases."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((spec.outputs, spec.features), dtype=np.float32)
    return {
        "bias": np.zeros(spec.outputs, np.float32),
        "weight": weight * np.float32(_INIT_DEVIATION),
    }


def densed(x: Inputs) -> Floats:
    """Return the samples as one dense array."""
    return x.dense() if isinstance(x, Csr) else x


def affine(weights: Weights, x: Inputs) -> Doubles:
    """Return ``x · weightᵀ + bias`` [n, outputs] as float64."""
    weight = weights["weight"]
    product = x.dot(weight) if isinstance(x, Csr) else x @ weight.T
    return np.add(product, weights["bias"], dtype=np.float64)


def penalty(spec: ModelSpec, weights: Weights) -> float:
    """Return 0.5·l2·|weight|²; biases are not held back."""
    if spec.l2 == 0:
        return 0.0
    flat = weights["weight"].astype(np.float64).ravel()
    return 0.5 * spec.l2 * float(flat @ flat)


def pull_back(spec: ModelSpec, weights: Weights, x: Inputs, residual: Doubles) -> dict[str, Floats]:
    """Return the mean gradient from d loss / d output [n, outputs]."""
    weight = weights["weight"]
    dtype = weight.dtype
    exact = residual / max(len(x), 1)
    mean = exact.astype(dtype)
    slope = np.empty_like(weight)
    if isinstance(x, Csr):
        slope[...] = x.spread(exact)
    else:
        np.matmul(mean.T, x.astype(dtype, copy=False), out=slope)
    if spec.l2:
        slope += dtype.type(spec.l2) * weight
    return {"bias": mean.sum(axis=0, dtype=np.float64).astype(dtype), "weight": slope}
