"""A town with one edge (or more) that every client sees, for policies over client sets."""

from collections.abc import Sequence

import numpy as np

from fedagent_coordinator.policies import Feedback, Purpose, RoundView, SelectionPolicy, round_rng
from fedagent_coordinator.policies.base import State
from fedagent_coordinator.policies.selection import check_selection
from fedagent_coordinator.records import pack_arrays

SEED = 5


def town(
    t: int,
    clients: int,
    *,
    there: Sequence[bool] | None = None,
    price: int = 0,
    budget: int = 0,
    opinions: Sequence[float] | None = None,
    places: Sequence[tuple[float, float]] | None = None,
) -> RoundView:
    """A round in which client n is pair n, at edge 0."""
    features = np.zeros((clients, 0)) if places is None else np.array(places).reshape(-1, 2)
    return RoundView(
        round=t,
        pair_client=np.arange(clients, dtype=np.int32),
        pair_edge=np.zeros(clients, dtype=np.int32),
        pair_features=features.astype(np.float32),
        feature_names=() if places is None else ("x_km", "y_km"),
        client_price=np.full(clients, price, dtype=np.int64),
        client_available=np.array([True] * clients if there is None else there, dtype=np.bool_),
        edge_budget=np.array([budget], dtype=np.int64),
        opinions=None if opinions is None else np.array(opinions, dtype=np.float64),
    )


def result(
    view: RoundView, pairs: Sequence[int], opinions: Sequence[float] | float | None
) -> Feedback:
    """All updates arrive; one number is one client's opinion, the others have none."""
    s = len(pairs)
    if isinstance(opinions, float):
        opinions = [opinions] + [np.nan] * (len(view.client_price) - 1)
    return Feedback(
        view=view,
        pairs=np.array(pairs, dtype=np.int64),
        X=np.ones(s, dtype=np.bool_),
        used=np.ones(s, dtype=np.bool_),
        tau_s=np.ones(s),
        dt_s=np.ones(s),
        lc_s=np.ones(s),
        ut_s=np.ones(s),
        censored=np.zeros(s, dtype=np.bool_),
        void=np.zeros(s, dtype=np.bool_),
        arrivals=np.zeros(s, dtype=np.int64),
        num_samples=np.ones(s, dtype=np.int64),
        seconds_per_iteration=np.ones(s),
        opinions=None if opinions is None else np.array(opinions, dtype=np.float64),
    )


def chosen(policy: SelectionPolicy, view: RoundView, seed: int = SEED) -> list[int]:
    """The clients a policy chooses, ascending; the choice keeps the constraints."""
    pairs = policy.select(view, round_rng(seed, view.round, Purpose.SELECT)).pairs
    check_selection(view, pairs)
    return sorted(view.pair_client[pairs].tolist())


def play(policy: SelectionPolicy, view: RoundView, opinion: float, seed: int = SEED) -> list[int]:
    """One round in which everybody chosen plays; returns who."""
    clients = chosen(policy, view, seed)
    policy.learn(result(view, clients, opinion))
    return clients


def same(left: State, right: State) -> bool:
    """Whether two states are the same to the bit."""
    return pack_arrays(left) == pack_arrays(right)
