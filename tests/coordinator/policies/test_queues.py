"""Fairness queues: debt by debt, frozen and thawed, and shares nobody can give."""

import numpy as np
import pytest

from fedagent_coordinator.errors import ParameterError, StateError
from fedagent_coordinator.policies.queues import FairnessQueues

from .worlds import column_view, ended


def queues(beta: float = 0.25, freeze_after: int = 3) -> FairnessQueues:
    return FairnessQueues("test", beta=beta, freeze_after=freeze_after)


def test_a_queue_grows_by_beta_falls_by_one_and_stops_at_zero() -> None:
    q = queues()
    view = column_view(clients=2, available=[True, False])
    for expected in (0.25, 0.5, 0.75, 1.0, 1.25):
        q.step(ended(view, []))
        assert q.lengths(2).tolist() == [expected, expected]
    q.step(ended(view, [0]))
    assert q.lengths(2).tolist() == [0.5, 1.5]
    q.step(ended(view, [0], x=[False]))
    assert q.lengths(3).tolist() == [0.0, 1.75, 0.0]


def test_without_a_session_it_freezes_and_thaws() -> None:
    q = queues(freeze_after=3)
    both = column_view(clients=2)
    one = both.take(np.array([0]))
    for _ in range(3):
        q.step(ended(one, [0]))
    assert q.lengths(2)[1] == 0.75
    assert q.due(both) == 1
    for _ in range(5):
        q.step(ended(one, [0]))
    assert q.lengths(2)[1] == 0.75
    q.step(ended(both, [0]))
    assert q.lengths(2)[1] == 1.0


def test_a_share_that_rounds_cannot_give_is_a_configuration_error() -> None:
    q = queues(beta=0.25, freeze_after=2)
    nine = column_view(clients=9)
    q.require_room(nine, 3)
    with pytest.raises(ParameterError) as caught:
        q.require_room(nine, 2)
    assert caught.value.parameter == "beta"
    assert "3 clients a round and only 2" in str(caught.value)
    eight = nine.take(np.arange(8))
    with pytest.raises(ParameterError):
        q.require_room(eight, 2)
    for _ in range(2):
        q.step(ended(eight, []))
    q.require_room(eight, 2)
    queues(beta=0.2).require_room(column_view(clients=40), 8)


@pytest.mark.parametrize(("beta", "freeze_after"), [(-0.1, 1), (1.0, 1), (float("nan"), 1), (0, 0)])
def test_parameters_out_of_range_are_refused(beta: float, freeze_after: int) -> None:
    with pytest.raises(ParameterError):
        queues(beta, freeze_after)


def test_a_state_is_bit_equal_and_of_one_length() -> None:
    q = queues(0.15)
    for _ in range(7):
        q.step(ended(column_view(clients=3), [1]))
    again = queues(0.15)
    again.restore(q.state())
    assert again.lengths(3).tobytes() == q.lengths(3).tobytes()
    with pytest.raises(StateError):
        again.restore(q.state() | {"idle": np.zeros(2, dtype=np.int64)})
