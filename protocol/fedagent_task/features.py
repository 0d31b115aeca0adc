"""From raw samples to what a model takes: scaling and labels that fit."""

import numpy as np
import numpy.typing as npt

from .errors import DatasetError
from .models import Floats, Labels
from .spec import DataSpec, ModelSpec

Raw = npt.NDArray[np.generic]


def scaled(x: Raw, data: DataSpec) -> npt.NDArray[np.float32]:
    """Return ``x * scale + offset`` as float32, same shape."""
    values = x.astype(np.float32)
    values *= np.float32(data.scale)
    values += np.float32(data.offset)
    return values


def fitting(x: Floats, y: Labels, model: ModelSpec) -> npt.NDArray[np.bool_]:
    """Tell which samples the model can learn from, bool [n].

    A sample fits if all its numbers are finite and its label is one of the
    model's classes; a logistic model takes 0 and 1.
    """
    good = np.asarray(np.isfinite(x).all(axis=1) & np.isfinite(y))
    if model.kind == "linear":
        return good
    classes = 2 if model.kind == "logistic" else model.classes
    with np.errstate(invalid="ignore"):
        return np.asarray(good & (y == np.floor(y)) & (y >= 0) & (y < classes))


def expect_fit(name: str, x: Raw, y: Labels, model: ModelSpec) -> None:
    """Raise `DatasetError` unless the whole dataset fits the model."""
    if x.ndim != 2 or x.shape[1] != model.features:
        width = x.shape[1] if x.ndim == 2 else 0
        raise DatasetError(
            name, f"has {width} features, the model wants {model.features}", "mend model.features"
        )
    if not fitting(x.astype(np.float32), y, model).all():
        raise DatasetError(
            name, "has labels or numbers that the model cannot take", "mend model.classes"
        )
