"""Declared arrays are kept, grown, checked and restored as they were declared."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedagent_coordinator.errors import PolicyError
from fedagent_coordinator.policies.state import (
    ArrayState,
    StatelessPolicy,
    bools,
    flag,
    floats,
    indices,
    ints,
    number,
)


class Part(ArrayState):
    rows = floats("clients", 2, start=lambda part: part.prior, least=-1)
    order = ints("order", ascending=True)

    def __init__(self, prior: float) -> None:
        self.prior = prior


class Toy(ArrayState):
    name = "toy"
    parts = ("_part", "_none")
    prefixed = (("first.", "_first"), ("other.", "_other"))
    _count = ints("clients")
    _mean = floats("clients", start=np.nan, nan=True)
    _edge = floats(2, start=np.array([np.inf, -np.inf]), infinite=True)
    _arm = indices("arms", "size")
    _seen = bools("clients")
    best = number(start=3.0, least=0)
    warm = flag()

    def __init__(self, size: int = 3) -> None:
        self.fix(size=size)
        self._part, self._none = Part(0.5), None
        self._first, self._other = Part(1.0), Part(9.0)
        self.restores = 0

    def problems(self) -> Iterator[str]:
        if self.best > 100:
            yield "has a best that is none"

    def restored(self) -> None:
        self.restores += 1


def lived() -> Toy:
    toy = Toy()
    toy.grow(clients=2)
    toy._part.grow(clients=2)
    toy._count += 4
    toy.best, toy.warm = 7.5, True
    toy._part.order = np.array([1, 5])
    toy._arm = np.array([[1, 2, 3]], dtype=np.int32)
    toy._other.order = np.array([2])
    return toy


def test_first_values_and_new_rows_are_as_declared() -> None:
    toy = lived()
    assert toy._mean.dtype == np.float64
    assert np.isnan(toy._mean).all()
    assert toy._count.tolist() == [4, 4]
    assert toy._edge.tolist() == [np.inf, -np.inf]
    assert toy._part.rows.tolist() == [[0.5, 0.5]] * 2
    assert (Toy().best, Toy().warm, Toy(5)._arm.shape) == (3.0, False, (0, 5))
    before = toy._count
    toy.grow(clients=1)
    assert toy._count is before
    other = Toy()
    other._edge[0] = 1
    assert Toy()._edge[0] == np.inf


def test_a_state_is_a_copy_of_every_array_and_comes_back() -> None:
    toy, again = lived(), Toy()
    state = toy.state()
    assert sorted(state) == [
        *("arm", "best", "count", "edge", "first.order", "first.rows", "mean", "order"),
        *("other.order", "other.rows", "rows", "seen", "warm"),
    ]
    assert (state["best"].tolist(), state["warm"].tolist()) == ([7.5], [True])
    again.restore(state)
    assert again.restores == 1
    assert (again.best, again.warm) == (7.5, True)
    for key, array in again.state().items():
        assert array.dtype == state[key].dtype
        assert array.tobytes() == state[key].tobytes()
        array.fill(0)
    state["count"][:] = 0
    assert again._count.tolist() == [4, 4]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("count", None, "holds ['arm', 'best', 'edge'"),
        ("news", np.zeros(1), "expected ['arm', 'best', 'count'"),
        ("count", np.zeros(2), "count is float64, not int64"),
        ("count", np.zeros(3, dtype=np.int64), "mean has shape (2,), not (3 clients)"),
        ("rows", np.zeros((3, 2)), "rows has shape (3, 2), not (2 clients, 2)"),
        ("arm", np.zeros((1, 4), dtype=np.int32), "not (1 arms, 3 size)"),
        ("best", np.zeros(2), "best has shape (2,), not (1)"),
        ("mean", np.full(2, np.inf), "mean holds a number that is not finite"),
        ("rows", np.full((2, 2), -1.5), "rows holds a number below -1"),
        ("arm", np.full((1, 3), -1, dtype=np.int32), "arm holds a number below 0"),
        ("best", np.array([-0.5]), "best holds a number below 0"),
        ("order", np.array([1, 1]), "order does not ascend"),
        ("best", np.array([101.0]), "has a best that is none"),
        ("other.order", np.array([3, 2]), "order does not ascend"),
    ],
)
def test_what_was_not_declared_is_refused_and_changes_nothing(
    key: str, value: Any, words: str
) -> None:
    state, toy = dict(lived().state()), lived()
    toy.best, toy._first.order = 8.0, np.array([9])
    if value is None:
        del state[key]
    else:
        state[key] = value
    with pytest.raises(PolicyError) as caught:
        toy.restore(state)
    assert words in str(caught.value)
    assert (toy.best, toy.restores, toy._part.order.tolist()) == (8.0, 0, [1, 5])
    assert toy._first.order.tolist() == [9], "restored before another part was refused"
    toy.restore(lived().state())


def test_the_error_names_the_policy_and_who_has_nothing_to_keep() -> None:
    with pytest.raises(PolicyError, match=r"state of toy: holds \[\]"):
        Toy().restore({})
    policy = StatelessPolicy()
    policy.restore(policy.state())
    with pytest.raises(PolicyError, match="StatelessPolicy: has nothing to keep, got"):
        policy.restore({"x": np.zeros(1)})
