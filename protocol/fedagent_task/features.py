"""From raw samples to what a model takes: scaling and labels that fit."""

from typing import overload

import numpy as np
import numpy.typing as npt

from .errors import DatasetError, TaskFormatError
from .models import Inputs, Labels
from .samples import Csr
from .spec import DataSpec, ModelSpec

Raw = npt.NDArray[np.generic]


@overload
def scaled(x: Raw, data: DataSpec) -> npt.NDArray[np.float32]: ...
@overload
def scaled(x: Csr, data: DataSpec) -> Csr: ...
def scaled(x: Raw | Csr, data: DataSpec) -> npt.NDArray[np.float32] | Csr:
    """Return ``x * scale + offset`` as float32, same shape.

    Raises:
        TaskFormatError: Sparse samples with an offset would be sparse no more.
    """
    if isinstance(x, Csr):
        if data.offset:
            raise TaskFormatError("data.offset", "must be 0 for sparse samples")
        return x.times(data.scale)
    values = x.astype(np.float32)
    values *= np.float32(data.scale)
    values += np.float32(data.offset)
    return values


def fitting(x: Inputs, y: Labels, model: ModelSpec) -> npt.NDArray[np.bool_]:
    """Tell which samples the model can learn from, bool [n].

    A sample fits if all its numbers are finite and its label is one of the
    model's classes, 0 and 1 where there are two; of an mf, if it has that user and item.
    """
    finite = x.finite() if isinstance(x, Csr) else np.isfinite(x).all(axis=1)
    good = np.asarray(finite & np.isfinite(y))
    if model.kind == "mf":
        return good & _rateable(x, model)
    if model.regression:
        return good
    classes = model.num_classes
    with np.errstate(invalid="ignore"):
        return np.asarray(good & (y == np.floor(y)) & (y >= 0) & (y < classes))


def _rateable(x: Inputs, model: ModelSpec) -> npt.NDArray[np.bool_]:
    pairs = x.dense() if isinstance(x, Csr) else x
    with np.errstate(invalid="ignore"):
        there = (pairs == np.floor(pairs)) & (pairs >= 0) & (pairs < (model.users, model.items))
    return np.asarray(there.all(axis=1))


def expect_fit(name: str, x: Raw | Csr, y: Labels, model: ModelSpec) -> None:
    """Raise `DatasetError` unless the whole dataset, already scaled, fits the model."""
    if x.ndim != 2 or x.shape[1] != model.features:
        width = x.shape[1] if x.ndim == 2 else 0
        raise DatasetError(
            name, f"has {width} features, the model wants {model.features}", "mend model.features"
        )
    numbers = x if isinstance(x, Csr) else x.astype(np.float32)
    if not fitting(numbers, y, model).all():
        raise DatasetError(
            name, "has labels or numbers that the model cannot take", "mend model.classes"
        )
