"""RBCS-F against the reference table of ALGORITHMS section 4, and how fast it decides.

Timings are processor time of the one thread, median.

python -m bench.rbcs                         # the whole table, then the timings
python -m bench.rbcs --seeds 3 --rounds 100  # a glance
python -m bench.rbcs --only decision
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies import Feedback, Purpose, RoundView, SelectionPolicy, round_rng
from fedagent_coordinator.policies.base import FloatArray
from fedagent_coordinator.policies.baselines import RandomPolicy
from fedagent_coordinator.policies.fair_set import fair_set
from fedagent_coordinator.policies.fastest import FastestPolicy
from fedagent_coordinator.policies.rbcs_f import RbcsFPolicy
from fedagent_testbed.oracles import FedCsPolicy
from fedagent_testbed.study import load_recipe, make_world
from fedagent_testbed.worlds import arrived

from .rows import seconds_of, show

M, CLIENTS = 8, 40
TOLERANCE = 0.03
REFERENCE_SEEDS = 3
DECISION_BAR_S = 0.04


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the table: a policy, the budget's room, and the reference's figures."""

    make: Callable[[], SelectionPolicy]
    room: int = M
    seconds: float | None = None
    rate: float | None = None
    clients: float | None = None


def rbcs(v: float) -> Callable[[], SelectionPolicy]:
    return lambda: RbcsFPolicy(V=v, bandwidth="bandwidth_hz")


TABLE: dict[str, Entry] = {
    "random": Entry(RandomPolicy, seconds=15.4, rate=0.159),
    "fedcs(3)": Entry(FedCsPolicy, room=CLIENTS, seconds=3.98, rate=0.0, clients=8.8),
    "fastest": Entry(lambda: FastestPolicy(bandwidth="bandwidth_hz")),
    "rbcs-f(1)": Entry(rbcs(1), seconds=10.0, rate=0.147),
    "rbcs-f(5)": Entry(rbcs(5), seconds=8.97, rate=0.133),
    "rbcs-f(10)": Entry(rbcs(10), seconds=8.50, rate=0.095),
    "rbcs-f(20)": Entry(rbcs(20), seconds=7.54),
    "rbcs-f(50)": Entry(rbcs(50), seconds=5.63),
    "rbcs-f(100)": Entry(rbcs(100), seconds=4.92),
}


def run(entry: Entry, seed: int, rounds: int) -> tuple[float, float, float]:
    """Return seconds per round, the smallest selection rate and clients per round."""
    recipe = load_recipe("rbcs-f-numeric", [f"budget.per_edge={entry.room}"])
    world, policy = make_world(recipe, seed), entry.make()
    seconds, plays = 0.0, np.zeros(recipe.world.clients)
    for t in range(1, rounds + 1):
        view = world.view(t)
        pairs = policy.select(view, round_rng(seed, t, Purpose.SELECT)).pairs
        feedback = world.play(view, pairs)
        policy.learn(feedback)
        seconds += float(feedback.tau_s.max(initial=0.0))
        plays[view.pair_client[pairs]] += 1
    return seconds / rounds, float(plays.min()) / rounds, float(plays.sum()) / rounds


def table(seeds: int = 20, rounds: int = 500) -> Iterator[dict[str, object]]:
    """Yield every figure of the table next to the reference's."""
    for name, entry in TABLE.items():
        results = np.array([run(entry, seed, rounds) for seed in range(seeds)])
        references = (entry.seconds, entry.rate, entry.clients)
        figures = ("seconds_per_round", "smallest_rate", "clients_per_round")
        for column, (figure, reference) in enumerate(zip(figures, references, strict=True)):
            yield _row(name, figure, results[:, column], reference) | {"rounds": rounds}


def _row(name: str, figure: str, values: FloatArray, reference: float | None) -> dict[str, object]:
    mean = float(values.mean())
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    noise = 2 * spread * math.sqrt(1 / REFERENCE_SEEDS + 1 / len(values))
    gap = 0.0 if reference is None else abs(mean - reference)
    close = gap <= TOLERANCE * (reference or 0.0)
    return {
        "bench": "rbcs",
        "policy": name,
        "figure": figure,
        "value": round(mean, 4),
        "seed_deviation": round(spread, 4),
        "reference": reference,
        "ratio": round(mean / reference, 4) if reference else None,
        "within_3_percent": None if reference is None else close,
        "two_standard_errors": round(noise, 4),
        "met": close or gap <= noise,
    }


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


def rows(seeds: int = 20, rounds: int = 500) -> Iterator[dict[str, object]]:
    yield from table(seeds, rounds)
    yield from decisions()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.rbcs", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--only", choices=["table", "decision"])
    args = parser.parse_args()
    if args.only != "decision":
        show(table(args.seeds, args.rounds))
    if args.only != "table":
        show(decisions())


if __name__ == "__main__":
    main()
