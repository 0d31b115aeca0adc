"""Multi-layer perceptron: rectified hidden layers under a softmax."""

import math
from typing import cast

import numpy as np
import numpy.typing as npt

from .base import Doubles, Floats, Inputs, Labels, Shaped, Weights, densed, penalty
from .generalised_linear import log_softmax

Gradient = dict[str, Floats]


class Mlp(Shaped):
    """Dense layers ``dense1``, ``dense2``, ... of the recipe's widths; see `Model` for shapes.

    What comes before the dense layers is a subclass's: see `_lift` and `_lower`.
    """

    @property
    def part(self) -> int:
        """Samples that are computed at a time, which bounds the memory."""
        return 4096

    def init(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return weights of deviation sqrt(2 / inputs of a unit) and zero biases."""
        rng = np.random.default_rng(seed)
        tensors = {}
        for spec in self.manifest().specs:
            tensor = np.zeros(spec.shape, np.float32)
            if _is_weight(spec.name):
                tensor[...] = rng.standard_normal(spec.shape, dtype=np.float32)
                tensor *= np.float32(math.sqrt(2.0 / math.prod(spec.shape[1:])))
            tensors[spec.name] = tensor
        return tensors

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return the probability of each class, float64 [n, classes]."""
        return np.exp(log_softmax(self._logits(weights, x)))

    def loss(self, weights: Weights, x: Inputs, y: Labels) -> float:
        """Return the mean cross-entropy in nats, with the L2 penalty."""
        log_p = log_softmax(self._logits(weights, x))
        true = log_p[np.arange(len(y)), y.astype(np.intp)]
        return -float(true.sum()) / max(len(y), 1) + self._penalty(weights)

    def loss_and_gradient(self, weights: Weights, x: Inputs, y: Labels) -> tuple[float, Gradient]:
        """Return both from one forward pass, `part` samples at a time."""
        l2 = self.spec.l2
        loss = self._penalty(weights)
        total = {
            name: tensor * tensor.dtype.type(l2 if _is_weight(name) else 0.0)
            for name, tensor in weights.items()
        }
        for start in range(0, len(y), self.part):
            stop = start + self.part
            rows = densed(x[start:stop])
            share, slopes = self._slopes(weights, rows, y[start:stop], len(y))
            loss += share
            for name, slope in slopes.items():
                total[name] += slope
        return loss, total

    # ------------------------------------------------ what comes before the dense layers

    def _lift(self, weights: Weights, x: Floats) -> tuple[Floats, object]:
        """Return what the first dense layer sees, and what `_lower` needs of it."""
        return cast("Floats", x.astype(weights["dense1.weight"].dtype, copy=False)), None

    def _lower(self, weights: Weights, kept: object, slope: Floats) -> Gradient:
        """Return the gradient of what comes first, given that of what it returned."""
        del weights, kept, slope
        return {}

    @property
    def _lifts(self) -> bool:
        return False

    # ---------------------------------------------------------------- the dense layers

    def _logits(self, weights: Weights, x: Inputs) -> Doubles:
        parts = [np.empty((0, self.spec.classes))]
        for start in range(0, len(x), self.part):
            first, _ = self._lift(weights, densed(x[start : start + self.part]))
            parts.append(self._activations(weights, first)[-1].astype(np.float64))
        return np.concatenate(parts)

    def _activations(self, weights: Weights, first: Floats) -> list[Floats]:
        seen = [first]
        for index in range(1, self._depth + 1):
            z = seen[-1] @ weights[f"dense{index}.weight"].T
            z += weights[f"dense{index}.bias"]
            if index < self._depth:
                np.maximum(z, 0, out=z)
            seen.append(z)
        return seen

    def _slopes(self, weights: Weights, x: Floats, y: Labels, count: int) -> tuple[float, Gradient]:
        """Return these samples' share of loss and gradient of a mean over `count`."""
        first, kept = self._lift(weights, x)
        seen = self._activations(weights, first)
        log_p = log_softmax(seen[-1].astype(np.float64))
        rows, truth = np.arange(len(y)), y.astype(np.intp)
        loss = -float(log_p[rows, truth].sum()) / count
        residual = np.exp(log_p)
        residual[rows, truth] -= 1.0
        slope = cast("Floats", (residual / count).astype(first.dtype))
        slopes: Gradient = {}
        for index in range(self._depth, 0, -1):
            weight = weights[f"dense{index}.weight"]
            slopes[f"dense{index}.bias"] = slope.sum(axis=0)
            slopes[f"dense{index}.weight"] = slope.T @ seen[index - 1]
            if index > 1:
                slope = slope @ weight
                slope *= seen[index - 1] > 0
            elif self._lifts:
                slopes |= self._lower(weights, kept, slope @ weight)
        return loss, slopes

    @property
    def _depth(self) -> int:
        return 1 + len(self.spec.widths)

    def _penalty(self, weights: Weights) -> float:
        return penalty(self.spec.l2, [t for name, t in weights.items() if _is_weight(name)])


def _is_weight(name: str) -> bool:
    return name.endswith(".weight")
