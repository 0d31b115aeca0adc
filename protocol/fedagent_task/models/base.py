"""What every model offers.

Weights are stored as float32; with float64 weights and samples everything is
computed in float64. Losses and probabilities are float64 always.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedagent_protocol.tensors import Manifest
from fedagent_task.models.samples import Csr
from fedagent_task.recipe.spec import ModelSpec

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64] | npt.NDArray[np.float64]
Weights = Mapping[str, Floats]
Doubles = npt.NDArray[np.float64]
Inputs = Floats | Csr
"""Samples [n, features]; sparse ones for linear, logistic, softmax and svm."""


class Model(Protocol):
    """A model as functions of its weights; it has no state of its own.

    ``x`` is float [n, features] or sparse, already scaled; of an mf it holds user and
    item. ``y`` is [n]: class indices for classifiers, numbers for regressions.
    """

    @property
    def spec(self) -> ModelSpec:
        """The recipe's section that this model was made from."""

    def manifest(self) -> Manifest:
        """Return the exact tensors of this model."""

    def init(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return starting weights, the same for the same seed."""

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return probabilities [n, classes], scores of an svm, or values [n, 1]."""

    def loss(self, weights: Weights, x: Inputs, y: Labels) -> float:
        """Return the mean loss over the samples, with the L2 penalty."""

    def loss_and_gradient(
        self, weights: Weights, x: Inputs, y: Labels
    ) -> tuple[float, dict[str, Floats]]:
        """Return both from one forward pass."""


def densed(x: Inputs) -> Floats:
    """Return the samples as one dense array."""
    return x.dense() if isinstance(x, Csr) else x
