"""What is left of the deadline for the upload, learnt from durations."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedagent_coordinator.policies.adaptive.upload_demand import Reported, UploadDemand
from fedagent_coordinator.policies.base import Feedback
from tests.fakes.rounds import column_view, ended

CLOCK: dict[str, Any] = {"download_bps": [2e6, 2e6, 4e6], "compute": [2.0, 2.0, 4.0]}


def learn(demand: UploadDemand, feedback: Feedback) -> None:
    demand.learn(feedback, Reported.of(feedback.view, feedback.pairs))


def test_what_is_left_of_the_deadline_is_download_and_own_work_less() -> None:
    """A client that overstates its compute has less time left."""
    demand, view = UploadDemand(), column_view(deadline_s=10.0, **CLOCK)
    feedback = ended(view, [0, 1])
    for _ in range(30):
        learn(demand, replace(feedback, dt_s=np.ones(2), lc_s=np.array([1.0, 4.0])))
    left, asked = demand.required(Reported.of(view))
    assert asked == pytest.approx(np.log(2e6 / left), rel=1e-6)
    assert left[0] == pytest.approx(8.0, abs=0.3)
    assert left[1] == pytest.approx(5.0, abs=0.3)
    # Of who never played nothing is known but the common work, 5, at its own pace.
    assert left[2] == pytest.approx(10 - 0.5 - 5 / 4, abs=0.1)


def test_one_client_that_claims_a_huge_compute_blinds_nobody() -> None:
    many: dict[str, Any] = {"download_bps": [2e6] * 22, "compute": [1e12] + [2.0] * 21}
    demand, view = UploadDemand(), column_view(deadline_s=10.0, **many)
    for _ in range(30):
        learn(demand, replace(ended(view, list(range(20))), dt_s=np.ones(20), lc_s=np.ones(20)))
    left = demand.required(Reported.of(view))[0]
    assert left[:20] == pytest.approx(8.0, abs=0.1)
    # Nobody knows these two: their work is the mean, in which the one counts ten times.
    assert left[20:] == pytest.approx(10 - 1 - (19 + 10) / 20, abs=0.01)


def test_waits_for_arrivals_do_not_grow_with_less_compute() -> None:
    demand, view = UploadDemand(), column_view(deadline_s=1.5, **CLOCK)
    # Half a second of arrival steps, two hundredths of computation at 2 cores.
    heard = replace(
        ended(view, [0, 1]), dt_s=np.full(2, 0.01), lc_s=np.full(2, 0.52), train_s=np.full(2, 0.02)
    )
    for _ in range(30):
        learn(demand, heard)
    busy = column_view(deadline_s=1.5, **{**CLOCK, "compute": [0.2, 0.2, 0.2]})
    left = demand.required(Reported.of(busy))[0]
    assert left == pytest.approx([0.79, 0.79, 0.795], abs=0.01)
    again = UploadDemand()
    again.restore(demand.state())
    assert again.required(Reported.of(busy))[0].tolist() == left.tolist()


def test_a_pair_without_time_for_its_upload_is_hopeless() -> None:
    demand = UploadDemand()
    assert demand.hopeless(np.array([0.19, 0.21, -3.0]), 10.0).tolist() == [True, False, True]
    left = demand.required(Reported.of(column_view(clients=2)))[0]
    assert left.tolist() == [math.inf, math.inf]
    assert demand.hopeless(left, math.inf).tolist() == [False, False]


def test_what_is_missing_is_filled_alike_whichever_rows_are_read() -> None:
    view = column_view(deadline_s=10.0, upload_bps=[np.nan, 1e6, 2e6, 3e6, 9e6])
    for rows in (slice(None), np.array([0, 4]), np.array([0])):
        column = Reported.of(view, rows).optional("upload_bps")
        assert column is not None
        assert column[0] == 2.5e6
    nothing = Reported.of(column_view(upload_bps=[np.nan, np.inf]))
    assert nothing.optional("upload_bps") is None
