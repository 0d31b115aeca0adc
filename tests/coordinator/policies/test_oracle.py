"""`oracle` has hindsight, `oracle-p` the chances only."""

from dataclasses import replace

import numpy as np
import pytest

from fedagent_coordinator.policies import Truth, create
from tests.fakes.rounds import column_view


@pytest.mark.parametrize(("name", "chosen"), [("oracle", [2]), ("oracle-p", [0])])
def test_what_each_oracle_goes_by(name: str, chosen: list[int]) -> None:
    truth = Truth(
        arrives=np.array([False, False, True]),
        chance=np.array([0.9, 0.5, 0.1]),
        tau_s=np.ones(3),
    )
    view = replace(column_view(clients=3, budget=1), truth=truth)
    selection = create(name).select(view, np.random.default_rng(0))
    assert selection.pairs.tolist() == chosen
    expected = truth.chance if name == "oracle-p" else truth.arrives
    assert selection.scores.tolist() == expected.tolist()
