"""What a simulated round shows the iteration control: the feedback of a settled round."""

import numpy as np

from fedagent_coordinator.policies import Feedback, RoundView
from fedagent_coordinator.policies.base import FloatArray

from .fleet import Trained


def feedback_of(round_: int, trained: Trained, seconds: FloatArray) -> Feedback:
    """Return a round in which every device trained and answered, as the engine would tell it.

    Args:
        round_: From 1.
        trained: What the devices did.
        seconds: float64[N], their computation.
    """
    devices = len(seconds)
    everybody = np.arange(devices)
    yes = np.ones(devices, dtype=np.bool_)
    unknown = np.full(devices, np.nan)
    per_iteration = unknown.copy()
    np.divide(seconds, trained.iterations, out=per_iteration, where=trained.iterations > 0)
    view = RoundView(
        round=round_,
        pair_client=everybody.astype(np.int32),
        pair_edge=np.zeros(devices, dtype=np.int32),
        pair_features=np.zeros((devices, 0), dtype=np.float32),
        feature_names=(),
        client_price=np.zeros(devices, dtype=np.int64),
        client_available=yes,
        edge_budget=np.zeros(1, dtype=np.int64),
    )
    return Feedback(
        view=view,
        pairs=everybody.astype(np.int64),
        X=yes,
        used=yes,
        tau_s=seconds,
        dt_s=unknown,
        lc_s=seconds,
        ut_s=unknown,
        censored=~yes,
        void=~yes,
        arrivals=trained.arrivals,
        num_samples=trained.arrivals,
        seconds_per_iteration=per_iteration,
        steps=np.full(devices, trained.steps, dtype=np.int64),
        iterations=np.rint(trained.iterations / trained.steps).astype(np.int64),
        train_s=seconds,
    )
