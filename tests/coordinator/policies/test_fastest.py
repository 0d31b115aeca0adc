"""The regression of exchange times: Sherman-Morrison, contexts, censoring; and `fastest`."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fedagent_coordinator.policies import create
from fedagent_coordinator.policies.base import RoundView
from fedagent_coordinator.policies.fastest import (
    ExchangeTimes,
    FastestPolicy,
    affordable,
    min_per_client,
)
from tests.fakes.rounds import choice, column_view, ended


def times(**given_: object) -> ExchangeTimes:
    parameters: dict[str, object] = {
        "lambda_": 1.0,
        "alpha": 0.1,
        "model_bits": 20e6,
        "compute": "compute",
        "bandwidth": "upload_bps",
        "deadline_s": None,
    }
    return ExchangeTimes("test", **(parameters | given_))  # type: ignore[arg-type]


def _view(compute: Sequence[float], rate: Sequence[float]) -> RoundView:
    return column_view(compute=compute, upload_bps=rate)


def test_a_context_is_work_coldness_and_time_on_air() -> None:
    learner = times()
    view = _view([0.5, 2.0], [1e6, 4e6])
    assert learner.contexts(view).tolist() == [[2.0, 1.0, 20.0], [0.5, 1.0, 5.0]]
    learner.learn(ended(view, [1], tau_s=[3.0]))
    assert learner.contexts(view)[:, 1].tolist() == [1.0, 0.0]
    learner.learn(ended(view, [], tau_s=[]))
    assert learner.contexts(view)[:, 1].tolist() == [1.0, 1.0]


def test_contexts_are_bounded_where_devices_report_nonsense() -> None:
    context = times().contexts(_view([0.0, -1.0, 1e30], [0.0, 1e-30, 1e30]))
    assert context[:2, [0, 2]].tolist() == [[1e4, 1e4], [1e4, 1e4]]
    assert (context[2, [0, 2]] >= 0).all()
    assert (context[2, [0, 2]] < 1e-20).all()


@pytest.mark.parametrize(
    ("deadline_s", "of_the_round", "in_time", "waited", "learnt"),
    [
        (5.0, math.inf, True, 2.0, 2.0),
        (5.0, math.inf, False, 2.0, 5.0),
        (5.0, math.inf, False, 8.0, 8.0),
        (5.0, 7.0, False, 2.0, 5.0),
        (None, 7.0, True, 2.0, 2.0),
        (None, 7.0, False, 2.0, 7.0),
        (None, 7.0, False, 8.0, 8.0),
        (None, math.inf, False, 2.0, 2.0),
    ],
)
def test_what_did_not_come_in_time_took_the_deadline_at_least(
    deadline_s: float | None, of_the_round: float, in_time: bool, waited: float, learnt: float
) -> None:
    learner, plain = times(deadline_s=deadline_s), times()
    view = column_view(compute=[1.0], upload_bps=[2e6], deadline_s=of_the_round)
    learner.learn(ended(view, [0], tau_s=[waited], x=[in_time]))
    plain.learn(ended(view, [0], tau_s=[learnt]))
    assert learner.lower_bound(view)[0] == plain.lower_bound(view)[0] > 0


def test_the_bound_is_optimistic_by_alpha_deviations() -> None:
    view, bounds = _view([1.0], [2e6]), []
    for alpha in (0.0, 1.0, 2.0, 1e6):
        learner = times(alpha=alpha)
        learner.learn(ended(view, [0], tau_s=[12.0]))
        bounds.append(float(learner.lower_bound(view)[0]))
    c = np.array([1.0, 1.0, 10.0])
    warm = np.array([1.0, 0.0, 10.0])
    inverse = np.linalg.inv(np.eye(3) + np.outer(c, c))
    assert bounds[0] - bounds[1] == pytest.approx(np.sqrt(warm @ inverse @ warm))
    assert bounds[0] - bounds[2] == pytest.approx(2 * np.sqrt(warm @ inverse @ warm))
    assert bounds[3] == 0


def test_fastest_tries_everybody_and_then_keeps_the_fastest() -> None:
    policy, view = FastestPolicy(clients_per_round=2), column_view(clients=6)
    tau = np.array([9.0, 1.0, 8.0, 7.0, 2.0, 6.0])
    played = []
    for t in range(1, 30):
        played.append(choice(policy, view, t))
        policy.learn(ended(view, played[-1], tau_s=tau[played[-1]].tolist()))
    assert sorted(client for pairs in played[:3] for client in pairs) == list(range(6))
    assert played[-1] == [1, 4]
    again = FastestPolicy(clients_per_round=2)
    again.restore(policy.state())
    assert choice(again, view, 30) == [1, 4]


@pytest.mark.parametrize("name", ["rbcs-f", "fastest"])
def test_by_default_the_model_is_that_of_the_round(name: str) -> None:
    view = column_view(compute=[1.0, 1.0], upload_bps=[1e6, 2e6])
    for known, bits in ((0, 20e6), (125_000, 1e6)):
        policy = create(name)
        times = policy._times  # type: ignore[attr-defined] # both have them
        context = times.contexts(replace(view, model_bytes=known))
        assert context[:, 2] == pytest.approx([bits / 1e6, bits / 2e6])


def test_pairs_that_no_budget_pays_are_no_candidates() -> None:
    view = column_view(price=[1, 5, 1], budget=4, available=[True, True, False])
    assert affordable(view).tolist() == [0]
    least = min_per_client(view, np.array([3.0, 2.0, 1.0]), affordable(view))
    assert least.tolist() == [3.0, np.inf, np.inf]
