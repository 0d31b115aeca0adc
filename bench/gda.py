"""Quick-init at fleet scale: its round and its memory.

python -m bench.gda
"""

import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np

from fedagent_coordinator.policies import Feedback, RoundView
from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_coordinator.policies.sets.quick_init import QuickInitUcbPolicy
from fedagent_testbed.worlds import arrived

from .rows import show

CLIENTS, SIZE, SLOTS = 100_000, 50, 1000


def _view(t: int, there: IntArray | None = None) -> RoundView:
    available = np.ones(CLIENTS, dtype=np.bool_)
    if there is not None:
        available[there] = False
    return RoundView(
        round=t,
        pair_client=np.arange(CLIENTS, dtype=np.int32),
        pair_edge=(np.arange(CLIENTS) % 100).astype(np.int32),
        pair_features=np.zeros((CLIENTS, 0), dtype=np.float32),
        feature_names=(),
        client_price=np.ones(CLIENTS, dtype=np.int64),
        client_available=available,
        edge_budget=np.full(100, 1000, dtype=np.int64),
    )


def _result(view: RoundView, pairs: IntArray, opinions: FloatArray) -> Feedback:
    s = len(pairs)
    number, yes, count = np.ones(s), np.ones(s, dtype=np.bool_), np.ones(s, dtype=np.int64)
    stages = dict.fromkeys(("dt_s", "lc_s", "ut_s", "seconds_per_iteration"), number)
    counts = dict.fromkeys(("arrivals", "num_samples"), count)
    return arrived(view, pairs, yes, number, **stages, **counts, opinions=opinions)


def _rounds(
    policy: QuickInitUcbPolicy, first: int, rounds: int, away: Callable[[int], IntArray | None]
) -> tuple[list[float], list[float]]:
    """Play; return CPU milliseconds and wall milliseconds of `select` + `learn`."""
    rng = np.random.default_rng(7)
    opinions = np.full(CLIENTS, np.nan)
    cpu, wall = [], []
    for t in range(first, first + rounds):
        view = _view(t, away(t))
        start, began = time.thread_time(), time.perf_counter()
        selection = policy.select(view, np.random.default_rng((1, t)))
        middle, paused = time.thread_time(), time.perf_counter()
        # Rewards of three digits, as accuracies are: groups tie, sums tie.
        opinions[0] = round(float(np.clip(rng.normal(0.7, 0.05), 0, 1)), 3)
        feedback = _result(view, selection.pairs, opinions)
        after, resumed = time.thread_time(), time.perf_counter()
        policy.learn(feedback)
        cpu.append(1e3 * (time.thread_time() - after + middle - start))
        wall.append(1e3 * (time.perf_counter() - resumed + paused - began))
    return cpu, wall


def _row(case: str, cpu: list[float], wall: list[float], bar: float | None) -> dict[str, object]:
    value = statistics.median(cpu[-100:])
    row: dict[str, object] = {
        "bench": "quick-init",
        "case": case,
        "clients": CLIENTS,
        "k": SIZE,
        "slots": len(cpu),
        "round_cpu_ms": round(value, 2),
        "worst_cpu_ms": round(max(cpu[-100:]), 2),
        "round_wall_ms": round(statistics.median(wall[-100:]), 2),
    }
    return row if bar is None else row | {"bar": bar, "met": value <= bar}


def quick_init() -> Iterator[dict[str, object]]:
    """A cold start of N / K groups, then 1000 slots that each find a new arm (mu = 1).

    Figures are of the last 100 rounds; those of the cold start are its own.
    """
    cold = CLIENTS // SIZE
    policy = QuickInitUcbPolicy(clients_per_round=SIZE, mu=1.0)
    yield _row("cold start", *_rounds(policy, 1, cold, lambda _: None), None)
    state = policy.state()
    walk = _rounds(policy, cold + 1, SLOTS, lambda _: None)
    yield _row("walk, mu 1", *walk, 5.0)

    def away(t: int) -> IntArray:
        last = policy.state()["arms"][-1].tolist()
        return np.array([last[t % SIZE], last[t % 7]], dtype=np.int64)

    partly = _rounds(policy, cold + SLOTS + 1, 100, away)
    yield _row("walk, two of the best away", *partly, None)

    small = QuickInitUcbPolicy(clients_per_round=SIZE, mu=0.01)
    small.restore(state)
    yield _row("mu 0.01", *_rounds(small, cold + 1, SLOTS, lambda _: None), 5.0)
    yield _memory(policy)


def _memory(grown: QuickInitUcbPolicy) -> dict[str, object]:
    """What a policy of 1000 slots holds, and the peak while it decides once more."""
    state = grown.state()
    view = _view(5000)
    tracemalloc.start()
    policy = QuickInitUcbPolicy(clients_per_round=SIZE, mu=1.0)
    policy.restore(state)
    pairs = policy.select(view, np.random.default_rng(1)).pairs
    policy.learn(_result(view, pairs, np.full(CLIENTS, 0.5)))
    held, peak = (value / 2**20 for value in tracemalloc.get_traced_memory())
    tracemalloc.stop()
    return {
        "bench": "quick-init-memory",
        "arms": len(state["arms"]),
        "held_mib": round(held, 1),
        "peak_mib": round(peak, 1),
        "bar": 100,
        "met": peak <= 100,
    }


def main() -> None:
    show(quick_init())


if __name__ == "__main__":
    main()
