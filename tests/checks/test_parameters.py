"""Whatever a recipe gives as a parameter is taken or refused by name, never a traceback."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator import iterations, policies
from fedagent_coordinator.errors import PolicyError
from fedagent_protocol.errors import ParameterError, RegistryError, UnknownNameError

from . import KINDS, live

VALUES: tuple[Any, ...] = (
    *(None, True, False, "x", "", "compute", b"x", object(), {}, {"a": 1}),
    *(-1, 0, 1, 3, 2**31, 10**11, 2**62, 2**70, 10**400, -(10**400)),
    *(-1.0, 0.0, 1e-300, 1e-9, 0.5, 1.0, 1.5, 2.0, 1e15, 1e300, np.inf, -np.inf, np.nan),
    *([], [1], [1, 1], [-1], [2**62], ["x"], ["compute"], [[1, 2]], [[0, 1.5]], [None], (1.5,)),
    *(np.array([1, 2]), np.float64(0.5), {1, 2}, lambda: 1),
)
PARAMETERS = [
    (kind, name, parameter)
    for kind, registry in KINDS.items()
    for name in registry.builtin
    for parameter in registry.parameters(name)
]
anything = (
    st.sampled_from(VALUES)
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(-1, 9) | st.floats(), max_size=3)
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PARAMETERS), anything)
def test_a_wrong_value_is_refused_by_name_or_works(
    which: tuple[str, str, str], value: object
) -> None:
    kind, name, parameter = which
    try:
        thing = KINDS[kind].create(name, **{parameter: value})
    except ParameterError as refusal:
        assert refusal.parameter
        assert len(str(refusal)) < 300
        return
    except UnknownNameError:
        assert isinstance(value, str)
        return
    try:
        live(kind, thing, range(1, 3), clients=12)
    except (PolicyError, RegistryError) as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("kind", "name", "parameter", "values"),
    [
        ("policies", "adaptive", "memory", [1.0]),
        ("policies", "adaptive", "patience", [-0.1, 1.1]),
        ("policies", "adaptive", "share", [0.0, 1.0]),
        ("policies", "bp-ucb", "graph", ["ring"]),
        ("policies", "bp-ucb", "radius_km", [0.0, np.nan]),
        ("policies", "bp-ucb", "edges", [[(1, 1)]]),
        ("policies", "cocs", "scope", ["town"]),
        ("policies", "cocs", "k_scale", [-0.1]),
        ("policies", "cocs", "h", [0, 10_000]),
        ("policies", "cocs", "alpha", [0.0, 2.0]),
        ("policies", "cocs", "features", [[], ["compute", "compute"]]),
        ("policies", "cucb", "pool", [0, 10**11]),
        ("policies", "cucb", "mu", [-1.0]),
        ("policies", "fair", "beta", [-0.1, 1.0]),
        ("policies", "fastest", "lambda_", [0.0]),
        ("policies", "fastest", "model_bits", [0.0, np.inf]),
        ("policies", "fastest", "bandwidth", ["compute"]),
        ("policies", "fixed", "clients", [[], [-1], [3, 3]]),
        ("policies", "linucb", "ridge", [0.0]),
        ("policies", "oort", "epsilon", [-0.1, 1.1]),
        ("policies", "oort", "delta_s", [0.0, np.inf]),
        ("policies", "oort", "percentile", [0.0, 101.0]),
        ("policies", "quick-init-ucb", "mu", [-0.1, np.nan]),
        ("policies", "rbcs-f", "V", [-1.0, np.inf]),
        ("policies", "rbcs-f", "beta", [-0.1, 1.0, np.nan]),
        ("policies", "round-robin", "sets", [[], [[]], [[-1]], [[3, 3]]]),
        ("policies", "volunteers", "clients_per_round", [-1]),
        ("placements", "budgeted-ucb", "kappa", [0.0, np.inf]),
        ("placements", "budgeted-ucb", "r_min", [0.0, 1.5, np.nan]),
        ("placements", "budgeted-ucb-paper", "literal", [1]),
        ("placements", "fixed", "edge", [-1, True]),
        ("solvers", "exact", "time_limit_s", [0.0, np.nan, np.inf]),
        ("solvers", "flgreedy", "epsilon", [0.0, 1.5, np.nan]),
        ("iterations", "by-progress", "slow", [0.5]),
        ("iterations", "by-progress", "base", [0.0]),
        ("iterations", "by-progress", "alpha", [1.5]),
        ("iterations", "by-progress", "most", [0]),
        ("iterations", "by-progress", "noise", [-1.0]),
        ("iterations", "fixed", "iterations", [0]),
        ("iterations", "fixed", "rho", [3]),
        ("iterations", "learner", "iterations", [-1, True]),
        ("iterations", "primal-dual", "least", [0]),
        ("iterations", "primal-dual", "xi", [0.6]),
        ("iterations", "primal-dual", "load_limit_s", [-1.0, np.nan]),
        ("iterations", "primal-dual", "normalise", [1]),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(
    kind: str, name: str, parameter: str, values: list[object]
) -> None:
    for value in values:
        with pytest.raises(ParameterError) as caught:
            KINDS[kind].create(name, **{parameter: value})
        assert caught.value.parameter == parameter, value


def test_two_parameters_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ParameterError) as caught:
        policies.create("bp-ucb", literal=True, local_weights=True)
    assert caught.value.parameter == "local_weights"
    with pytest.raises(ParameterError, match="from 9 to"):
        iterations.create("primal-dual", {"least": 9, "most": 8})
    with pytest.raises(UnknownNameError):
        policies.create("fair", policy="no-such-policy")
