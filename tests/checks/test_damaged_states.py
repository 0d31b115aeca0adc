"""A state that was damaged is refused, or nothing ever fails because of it."""

import functools
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.errors import PolicyError
from fedagent_coordinator.policies.base import State
from fedagent_coordinator.policies.cocs import CocsPolicy

from . import KINDS, live

Array = npt.NDArray[Any]
DAMAGES: tuple[Callable[[Array], Array], ...] = (
    lambda array: array[:-1],
    lambda array: np.concatenate((array, array[-1:])),
    lambda array: array[::-1].copy(),
    lambda array: ~array if array.dtype == np.bool_ else -array - 1,
    lambda array: ~array if array.dtype == np.bool_ else array + 1000,
)
"""What a broken disk or another version might make of an array."""
EVERY = [(kind, name) for kind in KINDS if kind != "solvers" for name in KINDS[kind].builtin]
LEARNING = (
    *((kind, name, "") for kind, name in EVERY if KINDS[kind].create(name).state()),
    ("placements", "budgeted-ucb-paper", "literal"),
)


@functools.cache
def learnt(kind: str, name: str, flag: str) -> State:
    thing = KINDS[kind].create(name, **dict.fromkeys([flag] if flag else (), True))
    live(kind, thing, range(1, 6))
    return cast("State", thing.state())


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(LEARNING), st.sampled_from(DAMAGES), st.data())
def test_a_damaged_state_is_refused_or_does_no_harm(
    which: tuple[str, str, str], damage: Callable[[Array], Array], data: st.DataObject
) -> None:
    kind, name, flag = which
    state = learnt(kind, name, flag)
    key = data.draw(st.sampled_from(sorted(state)))
    thing = KINDS[kind].create(name, **dict.fromkeys([flag] if flag else (), True))
    try:
        thing.restore({**state, key: damage(np.array(state[key]))})
        # Overflows of absurd but finite numbers are no failures.
        with np.errstate(all="ignore"):
            live(kind, thing, range(6, 9))
    except PolicyError as error:
        assert str(error).startswith("state of ")


@pytest.mark.parametrize(
    "other",
    [
        {"scope": "pair", "h": 7},
        {"h": 5},
        {"features": ("upload_bps", "compute")},
        {"logs": False},
        {"scope": "edge"},
    ],
)
def test_counters_of_cocs_are_of_its_cells_only(other: dict[str, Any]) -> None:
    policy = CocsPolicy(h=4, features=("download_bps", "compute"))
    live("policies", policy, range(1, 9))
    with pytest.raises(PolicyError, match="of another scope, h, logs or features"):
        CocsPolicy(**{"h": 4, **other}).restore(policy.state())
    CocsPolicy(h=4, k_scale=0.1).restore(policy.state())
