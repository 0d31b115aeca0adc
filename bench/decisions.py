"""Processor time of a round's decision, select and learn, of every policy and placement.

Two towns: 50 clients that see 3 of 3 edges, and 10 000 that see 3 of 20; budgets pay for
about a tenth of the clients. Defaults, except that `rbcs-f` owes what these can pay.
Medians of the last rounds, one thread.

python -m bench.decisions
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import numpy as np

from fedagent_coordinator import placement, policies
from fedagent_coordinator.placement import PlacementView
from fedagent_coordinator.policies import Feedback, RoundView, Truth
from fedagent_coordinator.policies.base import IntArray
from fedagent_testbed.worlds import arrived

from .rows import show

TOWNS = {"small": (50, 3), "large": (10_000, 20)}
SEEN = 3
ROUNDS = 60
EDGES = 1000
FEATURES = ("compute", "download_bps", "upload_bps", "x_km", "y_km")
PARAMS: dict[tuple[str, str], dict[str, object]] = {
    ("small", "rbcs-f"): {"beta": 0.1},
    ("large", "rbcs-f"): {"beta": 0.0005},
}
"""What the budgets of a town can pay for."""


def town(rng: np.random.Generator, t: int, clients: int, edges: int) -> RoundView:
    """Return a round in which every client sees the same three edges as ever."""
    pairs = clients * SEEN
    client = np.repeat(np.arange(clients, dtype=np.int32), SEEN)
    places = np.random.default_rng(1).random((clients, 2))
    columns = (
        rng.uniform(2, 4, pairs),
        rng.uniform(1e5, 1e7, pairs),
        rng.uniform(1e5, 1e7, pairs),
        places[client, 0],
        places[client, 1],
    )
    price = np.random.default_rng(2).integers(1_000_000, 3_000_000, clients)
    chance = rng.random(pairs)
    return RoundView(
        round=t,
        pair_client=client,
        pair_edge=((client + np.tile(np.arange(SEEN), clients)) % edges).astype(np.int32),
        pair_features=np.column_stack(columns).astype(np.float32),
        feature_names=FEATURES,
        client_price=price,
        client_available=rng.random(clients) < 0.9,
        edge_budget=np.full(edges, 200_000 * clients // edges, dtype=np.int64),
        deadline_s=3.0,
        model_bytes=22_500,
        opinions=rng.random(clients),
        truth=Truth(arrives=rng.random(pairs) < chance, chance=chance, tau_s=6 * rng.random(pairs)),
        volunteers=np.arange(clients) % 10 == t % 10,
    )


def outcome(rng: np.random.Generator, view: RoundView, pairs: IntArray) -> Feedback:
    """Return that two of three arrive in time, the others later."""
    s = len(pairs)
    x, part, none = rng.random(s) < 2 / 3, np.full(s, 0.5), np.zeros(s, dtype=np.bool_)
    stages = dict.fromkeys(("dt_s", "lc_s", "ut_s", "seconds_per_iteration"), part)
    counts = dict.fromkeys(("arrivals", "num_samples"), np.ones(s, dtype=np.int64))
    opinions = rng.random(len(view.client_price))
    tau_s = np.where(x, 1.5, 4.0)
    return arrived(view, pairs, x, tau_s, unpaid=none, **stages, **counts, opinions=opinions)


def decision(name: str, where: str, rounds: int = ROUNDS) -> dict[str, object]:
    """Play a policy; return the milliseconds of the second half of its rounds."""
    policy = policies.create(name, **PARAMS.get((where, name), {}))
    rng = np.random.default_rng(3)
    took, chosen = [], 0
    for t in range(1, rounds + 1):
        view = town(rng, t, *TOWNS[where])
        began = time.thread_time()
        pairs = policy.select(view, np.random.default_rng((4, t))).pairs
        middle = time.thread_time()
        feedback = outcome(rng, view, pairs)
        resumed = time.thread_time()
        policy.learn(feedback)
        took.append(1e3 * (time.thread_time() - resumed + middle - began))
        chosen = len(pairs)
    median = statistics.median(took[rounds // 2 :])
    return _row(name, where, TOWNS[where][0], median) | {"chosen": chosen}


def placing(name: str, rounds: int = 4 * EDGES) -> dict[str, object]:
    """Play a placement among a thousand edges, until most were tried."""
    policy, rng = placement.create(name), np.random.default_rng(3)
    rent = rng.integers(100_000, 1_000_000, EDGES)
    transfer = rng.uniform(1, 10, EDGES)
    took = []
    for t in range(1, rounds + 1):
        view = PlacementView(
            round=t,
            edge_live=np.ones(EDGES, dtype=np.bool_),
            edge_rent=rent,
            budget_micro=10**13,
            edge_transfer_s=transfer,
        )
        began = time.thread_time()
        placed = policy.choose(view, np.random.default_rng((4, t)))
        policy.learn(placed, None if placed.edge is None else float(transfer[placed.edge]))
        took.append(1e3 * (time.thread_time() - began))
    return _row(name, "placement", EDGES, statistics.median(took[rounds // 2 :]))


def rows() -> Iterator[dict[str, object]]:
    for name in policies.names():
        for where in TOWNS:
            yield decision(name, where)
    for name in placement.names():
        yield placing(name)


def _row(name: str, where: str, size: int, median: float) -> dict[str, object]:
    return {"bench": "decisions", "name": name, "case": where, "size": size, "ms": round(median, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", choices=policies.names())
    chosen = parser.parse_args().policy
    show((decision(chosen, where) for where in TOWNS) if chosen else rows())


if __name__ == "__main__":
    main()
