"""Whatever a recipe gives as a parameter is taken or refused by name, never a traceback."""

from typing import Any

import numpy as np
import pytest

from fedagent_coordinator import placement, policies, solvers
from fedagent_coordinator.core import iterations
from fedagent_coordinator.errors import PolicyError
from fedagent_coordinator.placement import PlacementView
from fedagent_coordinator.policies import Purpose, round_rng
from fedagent_coordinator.policies.selection import check_selection
from fedagent_coordinator.solvers import Assignment
from fedagent_protocol.errors import ParameterError, RegistryError, UnknownNameError
from fedagent_protocol.registry import Registry

from .rounds import random_feedback, random_view

VALUES: tuple[Any, ...] = (
    *(None, True, False, "x", "", "compute", b"x", object(), {}, {"a": 1}),
    *(-1, 0, 1, 3, 2**31, 10**11, 2**62, 2**70, 10**400, -(10**400)),
    *(-1.0, 0.0, 1e-300, 1e-9, 0.5, 1.0, 1.5, 2.0, 1e15, 1e300, np.inf, -np.inf, np.nan),
    *([], [1], [1, 1], [-1], [2**62], ["x"], ["compute"], [[1, 2]], [[0, 1.5]], [None], (1.5,)),
    *(np.array([1, 2]), np.float64(0.5), {1, 2}, lambda: 1),
)
KINDS: dict[str, Registry[Any]] = {
    "policies": policies.registry,
    "placements": placement.registry,
    "solvers": solvers.registry,
    "iterations": iterations.registry,
}
every_parameter = pytest.mark.parametrize(
    ("kind", "name", "parameter"),
    [
        (kind, name, parameter)
        for kind, registry in KINDS.items()
        for name in registry.builtin
        for parameter in registry.parameters(name)
    ],
)


def use(kind: str, thing: Any) -> None:
    """Let it decide and learn twice."""
    for t in (1, 2):
        rng = np.random.default_rng(t)
        view = random_view(rng, t)
        if kind == "policies":
            selection = thing.select(view, round_rng(0, t, Purpose.SELECT))
            check_selection(view, selection.pairs)
            thing.learn(random_feedback(rng, view, selection))
        elif kind == "placements":
            rents = np.array([5, 3, 9], dtype=np.int64)
            live = np.ones(3, dtype=np.bool_)
            seconds = rng.random(3)
            asked = PlacementView(
                round=t, edge_live=live, edge_rent=rents, budget_micro=99, edge_transfer_s=seconds
            )
            thing.learn(thing.choose(asked, rng), 1.0)
        elif kind == "solvers":
            thing.solve(
                Assignment(
                    value=rng.random(len(view.pair_client)),
                    cost=view.pair_price,
                    client=view.pair_client,
                    edge=view.pair_edge,
                    budget=view.edge_budget,
                )
            )
        else:
            thing.choose(rng)


@every_parameter
def test_a_wrong_value_is_refused_by_name_or_works(kind: str, name: str, parameter: str) -> None:
    for value in VALUES:
        try:
            thing = KINDS[kind].create(name, **{parameter: value})
        except ParameterError as refusal:
            assert refusal.parameter, value
            assert len(str(refusal)) < 300
            continue
        except UnknownNameError:
            assert isinstance(value, str)
            continue
        try:
            use(kind, thing)
        except (PolicyError, RegistryError) as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("name", "parameter", "value", "words"),
    [
        ("cocs", "k_scale", "x", "is 'x': must be a finite number"),
        ("cocs", "k_scale", np.inf, "must be a finite number"),
        ("cocs", "logs", "x", "must be true or false"),
        ("cocs", "features", "compute", "must be a list, each a text"),
        ("cocs", "features", [3], "must be a list, each a text"),
        ("cocs", "solver", -1, "must be a text or a Solver"),
        ("cocs", "h", 1.5, "must be a whole number or unset"),
        ("fixed", "clients", 3, "must be a list, each a whole number"),
        ("round-robin", "sets", 3, "must be a list, each a list, each a whole number or unset"),
        ("adaptive", "solver", 3, "must be a text or a Solver"),
        ("cucb", "pool", 1.5, "must be a whole number"),
        ("cucb", "pool", 10**11, "must be in 1"),
        ("cucb", "pool", True, "must be a whole number"),
        ("rbcs-f", "V", "fast", "must be a finite number"),
        ("rbcs-f", "clients_per_round", np.nan, "must be a whole number"),
        ("random", "slot_rounds", np.nan, "must be a whole number"),
        ("fair", "policy", 3, "must be a text or a SelectionPolicy"),
    ],
)
def test_the_message_says_what_it_must_be(
    name: str, parameter: str, value: object, words: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        policies.create(name, **{parameter: value})
    assert caught.value.parameter == parameter
    assert words in str(caught.value)


def test_whole_numbers_are_taken_where_a_number_is_asked() -> None:
    policies.create("rbcs-f", V=3, beta=0)
    solver = solvers.create("density")
    policies.create("cocs", solver=solver, features=("compute",), h=None)
    policies.create("fair", policy=policies.create("cheapest"))


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(ParameterError) as caught:
        policies.create("cocs", h=[1] * 10_000)
    assert len(str(caught.value)) < 200
