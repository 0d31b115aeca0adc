"""A concept that changes moves features, and nothing else."""

import numpy as np
import pytest

from fedagent_task.models.base import Csr
from fedagent_testbed.learning.arrivals import Drift
from fedagent_testbed.learning.datasets import StudyData
from fedagent_testbed.recipe import Streaming

ROWS = np.arange(6)


def data(kind: str = "softmax", *, sparse: bool = False) -> StudyData:
    x = np.random.default_rng(0).random((6, 8)).astype(np.float32)
    model: dict[str, object] = {"kind": kind, "features": 8}
    if kind == "mf":
        x = np.stack([np.arange(6) % 3, np.arange(6)], axis=1).astype(np.float32)
        model = {"kind": kind, "features": 2, "users": 3, "items": 6}
    rows = Csr.from_dense(x) if sparse else x
    y = np.arange(6, dtype=np.float64)
    return StudyData(name="made", x=rows, y=y, test_x=rows, test_y=y, model=model)


def after(what: StudyData, *, share: float = 1.0, rounds: int = 30) -> Drift:
    drift = Drift(what, Streaming(drift=share, drift_every=10), rounds=rounds, seed=3)
    for t in range(1, rounds + 1):
        drift.begin(t)
    return drift


def test_nothing_moves_before_the_first_change_or_without_one() -> None:
    what = data()
    never = Drift(what, Streaming(), rounds=30, seed=3)
    later = Drift(what, Streaming(drift_every=10), rounds=30, seed=3)
    for t in range(1, 31):
        never.begin(t)
        if t <= 5:
            later.begin(t)
    for drift in (never, later):
        np.testing.assert_array_equal(drift.rows(ROWS)[0], what.x)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_columns_change_places_alike_in_training_and_tests(share: float) -> None:
    what = data()
    drift = after(what, share=share, rounds=15)
    x, y = drift.rows(ROWS)
    np.testing.assert_array_equal(y, what.y)
    np.testing.assert_array_equal(np.sort(x, axis=1), np.sort(what.dense_x, axis=1))
    moved = (x != what.dense_x).any(axis=0)
    assert moved.sum() == round(share * 8)
    np.testing.assert_array_equal(drift.tests(0)[0], x)


def test_films_change_places_and_users_do_not() -> None:
    what = data("mf")
    x, _ = after(what).rows(ROWS)
    np.testing.assert_array_equal(x[:, 0], what.dense_x[:, 0])
    assert sorted(x[:, 1].tolist()) == sorted(what.dense_x[:, 1].tolist())
    assert (x[:, 1] != what.dense_x[:, 1]).any()
