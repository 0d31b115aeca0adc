"""Readers for standard dataset files, and shards of what they return."""

import os
from pathlib import Path

from fedagent_task.errors import DatasetError
from fedagent_task.models.base import Csr

from .base import MAX_BYTES, Dataset, Labels
from .binary import read_digits, read_idx, read_npz
from .text import read_csv, read_libsvm, read_libsvm_sparse, read_ratings

__all__ = [
    "BUNDLED",
    "DATA_VARIABLE",
    "MAX_BYTES",
    "Dataset",
    "load",
    "load_sparse",
]

BUNDLED = ("digits-train", "digits-test")
DATA_VARIABLE = "FEDAGENT_DATA"
"""Environment variable: the folder that relative dataset paths are also sought in."""


def load(name: str, *, features: int | None = None, limit: int = MAX_BYTES) -> Dataset:
    """Read a bundled dataset, or a file by what its name says it is; else raise `DatasetError`.

    ``*.npz``, ``*.csv``, ``*images-idx3*`` or ``u.data``, else LIBSVM text; all but npz may be
    gzip. A relative path that is not here is sought in `FEDAGENT_DATA`. The limit is in bytes.
    """
    if name in BUNDLED:
        return read_digits(name.removeprefix("digits-"))
    path = _found(name)
    file = path.name.removesuffix(".gz")
    if file.endswith(".npz"):
        return read_npz(path, limit)
    if file.endswith(".csv"):
        return read_csv(path, limit)
    if "images-idx3" in file:
        return read_idx(path, limit)
    if file == "u.data":
        return read_ratings(path, limit)
    return read_libsvm(path, features, limit)


def load_sparse(
    name: str, *, features: int | None = None, limit: int = MAX_BYTES
) -> tuple[Csr, Labels]:
    """Read a LIBSVM file as sparse rows, and labels; it is sought as by `load`."""
    return read_libsvm_sparse(_found(name), features, limit)


def _found(name: str) -> Path:
    # Path's own ways raise for an unknown user, and in a folder of somebody else.
    path, folder = os.path.expanduser(name), os.environ.get(DATA_VARIABLE, "")  # noqa: PTH111
    for place in (path, os.path.join(folder, path)):  # noqa: PTH118
        if os.path.isfile(place):  # noqa: PTH113
            return Path(place)
    known = ", ".join(BUNDLED)
    raise DatasetError(name, "no such file", f"give a path, or one of {known}")
