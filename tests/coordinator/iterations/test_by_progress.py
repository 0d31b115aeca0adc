"""`by-progress`: what raises a device's iterations, what does not, and what is kept."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.iterations.by_progress import ByProgressControl
from fedagent_coordinator.policies.base import Feedback, Purpose, round_rng
from tests.fakes.rounds import trained

DEVICES = 4
ALL = np.arange(DEVICES)


def feedback(
    loss: npt.ArrayLike = 0.5, *, seconds: npt.ArrayLike = (0.1,) * DEVICES, **said: Any
) -> Feedback:
    """A round of all devices; by default alike."""
    return trained(seconds, loss=loss, **said)


def flat(rounds: int = 80) -> ByProgressControl:
    """One that has seen rounds in which nothing changed."""
    control = ByProgressControl()
    for _ in range(rounds):
        control.learn(feedback(), horizon=100)
    return control


def test_it_begins_high_and_comes_down_when_the_loss_is_flat() -> None:
    control = ByProgressControl(start=10, hold=5, base=1.5)
    for t in range(20):
        assert control.rho(ALL) == pytest.approx(1.5 + 8.5 * np.exp(-t / 5))
        control.learn(feedback(), horizon=100)


def test_a_loss_that_rises_raises_the_iterations_and_one_that_falls_does_not() -> None:
    rising, falling = flat(), flat()
    for _ in range(3):
        rising.learn(feedback(0.8), horizon=100)
        falling.learn(feedback(0.3), horizon=100)
    assert rising.rho(ALL).min() > 10
    assert falling.rho(ALL) == pytest.approx(1.1, rel=0.1)


def test_who_got_more_data_iterates_more_and_who_is_slower_less() -> None:
    control = ByProgressControl(base=4.0, start=4)
    for _ in range(30):
        control.learn(
            feedback(seconds=[0.1, 0.1, 0.1, 0.8], arrivals=[20, 20, 200, 20]), horizon=100
        )
    rho = control.rho(ALL)
    assert rho[0] == pytest.approx(rho[1])
    assert rho[2] / rho[0] == pytest.approx(10 ** (0.75 / 1.75))
    assert rho[0] / rho[3] == pytest.approx(8 ** (1 / 1.75))


def test_no_device_is_planned_beyond_its_load_limit() -> None:
    control = ByProgressControl(base=15.0, load_limit_s=1.0)
    for _ in range(20):
        control.learn(feedback(seconds=[0.05, 0.5, 2.0, 0.05], limits=[9, 9, 9, 0.2]), horizon=9)
    rho = control.rho(ALL)
    assert rho[1] == pytest.approx(2.0)
    assert rho[2] == 1.0, "least comes before the limit, at which the device stops anyway"
    assert rho[3] == pytest.approx(4.0)


said = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None, max_examples=80)
@given(
    rounds=st.lists(
        st.tuples(said, said, st.integers(0, 2**53), st.integers(0, 2**53), st.booleans()),
        min_size=1,
        max_size=30,
    )
)
def test_whatever_a_device_says_numbers_stay_in_range_and_a_restored_one_continues_bit_equal(
    rounds: list[tuple[float, float, int, int, bool]],
) -> None:
    one = ByProgressControl(least=2, most=17)
    for t, (loss, seconds, arrivals, held, second) in enumerate(rounds, start=1):
        other = ByProgressControl(least=2, most=17)
        other.restore(one.state())
        for control in (one, other):
            control.learn(
                feedback(
                    [loss, 0.5, 0.5, 0.5],
                    seconds=[seconds, 0.1, 0.1, 0.1],
                    arrivals=[arrivals, 5, 5, 5],
                    answered=[True, second, True, True],
                    samples=[held, 5, 5, 5],
                ),
                horizon=50,
            )
        drawn = [
            control.choose(ALL, round_rng(0, t, Purpose.ITERATE)).tolist()
            for control in (one, other)
        ]
        assert drawn[0] == drawn[1]
        assert all(2 <= rho <= 17 for rho in drawn[0])


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(
    "claim",
    [
        {"loss": 1e300},
        {"loss": -1e300},
        {"seconds": 1e9},
        {"arrivals": 2**53, "samples": 20},
        {"samples": 2**53},
    ],
)
def test_no_device_decides_for_the_others(claim: dict[str, Any], alone: bool) -> None:
    """From the first round on, also where it answers alone in every other round."""
    liar, honest = ByProgressControl(base=4.0), ByProgressControl(base=4.0)
    usual = {"seconds": 0.1, "arrivals": 20, "samples": 20}
    for loss in [*[0.5] * 60, *[0.8] * 3]:
        said = {**usual, "loss": loss}
        told = {key: [claim.get(key, value), *[value] * 3] for key, value in said.items()}
        liar.learn(feedback(**told), horizon=100)
        honest.learn(feedback(loss), horizon=100)
        if alone:
            liar.learn(feedback(**told, answered=[True, False, False, False]), horizon=100)
            honest.learn(feedback(loss, answered=[True, False, False, False]), horizon=100)
        share = liar.rho(ALL[1:]) / honest.rho(ALL[1:])
        assert 0.3 < share.min() <= share.max() < 3
    assert liar.rho(ALL[1:]).min() > 8, "the rise is seen"
