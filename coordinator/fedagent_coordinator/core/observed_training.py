"""What a settled round showed of the devices' training, for iteration control."""

import math
from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies.base import Feedback, FloatArray, IntArray

LOAD_LIMIT = "load_limit_s"
"""Feature by which a device says how much training computation a round may cost it."""
MIN_LIMIT_S = 1e-3
"""No device is held to less: the wire says whole milliseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class ObservedTraining:
    """One row for each device that was ordered.

    Attributes:
        client: int64[S], run-wide index.
        h_s: float64[S], h_i of ALGORITHMS section 7: seconds per iteration times the arrival
            steps of the task, also where a load limit stopped the device before the last
            one; NaN where no valid update came, or it said nothing.
        limit_s: float64[S], pi: the smaller of the run's limit and the device's own;
            infinite for none.
        arrivals: float64[S], samples that came in.
    """

    client: IntArray
    h_s: FloatArray
    limit_s: FloatArray
    arrivals: FloatArray


def observed_training(
    feedback: Feedback, *, steps: int, default_limit_s: float
) -> ObservedTraining:
    """Return what a round showed.

    Args:
        feedback: The settled round.
        steps: |M_t|, arrival steps of a round in the task.
        default_limit_s: The run's load limit; 0 for none.
    """
    f, view = feedback, feedback.view
    rows = len(f.pairs)
    h_s = f.seconds_per_iteration * steps
    h_s = np.where(~f.void & np.isfinite(h_s) & (h_s > 0), h_s, np.nan)
    limit_s = np.full(rows, default_limit_s if default_limit_s > 0 else math.inf)
    if LOAD_LIMIT in view.feature_names:
        own = view.pair_features[f.pairs, view.feature_names.index(LOAD_LIMIT)]
        own_s = own.astype(np.float64)
        limit_s = np.where(own_s > 0, np.minimum(own_s, limit_s), limit_s)
    limit_s = np.maximum(limit_s, MIN_LIMIT_S)
    return ObservedTraining(
        client=view.pair_client[f.pairs].astype(np.int64),
        h_s=h_s,
        limit_s=limit_s,
        arrivals=f.arrivals.astype(np.float64),
    )


def grown(column: FloatArray, size: int, fill: float) -> FloatArray:
    """Return a copy of `column` with `fill` up to `size`."""
    return np.concatenate((column, np.full(size - len(column), fill)))
