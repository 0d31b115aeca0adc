"""Small rounds made of columns, and how they ended."""

import math
from collections.abc import Sequence

import numpy as np

from fedagent_coordinator.policies import Feedback, RoundView, Truth


def column_view(
    t: int = 1,
    *,
    clients: int | None = None,
    edges_seen: int = 1,
    price: Sequence[int] | None = None,
    budget: int = 1000,
    available: Sequence[bool] | None = None,
    tau_s: Sequence[float] | None = None,
    deadline_s: float = math.inf,
    **features: Sequence[float],
) -> RoundView:
    """Every client sees the same `edges_seen` edges; columns are per pair, client by client."""
    columns: list[Sequence[float] | Sequence[int] | Sequence[bool]] = list(features.values())
    given = [len(c) // edges_seen for c in columns] + [
        len(c) for c in (price, available) if c is not None
    ]
    n = given[0] if clients is None else clients
    features = features or {"compute": [1.0] * n * edges_seen, "upload_bps": [1e6] * n * edges_seen}
    truth = None
    if tau_s is not None:
        tau = np.array(tau_s, dtype=np.float64)
        truth = Truth(arrives=tau < 3, chance=np.ones(len(tau)), tau_s=tau)
    return RoundView(
        round=t,
        pair_client=np.repeat(np.arange(n, dtype=np.int32), edges_seen),
        pair_edge=np.tile(np.arange(edges_seen, dtype=np.int32), n),
        pair_features=np.array(list(features.values()), dtype=np.float32).T.reshape(
            n * edges_seen, len(features)
        ),
        feature_names=tuple(features),
        client_price=np.array([1] * n if price is None else price, dtype=np.int64),
        client_available=np.array([True] * n if available is None else available, dtype=np.bool_),
        edge_budget=np.full(edges_seen, budget, dtype=np.int64),
        deadline_s=deadline_s,
        truth=truth,
    )


def ended(
    view: RoundView,
    pairs: Sequence[int],
    *,
    tau_s: Sequence[float] | None = None,
    x: Sequence[bool] | None = None,
) -> Feedback:
    """These pairs were ordered; all came in time after a second unless said otherwise."""
    s = len(pairs)
    in_time = np.array([True] * s if x is None else x, dtype=np.bool_)
    unknown, nothing = np.full(s, np.nan), np.zeros(s, dtype=np.int64)
    return Feedback(
        view=view,
        pairs=np.array(pairs, dtype=np.int64),
        X=in_time,
        used=in_time,
        tau_s=np.array([1.0] * s if tau_s is None else tau_s, dtype=np.float64),
        dt_s=unknown,
        lc_s=unknown,
        ut_s=unknown,
        censored=~in_time,
        void=~in_time,
        arrivals=nothing,
        num_samples=nothing,
        seconds_per_iteration=unknown,
    )
