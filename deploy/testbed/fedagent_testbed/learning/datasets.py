"""Datasets by name, scaled to [0, 1] and split as their publishers split them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_task.errors import DatasetError
from fedagent_task.readers import DATA_VARIABLE, Dataset
from fedagent_task.readers import load as read

Samples = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the two parts of a dataset are, and the largest value of a feature."""

    train: str
    test: str
    largest: float


def _idx(folder: str) -> _Source:
    name = "images-idx3-ubyte.gz"
    return _Source(f"{folder}/train-{name}", f"{folder}/t10k-{name}", 255.0)


_SOURCES = {
    "digits": _Source("digits-train", "digits-test", 16.0),
    "mnist": _idx("mnist"),
    "fashion-mnist": _idx("fashion-mnist"),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearningData:
    """A classification dataset.

    Attributes:
        name: What it was loaded by.
        x: float32[n, features], training samples in [0, 1].
        y: int64[n], their classes from 0.
        test_x: float32[m, features], samples that no client ever trains on.
        test_y: int64[m].
        classes: How many classes there are.
    """

    name: str
    x: Samples
    y: Classes
    test_x: Samples
    test_y: Classes
    classes: int

    @property
    def features(self) -> int:
        """Numbers per sample."""
        return int(self.x.shape[1])


def dataset_names() -> tuple[str, ...]:
    """Return the names that `load` takes."""
    return tuple(_SOURCES)


def load(name: str) -> LearningData:
    """Read a dataset; all but ``digits`` lie in the folder that FEDAGENT_DATA names.

    Raises:
        DatasetError: There is none of that name, its files are missing or damaged.
    """
    source = _SOURCES.get(name)
    if source is None:
        known = ", ".join(_SOURCES)
        raise DatasetError(name[:64], "no such dataset", f"take one of {known}")
    train, test = (_part(name, file) for file in (source.train, source.test))
    return LearningData(
        name=name,
        x=_scaled(train, source.largest),
        y=train.y.astype(np.int64),
        test_x=_scaled(test, source.largest),
        test_y=test.y.astype(np.int64),
        classes=int(max(train.y.max(), test.y.max())) + 1,
    )


def _part(name: str, file: str) -> Dataset:
    """Read one file; a missing one is reported with what to set."""
    try:
        return read(file)
    except DatasetError as error:
        if error.reason != "no such file":
            raise
        hint = f"set {DATA_VARIABLE} to the folder that holds {file}"
        raise DatasetError(name, f"{file} is not here", hint) from error


def _scaled(part: Dataset, largest: float) -> Samples:
    """Return the samples as float32 in [0, 1]."""
    values = part.x.astype(np.float32)
    values *= np.float32(1.0 / largest)
    return values
