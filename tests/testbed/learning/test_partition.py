"""Splits are disjoint, cover what they must, repeat, and have the labels they promise."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_task.errors import RecipeError
from fedagent_testbed.learning.partition import (
    Partition,
    Rows,
    dirichlet,
    few_labels,
    iid,
    iid_for,
)

Split = Callable[[Rows, int, int], Partition]

SPLITS: dict[str, Split] = {
    "iid": lambda y, n, seed: iid(y, n, seed=seed),
    "few": lambda y, n, seed: few_labels(y, n, seed=seed),
    "iid-for": lambda y, n, seed: iid_for(y, n, iid_clients=3, seed=seed),
    "iid-for-all": lambda y, n, seed: iid_for(y, n, iid_clients=25, seed=seed),
    "skewed": lambda y, n, seed: dirichlet(y, n, gamma=0.1, seed=seed),
    "even": lambda y, n, seed: dirichlet(y, n, gamma=10.0, seed=seed),
}


@pytest.mark.parametrize("name", list(SPLITS))
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 400), clients=st.integers(6, 25))
def test_disjoint_covering_repeatable(name: str, seed: int, count: int, clients: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = rng.choice(5, size=count, p=rng.dirichlet(np.full(5, 3.0)))
    y = rng.permutation(np.concatenate((np.repeat(np.arange(5), 30), drawn)))
    part = SPLITS[name](y, clients, seed)
    assert len(part) == clients
    assert np.array_equal(np.sort(np.concatenate(part)), np.arange(len(y)))
    again, other = SPLITS[name](y, clients, seed), SPLITS[name](y, clients, seed + 1)
    assert [rows.tolist() for rows in part] == [rows.tolist() for rows in again]
    assert [rows.tolist() for rows in part] != [rows.tolist() for rows in other]
    if name == "few":
        assert [len(np.unique(y[rows])) for rows in part] == [2] * clients


def test_the_first_clients_are_iid_and_the_others_are_not() -> None:
    y = np.repeat(np.arange(10), 600)
    part = iid_for(y, 20, iid_clients=5, seed=1, samples_per_client=200)
    assert [len(rows) for rows in part] == [200] * 20
    assert len(np.unique(np.concatenate(part))) == 4000
    assert [len(np.unique(y[rows])) for rows in part] == [10] * 5 + [2] * 15


def test_gamma_says_how_skewed() -> None:
    y = np.repeat(np.arange(10), 500)
    shares = []
    for gamma in (0.05, 1.0, 100.0):
        part = dirichlet(y, 25, gamma=gamma, seed=1, samples_per_client=100)
        shares.append(np.mean([np.bincount(y[rows]).max() / 100 for rows in part]))
    assert shares[0] > 0.75
    assert 0.2 < shares[1] < 0.5
    assert shares[2] < 0.2


@pytest.mark.parametrize(
    ("setting", "split"),
    [
        ("samples_per_client", lambda y: iid(y, 10, seed=1, samples_per_client=11)),
        ("samples_per_client", lambda y: few_labels(y, 10, seed=1, samples_per_client=1)),
        ("partition", lambda y: few_labels(y, 4, seed=1)),
        ("partition", lambda y: few_labels(np.zeros_like(y), 4, seed=1)),
    ],
)
def test_what_cannot_be_is_refused(setting: str, split: Callable[[Rows], Partition]) -> None:
    with pytest.raises(RecipeError) as caught:
        split(np.repeat(np.arange(10), 10))
    assert caught.value.key == f"world.training.{setting}"
