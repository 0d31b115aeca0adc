"""What the policies that know the truth go by."""

from dataclasses import replace

import numpy as np
import pytest

from fedagent_coordinator.errors import InvalidViewError
from fedagent_coordinator.policies import Truth
from fedagent_coordinator.policies.base import TRUTH
from fedagent_protocol.errors import ParameterError
from fedagent_testbed.oracles import FedCsPolicy, create, names
from tests.fakes.rounds import choice, column_view


def test_the_coordinators_policies_and_the_oracles_are_one_list() -> None:
    assert {"adaptive", "fedcs", "oracle", "oracle-p"} <= set(names())
    with pytest.raises(ParameterError, match="> 0"):
        create("fedcs", {"deadline_s": 0})


@pytest.mark.parametrize(("name", "chosen"), [("oracle", [2]), ("oracle-p", [0])])
def test_what_each_oracle_goes_by(name: str, chosen: list[int]) -> None:
    truth = Truth(
        arrives=np.array([False, False, True]),
        chance=np.array([0.9, 0.5, 0.1]),
        tau_s=np.ones(3),
    )
    view = replace(column_view(clients=3, budget=1), truth=truth)
    selection = create(name, {}).select(view, np.random.default_rng(0))
    assert selection.pairs.tolist() == chosen
    expected = truth.chance if name == "oracle-p" else truth.arrives
    assert selection.scores.tolist() == expected.tolist()


def test_fedcs_takes_all_that_are_expected_in_time() -> None:
    view = column_view(clients=4, tau_s=[2.9, 3.0, 0.5, 1.0], available=[True, True, True, False])
    assert choice(FedCsPolicy(deadline_s=3.0), view) == [0, 2]
    tight = column_view(clients=4, tau_s=[2.9, 3.0, 0.5, 1.0], budget=1)
    assert choice(FedCsPolicy(deadline_s=3.0), tight) == [2]
    with pytest.raises(InvalidViewError) as caught:
        choice(FedCsPolicy(), column_view(clients=4))
    assert caught.value.column == TRUTH
