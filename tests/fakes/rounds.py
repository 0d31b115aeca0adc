"""Rounds as policies see them and how they ended: random ones, and small ones made of columns."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies import (
    Feedback,
    Purpose,
    RoundView,
    Selection,
    SelectionPolicy,
    Truth,
    round_rng,
)
from fedagent_coordinator.policies.selection import check_selection
from fedagent_testbed.worlds import arrived

SEED = 5
"""Of the policies that `play`."""

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
        unpaid=~valid,
        arrivals=rng.integers(0, 50, n, dtype=np.int64),
        num_samples=rng.integers(1, 50, n, dtype=np.int64),
        seconds_per_iteration=np.where(valid, rng.random(n), np.nan),
        opinions=rng.random(len(view.client_price)),
        psi=0.5,
    )


def nothing_played(view: RoundView) -> Feedback:
    none = Selection(
        pairs=np.empty(0, dtype=np.int64),
        scores=np.full(len(view.pair_client), np.nan),
        bound=np.zeros(len(view.pair_client), dtype=np.int8),
        notes={},
    )
    return random_feedback(np.random.default_rng(0), view, none)


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
    opinions: Sequence[float] | None = None,
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
        opinions=None if opinions is None else np.array(opinions, dtype=np.float64),
    )


def ended(
    view: RoundView,
    pairs: Sequence[int],
    *,
    tau_s: Sequence[float] | None = None,
    x: Sequence[bool] | None = None,
    opinions: Sequence[float] | float | None = None,
) -> Feedback:
    """These pairs were ordered; all came in time after a second unless said otherwise.

    One number is one client's opinion, the others have none.
    """
    if isinstance(opinions, float):
        opinions = [opinions] + [np.nan] * (len(view.client_price) - 1)
    s = len(pairs)
    in_time = np.array([True] * s if x is None else x, dtype=np.bool_)
    return arrived(
        view,
        np.array(pairs, dtype=np.int64),
        in_time,
        np.array([1.0] * s if tau_s is None else tau_s, dtype=np.float64),
        censored=~in_time,
        opinions=None if opinions is None else np.array(opinions, dtype=np.float64),
    )


def trained(
    seconds: npt.ArrayLike,
    *,
    arrivals: npt.ArrayLike = 20,
    samples: npt.ArrayLike | None = None,
    steps: int = 1,
    loss: npt.ArrayLike = 0.5,
    answered: Sequence[bool] | None = None,
    limits: Sequence[float] | None = None,
) -> Feedback:
    """A round of as many clients, by the seconds of an iteration; NaN limits are not reported."""
    n = np.size(seconds)
    answer = [True] * n if answered is None else answered
    view = column_view(clients=n, load_limit_s=limits or [np.nan] * n)
    return replace(
        ended(view, range(n), x=answer),
        arrivals=np.where(answer, arrivals, 0),
        num_samples=np.broadcast_to(arrivals if samples is None else samples, n),
        seconds_per_iteration=np.where(answer, seconds, np.nan),
        steps=np.where(answer, steps, 0),
        loss=np.where(answer, loss, np.nan),
    )


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
    x, y = zip(*places, strict=True) if places else ([0.0] * clients, [0.0] * clients)
    view = column_view(
        t,
        price=[price] * clients,
        budget=budget,
        available=there,
        opinions=opinions,
        x_km=x,
        y_km=y,
    )
    if places is not None:
        return view
    return replace(view, feature_names=(), pair_features=view.pair_features[:, :0])


def choice(policy: SelectionPolicy, view: RoundView, t: int = 1, seed: int = 0) -> list[int]:
    """The pairs a policy chooses, ascending; the choice keeps the constraints."""
    pairs = policy.select(view, round_rng(seed, t, Purpose.SELECT)).pairs
    check_selection(view, pairs)
    return sorted(pairs.tolist())


def chosen(policy: SelectionPolicy, view: RoundView, seed: int = SEED) -> list[int]:
    """The clients a policy chooses, ascending."""
    return sorted(view.pair_client[choice(policy, view, view.round, seed)].tolist())


def play(policy: SelectionPolicy, view: RoundView, opinion: float, seed: int = SEED) -> list[int]:
    """One round in which everybody chosen plays; returns who."""
    clients = chosen(policy, view, seed)
    policy.learn(ended(view, clients, opinions=opinion))
    return clients
