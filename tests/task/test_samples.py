"""Compressed sparse rows: the same samples as the dense matrix."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedagent_task.models.base import Csr, joined


def _dense(seed: int, n: int, width: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, width)) * (rng.random((n, width)) < 0.3)).astype(np.float32)


SHAPES = {"seed": st.integers(0, 2**32), "n": st.integers(0, 9), "width": st.integers(1, 7)}


@given(**SHAPES)
def test_rows_are_those_of_the_matrix(seed: int, n: int, width: int) -> None:
    x = _dense(seed, n, width)
    sparse = Csr.from_dense(x)
    assert (len(sparse), sparse.shape) == (n, (n, width))
    np.testing.assert_array_equal(sparse.dense(), x)
    pick = np.random.default_rng(seed).integers(0, n, 12 if n else 0)
    np.testing.assert_array_equal(sparse[pick].dense(), x[pick])
    np.testing.assert_array_equal(sparse[1:5].dense(), x[1:5])
    np.testing.assert_array_equal(sparse[-2:].dense(), x[-2:])
    np.testing.assert_array_equal(joined([sparse, sparse[:2]]).dense(), np.vstack([x, x[:2]]))
    np.testing.assert_array_equal(joined([Csr.empty(width), sparse]).dense(), x)


@given(**SHAPES, outputs=st.integers(1, 3))
def test_products_are_those_of_the_matrix(seed: int, n: int, width: int, outputs: int) -> None:
    x, rng = _dense(seed, n, width), np.random.default_rng(seed)
    weight, residual = rng.normal(size=(outputs, width)), rng.normal(size=(n, outputs))
    sparse = Csr.from_dense(x)
    np.testing.assert_allclose(sparse.dot(weight), x @ weight.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(sparse.spread(residual), residual.T @ x, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(sparse.times(0.5).dense(), x * np.float32(0.5))
