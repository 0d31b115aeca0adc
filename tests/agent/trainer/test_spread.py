"""Features that a model cannot learn as they come are named, once."""

import numpy as np
import pytest

from fedagent_agent.trainer.samples import ENOUGH, Proportions
from fedagent_task.models import Floats
from fedagent_task.readers import load
from fedagent_task.samples import Csr


def looked(x: Floats) -> Proportions:
    spread = Proportions()
    spread.names = [f"f{i}" for i in range(x.shape[1])]
    size = len(x) // 7 + 1
    told = [spread.look(x[i : i + size]) for i in range(0, len(x), size)]
    assert told.count(True) == bool(spread.note), "once"
    return spread


def test_large_and_tiny_features_are_named_with_their_size() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal((0, 101_325, 1, 0), (1, 500, 1, 1e-7), (200, 4))
    spread = looked(x)
    assert spread.note == "out of proportion: f1, f3"
    assert spread.warning.startswith(
        "features out of proportion after scaling: f1 (size 1e+05, deviation "
    )
    assert "set data.standardize = true" in spread.warning


def test_of_many_only_a_few_are_named() -> None:
    spread = looked(np.random.default_rng(0).normal(0, 1000, (50, 300)))
    assert spread.note == "out of proportion: f0, f1, f2, f3 and 296 more"
    assert len(spread.note) < 500 > len(spread.warning) - 200


def test_what_is_about_1_is_not_mentioned() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0, rng.uniform(0.1, 3, 20), (400, 20))
    x[:, 3] = 5.0  # constant
    assert not looked(x).note
    digits = load("digits-train").x.astype(np.float32) / 16
    assert not looked(digits).note


@pytest.mark.parametrize("rows", [0, ENOUGH - 1])
def test_few_samples_tell_nothing_yet(rows: int) -> None:
    assert not looked(np.full((rows, 2), 1e6)).note


def test_sparse_samples_and_tasks_without_sizes_are_left_alone() -> None:
    x = np.full((50, 2), 1e6, np.float32)
    assert not Proportions().look(Csr.from_dense(x))
    assert not Proportions(over=True).look(x)
