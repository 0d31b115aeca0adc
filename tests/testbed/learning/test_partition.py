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
    "three": lambda y, n, seed: few_labels(y, n, seed=seed, labels_per_client=3),
    "iid-for": lambda y, n, seed: iid_for(y, n, iid_clients=[0, 2], seed=seed),
    "skewed": lambda y, n, seed: dirichlet(y, n, gamma=0.1, seed=seed),
    "even": lambda y, n, seed: dirichlet(y, n, gamma=10.0, seed=seed),
    "inf": lambda y, n, seed: dirichlet(y, n, gamma=float("inf"), seed=seed),
}


def labels_of(seed: int, count: int, classes: int = 5) -> Rows:
    """Return labels in which every class is there, of uneven sizes."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(classes, 3.0))
    drawn = rng.choice(classes, size=count, p=weights)
    return rng.permutation(np.concatenate((np.repeat(np.arange(classes), 30), drawn)))


@pytest.mark.parametrize("name", list(SPLITS))
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 400), clients=st.integers(6, 25))
def test_disjoint_covering_repeatable(name: str, seed: int, count: int, clients: int) -> None:
    y = labels_of(seed, count)
    part = SPLITS[name](y, clients, seed)
    assert len(part) == clients
    assert np.array_equal(np.sort(np.concatenate(part)), np.arange(len(y)))
    again = SPLITS[name](y, clients, seed)
    assert [rows.tolist() for rows in part] == [rows.tolist() for rows in again]


@pytest.mark.parametrize("name", list(SPLITS))
def test_seeds_matter(name: str) -> None:
    y = labels_of(1, 300)
    one, two = (np.concatenate(SPLITS[name](y, 10, seed)) for seed in (1, 2))
    assert not np.array_equal(one, two)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), clients=st.integers(5, 40), each=st.integers(1, 4))
def test_few_labels_are_exactly_so_many(seed: int, clients: int, each: int) -> None:
    y = labels_of(seed, 600)
    part = few_labels(y, clients, seed=seed, labels_per_client=each)
    assert [len(np.unique(y[part[n]])) for n in range(clients)] == [each] * clients


def test_few_labels_of_equal_size() -> None:
    y = np.repeat(np.arange(10), 100)
    part = few_labels(y, 20, seed=3, samples_per_client=40)
    for n in range(20):
        _, counts = np.unique(y[part[n]], return_counts=True)
        assert counts.tolist() == [20, 20]
    assert len(np.unique(np.concatenate(part))) == 800


def test_few_labels_pair_many_ways() -> None:
    y = np.repeat(np.arange(10), 200)
    part = few_labels(y, 50, seed=3)
    pairs = {tuple(np.unique(y[part[n]])) for n in range(50)}
    assert len(pairs) > 20


def test_two_labels_for_all_ends_although_reshuffling_cannot() -> None:
    y = np.repeat([0, 1], 200)
    part = few_labels(y, 100, seed=1)
    assert all(len(np.unique(y[part[n]])) == 2 for n in range(100))


def test_named_clients_are_iid_and_the_others_are_not() -> None:
    y = np.repeat(np.arange(10), 600)
    part = iid_for(y, 20, iid_clients=range(5), seed=1, samples_per_client=200)
    assert [len(rows) for rows in part] == [200] * 20
    assert len(np.unique(np.concatenate(part))) == 4000
    kinds = [len(np.unique(y[part[n]])) for n in range(20)]
    assert kinds == [10] * 5 + [2] * 15


def test_every_client_may_be_named() -> None:
    y = np.repeat(np.arange(10), 60)
    part = iid_for(y, 4, iid_clients=range(4), seed=1)
    assert all(len(np.unique(y[part[n]])) == 10 for n in range(4))


def test_gamma_says_how_skewed() -> None:
    y = np.repeat(np.arange(10), 500)

    def mean_top_share(gamma: float) -> float:
        part = dirichlet(y, 25, gamma=gamma, seed=1, samples_per_client=100)
        tops = [np.bincount(y[part[n]]).max() / 100 for n in range(25)]
        return float(np.mean(tops))

    shares = [mean_top_share(gamma) for gamma in (0.05, 1.0, 100.0)]
    assert shares[0] > 0.75
    assert 0.2 < shares[1] < 0.5
    assert shares[2] < 0.2


@pytest.mark.parametrize(
    ("setting", "split"),
    [
        ("clients", lambda y: iid(y, 0, seed=1)),
        ("samples_per_client", lambda y: iid(y, 10, seed=1, samples_per_client=11)),
        ("samples_per_client", lambda y: few_labels(y, 10, seed=1, samples_per_client=1)),
        ("partition", lambda y: few_labels(y, 4, seed=1)),
        ("partition", lambda y: few_labels(y, 10, seed=1, labels_per_client=11)),
        ("partition", lambda y: few_labels(y, 10, seed=1, labels_per_client=0)),
        ("iid_clients", lambda y: iid_for(y, 10, iid_clients=[10], seed=1)),
        ("gamma", lambda y: dirichlet(y, 10, gamma=0.0, seed=1)),
        ("gamma", lambda y: dirichlet(y, 10, gamma=float("nan"), seed=1)),
    ],
)
def test_what_cannot_be_is_refused(setting: str, split: Callable[[Rows], Partition]) -> None:
    with pytest.raises(RecipeError) as caught:
        split(np.repeat(np.arange(10), 10))
    assert caught.value.key.removeprefix("training.") == setting
