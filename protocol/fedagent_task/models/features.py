"""From raw samples to what a model takes: scaling and labels that fit.

The one place that scales: agents, the coordinator's evaluation, `fedagent predict` and
the graph of an exported model all go by `scaled` or by `scaling_of`.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import overload

import numpy as np
import numpy.typing as npt

from fedagent_task.errors import DatasetError, TaskFormatError
from fedagent_task.models import Inputs, Labels
from fedagent_task.models.base import Csr, densed
from fedagent_task.recipe.spec import DataSpec, FeatureSpec, ModelSpec

AS_THEY_ARE = DataSpec()
"""Samples that are not scaled."""
Raw = npt.NDArray[np.generic]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """``(x - center) * factor + shift``, each float64 [features], or [1] for all alike."""

    center: Doubles
    factor: Doubles
    shift: Doubles

    @property
    def linear(self) -> bool:
        """Whether 0 stays 0, as sparse samples need it."""
        return not (self.center.any() or self.shift.any())


@lru_cache(maxsize=4)
def scaling_of(data: DataSpec) -> Scaling:
    """Return how features are scaled; not at all while their statistics are to come."""
    if data.standardize:
        return Scaling(np.zeros(1), np.ones(1), np.zeros(1))
    if not data.features:
        return Scaling(np.zeros(1), np.array([data.scale]), np.array([data.offset]))
    rows = [_parts(one) for one in data.features]
    return Scaling(*np.array(rows, np.float64).T)


def _parts(one: FeatureSpec) -> tuple[float, float, float]:
    if one.mean is not None and one.deviation is not None:
        return one.mean, 1.0 / one.deviation, 0.0
    scale = 1.0 if one.scale is None else one.scale
    return 0.0, scale, 0.0 if one.offset is None else one.offset


def names_of(data: DataSpec, width: int) -> tuple[str, ...]:
    """Return what the features are called; numbered from 1 where nobody has named them."""
    return tuple(one.name for one in data.features) or tuple(f"x{i}" for i in range(1, width + 1))


@overload
def scaled(x: Raw, data: DataSpec) -> npt.NDArray[np.float32]: ...
@overload
def scaled(x: Csr, data: DataSpec) -> Csr: ...
def scaled(x: Raw | Csr, data: DataSpec) -> npt.NDArray[np.float32] | Csr:
    """Return the samples as the model takes them, float32, same shape.

    Raises:
        TaskFormatError: Their number of features is another, or sparse ones would be so no more.
    """
    how = scaling_of(data)
    width = len(data.features)
    if width and x.shape[1] != width:
        raise TaskFormatError("data.features", f"names {width} features, there are {x.shape[1]}")
    if isinstance(x, Csr):
        if not how.linear:
            raise TaskFormatError(offset_key(data), "must be 0 for sparse samples")
        return x.times(how.factor)
    if data.features and not data.standardize:
        # In float64: a pressure's mean is two hundred of its deviations.
        return ((x.astype(np.float64) - how.center) * how.factor + how.shift).astype(np.float32)
    values = x.astype(np.float32)
    values *= how.factor.astype(np.float32)
    values += how.shift.astype(np.float32)
    return values


def offset_key(data: DataSpec) -> str:
    """Return the recipe's key that says what is added to a feature."""
    return "data.features" if data.features else "data.offset"


def fitting(x: Inputs, y: Labels, model: ModelSpec) -> npt.NDArray[np.bool_]:
    """Tell which samples the model can learn from, bool [n].

    A sample fits if all its numbers are finite and its label is one of the
    model's classes, 0 and 1 where there are two; of an mf, if it has that user and item.
    """
    finite = x.finite() if isinstance(x, Csr) else np.isfinite(x).all(axis=1)
    good = np.asarray(finite & np.isfinite(y))
    if model.kind == "mf":
        pairs = densed(x)
        with np.errstate(invalid="ignore"):
            there = (pairs == np.floor(pairs)) & (pairs >= 0) & (pairs < (model.users, model.items))
        return np.asarray(good & there.all(axis=1))
    if model.regression:
        return good
    with np.errstate(invalid="ignore"):
        return np.asarray(good & (y == np.floor(y)) & (y >= 0) & (y < model.num_classes))


def expect_fit(
    name: str, x: Raw, y: Labels, model: ModelSpec, data: DataSpec = AS_THEY_ARE
) -> npt.NDArray[np.float32]:
    """Return a dataset's samples [n, features] as the model takes them.

    Raises:
        DatasetError: It has none, or of another width, or one that does not fit: the first is
            named, counted from 0, with what is wrong with it.
    """
    width = x.shape[1] if x.ndim == 2 else 0
    if width != model.features:
        why = f"has {width} features, but the model needs {model.features}"
        raise DatasetError(name, why, "fix model.features")
    if not len(y):
        raise DatasetError(name, "has no samples", "put samples into it, or name another")
    ready = scaled(x, data)
    good = fitting(ready, y, model)
    if not good.all():
        at = int(good.argmin())
        why, hint = _misfit(ready[at], float(y[at]), model)
        raise DatasetError(name, f"sample {at} has {why}", hint)
    return ready


def _misfit(row: Raw, label: float, model: ModelSpec) -> tuple[str, str]:
    """Return what keeps this one sample from fitting, and the hint."""
    if not np.isfinite(row).all():
        return "a feature that is not finite", "leave it out"
    if not math.isfinite(label):
        return "a label that is not finite", "leave it out"
    if model.kind == "mf":
        why = f"user {row[0]:g} and item {row[1]:g}, but there are {model.users} and {model.items}"
        return why, "count both from 0, or fix model.users and model.items"
    if label != math.floor(label):
        return f"the label {label:g}, which is no whole number", "write classes as whole numbers"
    if label < 0:
        return f"the label {label:g}, which is below 0", "count the classes from 0"
    why = f"the label {label:g}, but the model's classes are 0 to {model.num_classes - 1}"
    return why, "count the classes from 0, or fix model.classes"
