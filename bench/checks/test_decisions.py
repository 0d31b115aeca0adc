"""Every policy and placement can be measured: none is refused by the bench's own towns."""

import pytest

from bench.decisions import TOWNS, decision
from fedagent_coordinator import policies


@pytest.mark.parametrize("name", policies.registry.builtin)
def test_every_policy_decides_in_the_small_town(name: str) -> None:
    row = decision(name, "small", rounds=2)
    assert row["size"] == TOWNS["small"][0]
