"""One round at scale: a million clients, a thousand edges, three seen by each.

    python -m bench.scale                        # adaptive, linucb, cocs; and 1000 clients
    python -m bench.scale --policy adaptive --clients 1000000

`select` + `learn` per round, median of the rounds after the first two, and the highest
resident memory above what the views take. Every edge can pay for about 15 clients.
"""

import argparse
import dataclasses
import resource
import statistics
import time
from collections.abc import Iterator

from fedagent_coordinator import policies
from fedagent_coordinator.policies import Purpose, round_rng
from fedagent_coordinator.policies.selection import check_selection
from fedagent_testbed.study import load_recipe, make_world, play
from fedagent_testbed.study.play import one_blas_thread

from .rows import show

BAR_S = 0.8
BAR_GB = 2.0
ROUNDS_PER_S = 250


def measure(
    name: str, *, clients: int = 1_000_000, edges: int = 1000, rounds: int = 6
) -> dict[str, object]:
    """Run a few rounds; the world's own time does not count."""
    recipe = load_recipe(
        "cocs-decisions",
        (
            f"world.clients={clients}",
            f"world.edges={edges}",
            "world.visible=3",
            "budget.per_edge=17.5",
        ),
    )
    world, policy = make_world(recipe, 1), policies.create(name)
    seconds: list[float] = []
    select_s: list[float] = []
    chosen, features = 0, list[str]()
    for t in range(1, rounds + 1):
        view = world.view(t)
        seen = dataclasses.replace(view, truth=None)
        if t == 1:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        selection = policy.select(seen, round_rng(1, t, Purpose.SELECT))
        decided = time.perf_counter()
        feedback = dataclasses.replace(world.play(view, selection.pairs), view=seen)
        learning = time.perf_counter()
        policy.learn(feedback)
        seconds.append(decided - began + time.perf_counter() - learning)
        select_s.append(decided - began)
        check_selection(view, selection.pairs)
        chosen, features = len(selection.pairs), list(view.feature_names)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    median = statistics.median(seconds[2:])
    big = clients == 1_000_000
    return {
        "bench": "scale",
        "policy": name,
        "clients": clients,
        "edges": edges,
        "pairs": 3 * clients,
        "features": features,
        "selected": chosen,
        "seconds_per_round": round(median, 4),
        "select_s": round(statistics.median(select_s[2:]), 4),
        "peak_gb_above_view": round(peak, 3),
        "bar": [BAR_S, BAR_GB] if big else None,
        "met": not big or (median <= BAR_S and peak <= BAR_GB),
    }


def virtual(clients: int = 1000, rounds: int = 400) -> dict[str, object]:
    """Return rounds per second of the whole loop, decisions only."""
    recipe = load_recipe(
        "cocs-decisions", (f"world.clients={clients}", "world.visible=3", f"rounds.count={rounds}")
    )
    began = time.perf_counter()
    play(recipe, "adaptive", 1)
    speed = rounds / (time.perf_counter() - began)
    return {
        "bench": "virtual-time",
        "policy": "adaptive",
        "clients": clients,
        "rounds_per_second": round(speed, 1),
        "bar": ROUNDS_PER_S,
        "met": speed >= ROUNDS_PER_S,
    }


def rows() -> Iterator[dict[str, object]]:
    # As the roles run (`fedagent_cli.__main__`).
    with one_blas_thread():
        yield virtual()
        for name in ("adaptive", "linucb", "cocs"):
            yield measure(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy")
    parser.add_argument("--clients", type=int, default=1_000_000)
    chosen = parser.parse_args()
    with one_blas_thread():
        show([measure(chosen.policy, clients=chosen.clients)] if chosen.policy else rows())


if __name__ == "__main__":
    main()
