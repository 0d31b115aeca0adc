"""How fast RBCS-F decides for 100 000 clients; processor time of one thread, medians."""

import statistics
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies import Feedback, RoundView
from fedagent_coordinator.policies.fair_set import fair_set
from fedagent_coordinator.policies.rbcs_f import RbcsFPolicy
from fedagent_testbed.worlds import arrived

from .rows import seconds_of

DECISION_BAR_S = 0.04


def big_round(
    rng: np.random.Generator, t: int, clients: int, edges_seen: int, room: int
) -> RoundView:
    """A round of many clients, `edges_seen` pairs each, one budget per edge."""
    edges = 100
    pairs = clients * edges_seen
    base = np.repeat(rng.integers(0, edges, clients), edges_seen)
    return RoundView(
        round=t,
        pair_client=np.repeat(np.arange(clients, dtype=np.int32), edges_seen),
        pair_edge=((base + np.tile(np.arange(edges_seen), clients)) % edges).astype(np.int32),
        pair_features=np.column_stack(
            (rng.uniform(0.5, 2, pairs), rng.uniform(2e6, 4e6, pairs))
        ).astype(np.float32),
        feature_names=("compute", "upload_bps"),
        client_price=np.ones(clients, dtype=np.int64),
        client_available=rng.random(clients) < 0.8,
        edge_budget=np.full(edges, room, dtype=np.int64),
    )


def decisions(clients: int = 100_000, m: int = 10_000) -> Iterator[dict[str, object]]:
    """Time P4 alone on several shapes, then the whole `select` and `learn`."""
    rng = np.random.default_rng(0)
    tau = rng.random(clients) * 10
    shapes = {
        "random": (tau, rng.random(clients) * 5, 1e4),
        "slow-owed": (tau, tau / 2 + rng.random(clients), 5e4),
        "tied": (np.zeros(clients), np.zeros(clients), 20.0),
        "flat": (np.arange(clients) + rng.random(clients), np.arange(clients) * 1.0, 1.0 * m),
    }
    for shape, (times, queue, v) in shapes.items():
        took = seconds_of(lambda t=times, q=queue, v=v: fair_set(t, q, m, v, rng), times=15)  # type: ignore[misc]
        median = statistics.median(took)
        yield _timing(f"fair-set {shape}", median, clients, m, bar=shape != "flat")
    for edges_seen in (1, 3):
        policy = RbcsFPolicy(V=1e4, beta=0.08, clients_per_round=m)
        selects, learns = [], []
        for t in range(1, 31):
            view = big_round(rng, t, clients, edges_seen, room=m)
            start = time.thread_time()
            selection = policy.select(view, rng)
            middle = time.thread_time()
            policy.learn(_all_in_time(view, selection.pairs, rng))
            selects.append(middle - start)
            learns.append(time.thread_time() - middle)
        name = f"{edges_seen} edge(s) seen"
        yield _timing(f"select, {name}", statistics.median(selects[15:]), clients, m, bar=False)
        yield _timing(f"learn, {name}", statistics.median(learns[15:]), clients, m, bar=False)


def _all_in_time(
    view: RoundView, pairs: npt.NDArray[np.int64], rng: np.random.Generator
) -> Feedback:
    """Everybody delivers, after a random time."""
    yes = np.ones(len(pairs), dtype=np.bool_)
    return arrived(view, pairs, yes, rng.uniform(0, 20, len(pairs)))


def _timing(what: str, seconds: float, clients: int, m: int, *, bar: bool) -> dict[str, object]:
    return {
        "bench": "rbcs",
        "figure": what,
        "clients": clients,
        "clients_per_round": m,
        "ms": round(1000 * seconds, 2),
        "bar_ms": 1000 * DECISION_BAR_S if bar else None,
        "met": not bar or seconds <= DECISION_BAR_S,
    }


def rows() -> Iterator[dict[str, object]]:
    yield from decisions()
