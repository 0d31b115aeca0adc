"""A state that was damaged is refused, or nothing ever fails because of it."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedagent_coordinator import placement, policies
from fedagent_coordinator.core import iterations
from fedagent_coordinator.errors import StateError
from fedagent_coordinator.placement import PlacementView
from fedagent_coordinator.policies import Purpose, SelectionPolicy, round_rng
from fedagent_coordinator.policies.adaptive import AdaptivePolicy
from fedagent_coordinator.policies.base import State
from fedagent_coordinator.policies.cocs import CocsPolicy
from fedagent_coordinator.policies.cucb import CucbPolicy
from fedagent_coordinator.policies.linucb import LinUcbPolicy
from fedagent_coordinator.policies.quick_init import QuickInitUcbPolicy
from fedagent_coordinator.policies.selection import check_selection

from .rounds import random_feedback, random_view

Array = npt.NDArray[Any]
every_policy = pytest.mark.parametrize("name", policies.names())


def live(policy: SelectionPolicy, rounds: range) -> None:
    """Let a policy play a few rounds of a growing town."""
    for t in rounds:
        rng = np.random.default_rng(t)
        view = random_view(rng, t, clients=8 + t)
        selection = policy.select(view, round_rng(0, t, Purpose.SELECT))
        check_selection(view, selection.pairs)
        policy.learn(random_feedback(rng, view, selection))


def damaged(array: Array) -> Iterator[Array]:
    """Yield what a broken disk or another version might make of an array."""
    yield array[:-1] if array.ndim else array
    yield np.concatenate((array, array[-1:])) if array.ndim else array
    yield array[np.newaxis]
    yield array[..., np.newaxis]
    yield array.reshape(-1)
    yield array[:0]
    yield array.astype(np.float32)
    yield array.astype(np.float64)
    yield array.astype(np.int64) if np.isfinite(array).all() else array
    yield array[::-1].copy()
    yield np.zeros_like(array)
    if array.dtype == np.bool_:
        yield ~array
        return
    yield -array - 1
    yield array + 1000
    for at in {0, array.size // 2, array.size - 1} if array.size else set():
        for value in (-1, 10**9, np.nan, np.inf, -np.inf):
            if np.isfinite(value) or array.dtype.kind == "f":
                one = array.copy()
                one.reshape(-1)[at] = value
                yield one


def states_of(state: State) -> Iterator[State]:
    """Yield the state with one array damaged or missing."""
    for key, array in state.items():
        yield {other: state[other] for other in state if other != key}
        for broken in damaged(np.array(array)):
            if (
                broken.dtype != array.dtype
                or broken.shape != array.shape
                or not np.array_equal(broken, array, equal_nan=broken.dtype.kind == "f")
            ):
                yield {**state, key: broken}


@every_policy
def test_a_damaged_state_is_refused_or_does_no_harm(name: str) -> None:
    after = 4
    original = policies.create(name)
    live(original, range(1, after + 1))
    refused = tried = 0
    for state in states_of(original.state()):
        policy = policies.create(name)
        tried += 1
        try:
            policy.restore(state)
        except StateError:
            refused += 1
            continue
        # Overflows of absurd but finite numbers are no failures.
        with np.errstate(all="ignore"), suppress(StateError):
            live(policy, range(after + 1, after + 5))
    assert refused >= tried / 3


def live_placement(place: Any, rounds: range) -> None:
    for t in rounds:
        rng = np.random.default_rng(t)
        view = PlacementView(
            round=t,
            edge_live=np.ones(4, dtype=np.bool_),
            edge_rent=np.array([5, 3, 9, 2], dtype=np.int64),
            budget_micro=1000,
            edge_transfer_s=rng.random(4),
        )
        place.learn(place.choose(view, rng), float(rng.random()))


@pytest.mark.parametrize("params", [{}, {"literal": True}])
@pytest.mark.parametrize("name", placement.names())
def test_a_damaged_state_of_a_placement(name: str, params: dict[str, Any]) -> None:
    if params and "literal" not in placement.registry.parameters(name):
        return
    original = placement.create(name, **params)
    live_placement(original, range(1, 9))
    for state in states_of(original.state()):
        place = placement.create(name, **params)
        try:
            place.restore(state)
        except StateError:
            continue
        with np.errstate(all="ignore"):
            live_placement(place, range(9, 13))


@pytest.mark.parametrize("name", iterations.names())
def test_a_damaged_state_of_an_iteration_control(name: str) -> None:
    def lives(control: iterations.IterationControl, rounds: range) -> None:
        for t in rounds:
            rng = np.random.default_rng(t)
            view = random_view(rng, t)
            chosen = policies.create("random").select(view, rng)
            control.choose(rng)
            control.learn(random_feedback(rng, view, chosen), horizon=20.0)

    original = iterations.create(name)
    lives(original, range(1, 9))
    for state in states_of(original.state()):
        control = iterations.create(name)
        try:
            control.restore(state)
        except StateError:
            continue
        with np.errstate(all="ignore"):
            lives(control, range(9, 13))


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


@pytest.mark.parametrize(
    ("policy", "key", "value"),
    [
        (AdaptivePolicy, "slack_bits", np.zeros(0)),
        (AdaptivePolicy, "slack_bits", np.zeros((1, 1))),
        (AdaptivePolicy, "weights", np.ones(4)),
        (AdaptivePolicy, "weights", np.full(3, 1 / 3)),
        (AdaptivePolicy, "centre", np.zeros(3)),
        (AdaptivePolicy, "wins", np.zeros(1)),
        (AdaptivePolicy, "precision_1", np.zeros((5, 5))),
        (AdaptivePolicy, "precision_1", np.eye(4)),
        (AdaptivePolicy, "theta_2", np.full(5, np.nan)),
        (AdaptivePolicy, "played", np.full(16, -1, dtype=np.int64)),
        (CucbPolicy, "best", np.zeros(0)),
        (CucbPolicy, "best", np.array([np.nan])),
        (CucbPolicy, "plays", np.full(100, -1, dtype=np.int64)),
        (QuickInitUcbPolicy, "group_members", np.array([[10**6]], dtype=np.int64)),
        (QuickInitUcbPolicy, "group_rewards", np.array([np.nan])),
        (QuickInitUcbPolicy, "retry", np.array([10**6], dtype=np.int64)),
        (LinUcbPolicy, "low", np.zeros(1)),
        (LinUcbPolicy, "high", np.zeros(3)),
        (LinUcbPolicy, "inverse", np.full((3, 5, 5), np.nan)),
    ],
)
def test_what_made_later_rounds_fail_is_refused(
    policy: type[SelectionPolicy], key: str, value: Array
) -> None:
    original = policy()
    live(original, range(1, 9))
    with pytest.raises(StateError):
        policy().restore({**original.state(), key: value})
