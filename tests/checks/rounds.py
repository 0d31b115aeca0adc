"""Random rounds for checks that every policy must pass."""

import numpy as np

from fedagent_coordinator.policies import Feedback, RoundView, Selection, Truth

FEATURES = (
    "download_bps",
    "upload_bps",
    "rtt_s",
    "bandwidth_hz",
    "distance_km",
    "compute",
    "cold",
    "x_km",
    "y_km",
)


def random_view(
    rng: np.random.Generator,
    round_: int,
    *,
    clients: int = 12,
    edges: int = 3,
    seen: float = 0.6,
    available: float = 0.8,
    budget: int = 3_500_000,
) -> RoundView:
    """A round as a city might look: some links, some idle devices, fixed prices."""
    prices = np.random.default_rng(clients).integers(0, 2_000_000, clients, dtype=np.int64)
    visible = np.flatnonzero(rng.random(clients * edges) < seen)
    return RoundView(
        round=round_,
        pair_client=(visible // max(edges, 1)).astype(np.int32),
        pair_edge=(visible % max(edges, 1)).astype(np.int32),
        pair_features=rng.random((len(visible), len(FEATURES))).astype(np.float32),
        feature_names=FEATURES,
        client_price=prices,
        client_available=rng.random(clients) < available,
        edge_budget=np.full(edges, budget, dtype=np.int64),
        opinions=rng.random(clients),
        volunteers=np.random.default_rng((round_, clients)).random(clients) < 0.7,
        deadline_s=3.0,
        truth=Truth(
            arrives=rng.random(len(visible)) < 0.6,
            chance=rng.random(len(visible)),
            tau_s=rng.random(len(visible)) * 4,
        ),
    )


def random_feedback(rng: np.random.Generator, view: RoundView, selection: Selection) -> Feedback:
    """Most of the chosen clients deliver in time."""
    n = len(selection.pairs)
    x = rng.random(n) < 0.7
    valid = x | (rng.random(n) < 0.3)
    return Feedback(
        view=view,
        pairs=selection.pairs,
        X=x,
        used=x,
        tau_s=rng.random(n) * 3,
        dt_s=np.where(valid, rng.random(n), np.nan),
        lc_s=np.where(valid, rng.random(n), np.nan),
        ut_s=np.where(valid, rng.random(n), np.nan),
        censored=~valid,
        void=~valid,
        arrivals=rng.integers(0, 50, n, dtype=np.int64),
        num_samples=rng.integers(1, 50, n, dtype=np.int64),
        seconds_per_iteration=np.where(valid, rng.random(n), np.nan),
        opinions=rng.random(len(view.client_price)),
        psi=0.5,
    )


def nothing_played(view: RoundView) -> Feedback:
    """A round in which nobody was ordered."""
    none = Selection(
        pairs=np.empty(0, dtype=np.int64),
        scores=np.full(len(view.pair_client), np.nan),
        bound=np.zeros(len(view.pair_client), dtype=np.int8),
        notes={},
    )
    return random_feedback(np.random.default_rng(0), view, none)
