"""Policies, solvers and placements are found by name, users' own included."""

from importlib.metadata import EntryPoint, EntryPoints

import numpy as np
import pytest

from fedagent_coordinator import placement, policies, registry, solvers
from fedagent_coordinator.errors import ParameterError, StateError, UnknownNameError
from fedagent_coordinator.placement import Placement, PlacementView
from fedagent_coordinator.policies.cheapest import CheapestPolicy


class Mine(CheapestPolicy):
    """A user's own policy."""

    def __init__(self, *, greed: float, mood: str = "good") -> None:
        self.greed, self.mood = greed, mood


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [
        EntryPoint("mine", f"{__name__}:Mine", "fedagent.policies"),
        EntryPoint("random", f"{__name__}:Mine", "fedagent.policies"),
    ]
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda group: EntryPoints(own if group == "fedagent.policies" else []),
    )


@pytest.mark.usefixtures("_installed")
def test_a_users_own_policy_is_found_by_its_entry_point() -> None:
    assert "mine" in policies.names()
    assert policies.parameters("mine") == {"greed": None, "mood": "good"}
    policy = policies.create("mine", greed=2.0)
    assert isinstance(policy, Mine)
    assert policy.greed == 2.0


@pytest.mark.usefixtures("_installed")
def test_a_builtin_name_wins_and_required_parameters_are_named() -> None:
    assert not isinstance(policies.create("random"), Mine)
    with pytest.raises(ParameterError, match="'greed' is required"):
        policies.create("mine")
    with pytest.raises(ParameterError, match="there are: greed, mood"):
        policies.create("mine", greed=1, hunger=2)


def test_every_builtin_can_be_made_with_its_defaults() -> None:
    for kind in (policies.registry, solvers.registry, placement.registry):
        for name in kind.builtin:
            assert kind.create(name) is not kind.create(name)
    with pytest.raises(UnknownNameError, match="no solver is named 'magic'; there are: density"):
        solvers.create("magic")


def test_the_coordinator_places_the_aggregation_at_itself() -> None:
    place = placement.create("coordinator")
    view = PlacementView(
        round=1,
        edge_live=np.ones(2, dtype=np.bool_),
        edge_rent=np.ones(2, dtype=np.int64),
        budget_micro=0,
    )
    assert place.choose(view, np.random.default_rng(0)) == Placement(edge=None, rent_micro=0)
    place.learn(Placement(), None)
    place.restore(place.state())
    with pytest.raises(StateError):
        place.restore({"x": np.zeros(1)})
