"""Perceptrons and convolutional networks in torch: the functions that numpy's models are.

Weights of the recipe's own kinds stay named and shaped as there: both give the same numbers, up
to rounding. Imported only where torch is wanted: it costs some 200 MB.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from fedagent_task.models import Doubles, Floats, Inputs, Weights
from fedagent_task.models.base import densed
from fedagent_task.shapes import POOL
from fedagent_task.spec import ModelSpec

Leaves = Mapping[str, "torch.Tensor"]


class TorchNetwork:
    """An mlp or a cnn as functions of its weights; nothing random happens in it."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return the probability of each class, float64 [n, classes]."""
        with torch.no_grad():
            leaves = {name: shared(tensor) for name, tensor in weights.items()}
            logits = self._logits(leaves, shared(densed(x)))
            return np.asarray(torch.softmax(logits.double(), dim=1).numpy(), np.float64)

    def loss(self, leaves: Leaves, x: "torch.Tensor", truth: "torch.Tensor") -> "torch.Tensor":
        """Return the mean cross-entropy in nats, with the L2 penalty."""
        loss = torch.nn.functional.cross_entropy(self._logits(leaves, x), truth)
        if self._spec.l2:
            squares = [t.square().sum() for name, t in leaves.items() if name.endswith(".weight")]
            loss = loss + 0.5 * self._spec.l2 * sum(squares)
        return loss

    def _logits(self, leaves: Leaves, x: "torch.Tensor") -> "torch.Tensor":
        seen = x.to(next(iter(leaves.values())).dtype)
        if self._spec.kind == "cnn":
            rows, columns, channels = self._spec.picture
            seen = seen.reshape(len(x), channels, rows, columns)
            for index in range(1, len(self._spec.plan.convolutions) + 1):
                weight, bias = leaves[f"conv{index}.weight"], leaves[f"conv{index}.bias"]
                seen = torch.nn.functional.conv2d(seen, weight, bias)
                seen = torch.relu(torch.nn.functional.max_pool2d(seen, POOL))
            seen = seen.flatten(1)
        depth = 1 + len(self._spec.widths)
        for index in range(1, depth + 1):
            weight, bias = leaves[f"dense{index}.weight"], leaves[f"dense{index}.bias"]
            seen = torch.nn.functional.linear(seen, weight, bias)
            if index < depth:
                seen = torch.relu(seen)
        return seen


def shared(array: Floats | npt.NDArray[np.int64]) -> "torch.Tensor":
    """Return the array as a tensor on the same memory; a copy of one that may not be written."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
