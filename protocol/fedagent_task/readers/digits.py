"""The bundled digits and their fixed split (see ``data/README.md``)."""

from pathlib import Path

import numpy as np

from .base import Dataset
from .npz import read_npz

PATH = Path(__file__).parent.parent / "data" / "digits.npz"
_SPLIT_SEED = 1998
_TEST_SHARE = 0.2


def read_digits(part: str) -> Dataset:
    """Return the ``train`` (1438) or ``test`` (359) digits: x uint8 [n, 64] of 0 to 16.

    The split is stratified by digit and never changes.
    """
    digits = read_npz(PATH)
    rng = np.random.default_rng(_SPLIT_SEED)
    held_out = np.zeros(len(digits), np.bool_)
    for label in range(10):
        members = rng.permutation(np.flatnonzero(digits.y == label))
        held_out[members[: round(_TEST_SHARE * len(members))]] = True
    return digits.rows(np.flatnonzero(held_out if part == "test" else ~held_out))
