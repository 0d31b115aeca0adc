"""Iteration control: the multipliers, the rounding, and the simple ones."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator import iterations
from fedagent_coordinator.core.effects import Controls
from fedagent_coordinator.iterations.primal_dual import PrimalDualControl, rounded
from fedagent_coordinator.policies.base import Purpose, round_rng
from fedagent_coordinator.run_settings import decision_policies
from fedagent_task.recipe.text import parse_recipe
from tests.fakes.rounds import trained

ONE = np.arange(1)


@pytest.mark.parametrize("rho", [1.0, 1.25, 5.5, 29.9])
def test_rounding_is_right_on_average(rho: float) -> None:
    drawn = [rounded(rho, round_rng(3, t, Purpose.ITERATE)) for t in range(1, 4001)]
    assert set(drawn) <= {math.floor(rho), math.ceil(rho)}
    spread = math.sqrt((rho % 1) * (1 - rho % 1) / len(drawn))
    assert abs(np.mean(drawn) - rho) <= 4 * spread


def test_one_round_by_hand_in_units_of_the_problem() -> None:
    """As printed it is in `tests/checks/test_transcriptions.py`."""
    limit_s, slow, fast, arrivals = 2.0, 0.6, 0.2, 40
    control = PrimalDualControl(start=5, load_limit_s=limit_s)
    control.learn(trained([slow, fast], arrivals=arrivals), horizon=8)
    gamma = 8 ** (-1 / 3)
    omega = 0.001 * (2 * arrivals) ** 0.75
    # Of a second of load: per limit, and per root of devices; of a second; of rho.
    load_unit, cost_unit, width = 1 / (limit_s * math.sqrt(2)), 1 / (2 * limit_s), 29
    load = gamma * load_unit * (5 * slow - limit_s)  # the other device is below its limit
    quality = gamma * (omega * 5**-0.75 / 0.005 - 0.3)
    state = control.state()
    assert state["load"] == pytest.approx([load, 0.0])
    assert state["numbers"][1] == pytest.approx(quality)
    grid = np.linspace(1, 30, 300_001)
    cost = (
        cost_unit * (slow + fast) * grid
        + load * load_unit * grid * slow
        + quality * omega * grid**-0.75 / 0.005
        + ((grid - 5) / width) ** 2 / (2 * gamma)
    )
    assert control.rho == pytest.approx(grid[np.argmin(cost)], abs=1e-3)


@settings(deadline=None, max_examples=60)
@given(
    rounds=st.lists(
        st.tuples(st.floats(1e-6, 2.0), st.integers(0, 500), st.integers(1, 50), st.booleans()),
        min_size=1,
        max_size=30,
    ),
    limit=st.floats(0, 3),
    normalise=st.booleans(),
)
def test_multipliers_and_iterations_stay_in_range(
    rounds: list[tuple[float, int, int, bool]], limit: float, normalise: bool
) -> None:
    control = PrimalDualControl(least=2, most=17, load_limit_s=limit, normalise=normalise)
    for t, (seconds, arrivals, steps, second) in enumerate(rounds, start=1):
        given_ = trained([seconds, 0.01], steps=steps, arrivals=arrivals, answered=[True, second])
        control.learn(given_, horizon=50, steps=steps)
        notes = control.notes()
        assert notes["lambda_load"] >= 0
        assert notes["lambda_quality"] >= 0
        assert 2 <= control.rho <= 17
        assert 2 <= control.choose(ONE, round_rng(0, t, Purpose.ITERATE))[0] <= 17


@pytest.mark.parametrize("normalise", [True, False])
def test_the_load_limit_holds_in_the_long_run(normalise: bool) -> None:
    control = PrimalDualControl(load_limit_s=1.0, start=30, scale=2.0, normalise=normalise)
    spent = []
    for _ in range(400):
        spent.append(0.1 * control.rho)
        control.learn(trained([0.1, 0.1], arrivals=4), horizon=400)
    assert np.mean(spent[200:]) <= 1.05


def test_a_silent_device_keeps_what_it_showed_last() -> None:
    control = PrimalDualControl(load_limit_s=1.0)
    control.learn(trained([0.1, 0.4]), horizon=9)
    control.learn(trained([0.2, 0.9], answered=[True, False]), horizon=9)
    assert control.state()["h"] == pytest.approx([0.2, 0.4])
    before = control.state()
    control.learn(trained([0.2, 0.9], answered=[False, False]), horizon=9)
    after = control.state()
    assert after["numbers"][:2] == pytest.approx(before["numbers"][:2])
    assert after["numbers"][2] == 3


def test_the_control_of_a_run_is_told_the_steps_of_its_task() -> None:
    text = """
        name = "t"
        [model]
        kind = "softmax"
        features = 4
        classes = 2
        [learner]
        name = "none"
        [policy]
        name = "all"
        [rounds]
        count = 3
        deadline_s = 2.0
        [budget]
        per_edge = 1.0
    """
    told = ("learner.steps=7", "iterations.name=primal-dual")
    policies = decision_policies(parse_recipe(text, told))
    policies.learn(trained([0.1], steps=2), Controls(horizon=9.0))
    assert policies.state()["iterations/h"] == pytest.approx([0.7])


def test_the_simple_controls() -> None:
    rng = np.random.default_rng(0)
    assert iterations.create("learner").choose(ONE, rng).tolist() == [0]
    assert iterations.create("learner", default=7).choose(ONE, rng).tolist() == [7]
    assert iterations.create("strsaga-default", default=7).choose(ONE, rng).tolist() == [0]
    fixed = iterations.create("fixed", {"iterations": 20, "load_limit_s": 1.5})
    assert (fixed.choose(ONE, rng).tolist(), fixed.load_limit_s) == ([20], 1.5)
    fixed.learn(trained([0.1]), horizon=3)
    fixed.restore(fixed.state())
    assert fixed.choose(ONE, rng).tolist() == [20]
