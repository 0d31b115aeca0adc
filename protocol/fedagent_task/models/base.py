"""What every model offers, and samples with few non-zeros: compressed sparse rows.

Weights are stored as float32; with float64 weights and samples everything is
computed in float64. Losses and probabilities are float64 always.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedagent_protocol.tensors import Manifest, TensorSpec
from fedagent_task.recipe.spec import ModelSpec

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64] | npt.NDArray[np.float64]
Weights = Mapping[str, Floats]
Doubles = npt.NDArray[np.float64]


def batches(count: int, size: int) -> list[slice]:
    """Cut `count` samples into batches of `size`; a rest of one joins the batch before it.

    Statistics over a batch need two samples: batch norm, a variance or a contrast in a loss.
    """
    starts = list(range(0, count, size))
    if size > 1 < count and count % size == 1:
        starts.pop()
    return [slice(*ends) for ends in zip(starts, [*starts[1:], count], strict=False)]


Rows = npt.NDArray[np.intp] | npt.NDArray[np.int64] | slice


@dataclass(frozen=True, slots=True, eq=False)
class Csr:
    """Samples [n, width] as compressed sparse rows."""

    indptr: npt.NDArray[np.int64]  # row i is values[indptr[i]:indptr[i + 1]], [n + 1], from 0
    indices: npt.NDArray[np.int32]  # columns of the values, int32 [nnz], each at most once in a row
    values: npt.NDArray[np.float32]  # non-zero values, float32 [nnz]
    width: int  # number of columns

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @classmethod
    def empty(cls, width: int) -> "Csr":
        """Return no rows."""
        return cls(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32), width)

    @classmethod
    def from_dense(cls, x: npt.NDArray[np.generic]) -> "Csr":
        """Return the same samples without their zeros; x is [n, width]."""
        row, column = np.nonzero(x)
        values = x[row, column].astype(np.float32)
        return cls(
            _pointers(np.bincount(row, minlength=len(x))),
            column.astype(np.int32),
            values,
            x.shape[1],
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, as of an array."""
        return len(self), self.width

    @property
    def ndim(self) -> int:
        """Two, as of a matrix."""
        return 2

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """Type of the values."""
        return self.values.dtype

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Values in each row, int64 [n]."""
        return np.diff(self.indptr)

    @property
    def owners(self) -> npt.NDArray[np.int64]:
        """The row of each value, int64 [nnz]."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths)

    def __getitem__(self, index: Rows) -> "Csr":
        chosen = np.arange(len(self))[index]
        starts, lengths = self.indptr[chosen], self.lengths[chosen]
        indptr = _pointers(lengths)
        at = np.repeat(starts - indptr[:-1], lengths) + np.arange(indptr[-1])
        return Csr(indptr, self.indices[at], self.values[at], self.width)

    def dense(self) -> npt.NDArray[np.float32]:
        """Return the same samples as float32 [n, width]."""
        x = np.zeros(self.shape, np.float32)
        x[self.owners, self.indices] = self.values
        return x

    def times(self, factor: float | Doubles) -> "Csr":
        """Return the samples with every value multiplied; factor is [width], or [1] for all."""
        of = np.atleast_1d(np.asarray(factor, np.float32))
        each = of[self.indices] if len(of) > 1 else of
        return Csr(self.indptr, self.indices, self.values * each, self.width)

    def finite(self) -> npt.NDArray[np.bool_]:
        """Tell which rows have only finite values in columns that exist, bool [n]."""
        good = np.isfinite(self.values) & (self.indices >= 0) & (self.indices < self.width)
        return np.asarray(np.bincount(self.owners[~good], minlength=len(self)) == 0)

    def dot(self, weight: Floats) -> Doubles:
        """Return ``x · weightᵀ`` [n, outputs] in float64; weight is [outputs, width]."""
        owners, values = self.owners, self.values.astype(np.float64)
        out = np.empty((len(self), len(weight)))
        for k, row in enumerate(weight):
            out[:, k] = np.bincount(owners, values * row[self.indices], minlength=len(self))
        return out

    def spread(self, residual: Floats) -> Doubles:
        """Return ``residualᵀ · x`` [outputs, width] in float64; residual is [n, outputs]."""
        owners, values = self.owners, self.values.astype(np.float64)
        out = np.empty((residual.shape[1], self.width))
        for k in range(len(out)):
            weights = values * residual[owners, k]
            out[k] = np.bincount(self.indices, weights, minlength=self.width)
        return out


def joined(parts: list[Csr]) -> Csr:
    """Return all rows of the parts, at least one, which have the same width."""
    lengths = np.concatenate([part.lengths for part in parts])
    return Csr(
        _pointers(lengths),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.values for part in parts]),
        parts[0].width,
    )


def _pointers(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


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


@dataclass(frozen=True)
class Shaped:
    """A model whose tensors its recipe tells."""

    spec: ModelSpec

    def manifest(self) -> Manifest:
        """Return the exact tensors of this model."""
        return manifest_of(self.spec.shapes.items())


def manifest_of(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> Manifest:
    """Return the manifest of float32 tensors, by name."""
    return Manifest(tuple(TensorSpec(name, "float32", shape) for name, shape in sorted(shapes)))


def penalty(l2: float, tensors: Iterable[Floats]) -> float:
    """Return 0.5·l2·|tensors|²; biases are not held back."""
    if l2 == 0:
        return 0.0
    flat = [tensor.astype(np.float64).ravel() for tensor in tensors]
    return 0.5 * l2 * sum(float(tensor @ tensor) for tensor in flat)


def densed(x: Inputs) -> Floats:
    """Return the samples as one dense array."""
    return x.dense() if isinstance(x, Csr) else x
