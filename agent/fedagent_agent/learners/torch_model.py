"""Gradients of neural networks by torch in the place of numpy's: the only user of torch.

Weights and samples stay in numpy arrays (torch sees the same memory), and the learners
shuffle, step and subtract as always: both back ends do the same, up to rounding. Only the
trainer process imports this module, where torch is wanted: it costs some 200 MB.
"""

import numpy as np
import numpy.typing as npt
import torch

from fedagent_protocol.tensors import Manifest
from fedagent_task.models import Doubles, Floats, Inputs, Labels, Mlp, Weights
from fedagent_task.models.base import densed
from fedagent_task.models.mlp import Gradient
from fedagent_task.shapes import POOL
from fedagent_task.spec import ModelSpec


class TorchModel:
    """A network whose gradient torch computes; see `Model` for shapes.

    One thread and deterministic kernels: the same samples give the same sums on any
    number of cores. Nothing random happens in torch, all draws are the learner's.
    """

    def __init__(self, model: Mlp) -> None:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(mode=True)
        self._model = model

    @property
    def spec(self) -> ModelSpec:
        """The recipe's section that this model was made from."""
        return self._model.spec

    def manifest(self) -> Manifest:
        """Return the exact tensors of this model."""
        return self._model.manifest()

    def init(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return starting weights, those of numpy's model."""
        return self._model.init(seed)

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return the probability of each class, float64 [n, classes]."""
        with torch.no_grad():
            logits = self._logits(_leaves(weights), _shared(densed(x)))
            return np.asarray(torch.softmax(logits.double(), dim=1).numpy(), np.float64)

    def loss(self, weights: Weights, x: Inputs, y: Labels) -> float:
        """Return the mean cross-entropy in nats, with the L2 penalty."""
        return self._model.loss(weights, x, y)

    def loss_and_gradient(self, weights: Weights, x: Inputs, y: Labels) -> tuple[float, Gradient]:
        """Return both from one forward pass."""
        if len(y) == 0:
            return self._model.loss_and_gradient(weights, x, y)
        leaves = _leaves(weights)
        for leaf in leaves.values():
            leaf.requires_grad_()
        truth = torch.from_numpy(y.astype(np.int64))
        loss = torch.nn.functional.cross_entropy(self._logits(leaves, _shared(densed(x))), truth)
        if self.spec.l2:
            squares = [t.square().sum() for name, t in leaves.items() if name.endswith(".weight")]
            loss = loss + 0.5 * self.spec.l2 * sum(squares)
        slopes = torch.autograd.grad(loss, list(leaves.values()))
        return float(loss.detach()), {
            name: slope.numpy() for name, slope in zip(leaves, slopes, strict=True)
        }

    def _logits(self, leaves: "dict[str, torch.Tensor]", x: "torch.Tensor") -> "torch.Tensor":
        seen = x.to(next(iter(leaves.values())).dtype)
        if self.spec.kind == "cnn":
            rows, columns, channels = self.spec.picture
            seen = seen.reshape(len(x), channels, rows, columns)
            for index in range(1, len(self.spec.plan.convolutions) + 1):
                weight, bias = leaves[f"conv{index}.weight"], leaves[f"conv{index}.bias"]
                seen = torch.nn.functional.conv2d(seen, weight, bias)
                seen = torch.relu(torch.nn.functional.max_pool2d(seen, POOL))
            seen = seen.flatten(1)
        depth = 1 + len(self.spec.widths)
        for index in range(1, depth + 1):
            weight, bias = leaves[f"dense{index}.weight"], leaves[f"dense{index}.bias"]
            seen = torch.nn.functional.linear(seen, weight, bias)
            if index < depth:
                seen = torch.relu(seen)
        return seen


def _leaves(weights: Weights) -> "dict[str, torch.Tensor]":
    return {name: _shared(tensor) for name, tensor in weights.items()}


def _shared(array: Floats) -> "torch.Tensor":
    """Return the array as a tensor on the same memory; a copy of one that may not be written."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
