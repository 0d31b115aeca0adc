"""`cocs`: how much it explores by default, and the bounds that cells are cut from."""

import math
from typing import Any

import numpy as np
import pytest

from fedagent_coordinator.policies import parameters
from fedagent_coordinator.policies.cocs import CocsPolicy
from tests.fakes.rounds import column_view, ended

WIDE: dict[str, Any] = {"download_bps": [1e6, 1e3, 1e9, 1e5], "compute": [3.0, 9.0, 0.5, 1.0]}


def test_bounds_follow_all_pairs_that_were_seen_not_only_the_played() -> None:
    policy = CocsPolicy()
    policy.learn(ended(column_view(**WIDE), [0]))
    state = policy.state()
    assert state["low"] == pytest.approx([3.0, 0.5], rel=1e-6)
    assert state["high"] == pytest.approx([9.0, 9.0], rel=1e-6)
    policy.learn(ended(column_view(download_bps=[1e2, 1e12], compute=[2.0, 2.0]), []))
    assert policy.state()["low"][0] == pytest.approx(2.0)
    assert policy.state()["high"][0] == pytest.approx(12.0)


def test_the_default_explores_until_cells_have_0_005_t_to_the_z_ln_t() -> None:
    assert parameters("cocs")["k_scale"] == 0.005
    notes = CocsPolicy().select(column_view(900, **WIDE), np.random.default_rng(0)).notes
    assert notes["k"] == pytest.approx(0.005 * 900 ** (2 / 5) * math.log(900))
    assert notes["k"] < 1


def test_a_cell_that_was_played_once_is_explored_no_more_by_default() -> None:
    policy = CocsPolicy()
    first = column_view(**WIDE)
    policy.learn(ended(first, []))
    policy.learn(ended(first, [0, 1, 2, 3]))
    selection = policy.select(column_view(900, **WIDE), np.random.default_rng(0))
    assert selection.notes["explore"] == 0
    assert selection.scores.tolist() == [1.0] * 4
