"""Utilities: what they are worth, and that gains are the differences of values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.solvers import AssignmentProblem
from fedagent_coordinator.solvers.flgreedy import UTILITIES, named_utility
from fedagent_protocol.errors import UnknownNameError

from .instances import assignments


def test_the_three_by_hand() -> None:
    problem = AssignmentProblem(
        value=np.array([4.0, 5.0, 16.0]),
        cost=np.ones(3, dtype=np.int64),
        client=np.arange(3, dtype=np.int32),
        edge=np.array([0, 0, 1], dtype=np.int32),
        budget=np.array([9, 9, 9], dtype=np.int64),
    )
    pairs = np.arange(3)
    assert named_utility("linear").value(problem, pairs) == 25.0
    assert named_utility("sqrt-total").value(problem, pairs) == 5.0
    assert named_utility("sqrt-per-edge").value(problem, pairs) == 7.0


@pytest.mark.parametrize("name", sorted(UTILITIES))
@given(problem=assignments(), chosen=st.sets(st.integers(0, 11)))
def test_gains_are_differences_and_only_fall(
    name: str, problem: AssignmentProblem, chosen: set[int]
) -> None:
    utility = named_utility(name)
    count = len(problem.value)
    pairs = np.array(sorted(c for c in chosen if c < count), dtype=np.int64)
    rows = np.setdiff1d(np.arange(count), pairs)
    gains = utility.marginals(problem, pairs, rows)
    base = utility.value(problem, pairs)
    grown = [utility.value(problem, np.append(pairs, row)) for row in rows]
    assert gains == pytest.approx(np.array(grown) - base, abs=1e-12)
    fewer = utility.marginals(problem, pairs[:-1], rows)
    assert (gains >= 0).all()
    assert (gains <= fewer + 1e-12).all()


def test_an_unknown_utility_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="sqrt-total"):
        named_utility("log")
