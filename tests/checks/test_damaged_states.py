"""A state that was damaged is refused, or nothing ever fails because of it."""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator import iterations, placement, policies
from fedagent_coordinator.errors import StateError
from fedagent_coordinator.placement import PlacementView
from fedagent_coordinator.policies import Purpose, round_rng
from fedagent_coordinator.policies.base import State
from fedagent_coordinator.policies.cocs import CocsPolicy
from fedagent_coordinator.policies.selection import check_selection
from tests.fakes.rounds import random_feedback, random_view

Array = npt.NDArray[Any]
KINDS: dict[str, Any] = {
    "policy": policies.create,
    "placement": placement.create,
    "control": iterations.create,
}


def live(thing: Any, rounds: range, kind: str = "policy") -> None:
    """Let a policy, placement or control live through a few rounds of a growing town."""
    for t in rounds:
        rng = np.random.default_rng(t)
        view = random_view(rng, t, clients=8 + t)
        if kind == "policy":
            selection = thing.select(view, round_rng(0, t, Purpose.SELECT))
            check_selection(view, selection.pairs)
            thing.learn(random_feedback(rng, view, selection))
        elif kind == "placement":
            offers = PlacementView(
                round=t,
                edge_live=np.ones(4, dtype=np.bool_),
                edge_rent=np.array([5, 3, 9, 2], dtype=np.int64),
                budget_micro=1000,
                edge_transfer_s=rng.random(4),
            )
            thing.learn(thing.choose(offers, rng), float(rng.random()))
        else:
            chosen = policies.create("random").select(view, rng)
            clients = view.pair_client[chosen.pairs].astype(np.int64)
            thing.choose(clients, rng)
            thing.learn(random_feedback(rng, view, chosen), horizon=20.0)


DAMAGES: tuple[Callable[[Array], Array], ...] = (
    lambda array: array[:-1],
    lambda array: np.concatenate((array, array[-1:])),
    lambda array: array[::-1].copy(),
    lambda array: ~array if array.dtype == np.bool_ else -array - 1,
    lambda array: ~array if array.dtype == np.bool_ else array + 1000,
)
"""What a broken disk or another version might make of an array."""
LEARNING = (
    *(("policy", name, "") for name in policies.names() if policies.create(name).state()),
    *(("placement", name, "") for name in placement.names() if placement.create(name).state()),
    ("placement", "budgeted-ucb-paper", "literal"),
    *(("control", name, "") for name in iterations.names() if iterations.create(name).state()),
)


@functools.cache
def learnt(kind: str, name: str, flag: str) -> State:
    thing = KINDS[kind](name, **dict.fromkeys([flag] if flag else (), True))
    live(thing, range(1, 6), kind)
    return cast("State", thing.state())


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(LEARNING), st.sampled_from(DAMAGES), st.data())
def test_a_damaged_state_is_refused_or_does_no_harm(
    which: tuple[str, str, str], damage: Callable[[Array], Array], data: st.DataObject
) -> None:
    kind, name, flag = which
    state = learnt(kind, name, flag)
    key = data.draw(st.sampled_from(sorted(state)))
    thing = KINDS[kind](name, **dict.fromkeys([flag] if flag else (), True))
    try:
        thing.restore({**state, key: damage(np.array(state[key]))})
    except StateError:
        return
    # Overflows of absurd but finite numbers are no failures.
    with np.errstate(all="ignore"), suppress(StateError):
        live(thing, range(6, 9), kind)


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
    live(policy, range(1, 9))
    with pytest.raises(StateError, match="of another scope, h, logs or features"):
        CocsPolicy(**{"h": 4, **other}).restore(policy.state())
    CocsPolicy(h=4, k_scale=0.1).restore(policy.state())
