"""`cocs` and COCS to the letter: constants, two phases, and the failure they lead to."""

import math
from typing import Any

import numpy as np
import pytest

from fedagent_coordinator.policies.cocs import CocsPolicy
from fedagent_testbed.study import load_recipe, play
from tests.fakes.rounds import column_view, ended


def literal(**params: Any) -> CocsPolicy:
    """COCS as the recipes' `cocs-paper`."""
    paper: dict[str, Any] = load_recipe("cocs-decisions").policies["cocs-paper"]
    given = {key: value for key, value in paper.items() if key not in {"base", "h"}}
    return CocsPolicy(**{**given, **params})


WIDE: dict[str, Any] = {"download_bps": [1e6, 1e3, 1e9, 1e5], "compute": [3.0, 9.0, 0.5, 1.0]}


def test_the_papers_constants_never_let_it_leave_exploration() -> None:
    """ALGORITHMS section 3 (b): it explores in every round and is `cheapest`."""
    recipe = load_recipe("cocs-decisions", ["rounds.count=150"])
    cocs, cheapest, random = (
        play(recipe, name, 1) for name in ("cocs-paper", "cheapest", "random")
    )
    assert cocs["explored"].all()
    assert cocs["wins"].sum() == pytest.approx(cheapest["wins"].sum(), rel=0.1)
    assert cheapest["wins"].sum() > 1.1 * random["wins"].sum()


def test_h_follows_the_formula() -> None:
    cells = {(1000, 2): 4, (1, 2): 1, (32, 2): 2, (33, 2): 3, (1000, 4): 3}
    for (horizon, dimensions), h in cells.items():
        policy = literal(horizon=horizon, features=[f"f{i}" for i in range(dimensions)])
        assert policy._h == h == math.ceil(round(horizon ** (1 / (3 + dimensions)), 9))


@pytest.mark.parametrize("policy", [CocsPolicy(logs=False), literal()])
def test_a_feature_beyond_every_bound_is_in_the_last_cell(policy: CocsPolicy) -> None:
    """Its place is no integer: cast before it is clipped, it would be in the first cell."""
    policy.learn(ended(column_view(download_bps=[0.0, 1.0], compute=[0.0, 1.0]), []))
    for huge in (1.0, 1e30):
        policy.learn(ended(column_view(download_bps=[huge], compute=[0.0]), [0], x=[True]))
        if huge == 1.0:
            last = policy.state()["keys"].tolist()
            policy.restore({**policy.state(), "high": np.ones(2)})
    assert policy.state()["keys"].tolist() == last
    assert policy.state()["counts"].tolist() == [2]
