"""Value and seconds of the solvers on COCS's setting, one JSON row per solver.

N=50 clients, M=3 edges, all edges seen, B=3.5, cost = price U[0.5,2] x y U[2,4]; the
values are chances U[0,1] (`chance`) or drawn arrivals (`hindsight`). Ratios are to
the exact optimum of the same instance.

    python -m bench.solvers --instances 100
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import numpy as np

from fedagent_coordinator.solvers import AssignmentProblem, Solution, Solver
from fedagent_coordinator.solvers.density import DensitySolver
from fedagent_coordinator.solvers.exact import ExactSolver
from fedagent_coordinator.solvers.flgreedy import FlgreedySolver

from .rows import show

CLIENTS, EDGES, BUDGET = 50, 3, 3_500_000
INSTANCES = 100
DENSITY_BAR = 0.97
EXACT_BAR_S = 1.0


def instance(rng: np.random.Generator, values: str) -> AssignmentProblem:
    """Draw one round of the paper's setting."""
    price = rng.uniform(0.5, 2, CLIENTS) * rng.uniform(2, 4, CLIENTS)
    cost = (price * 1e6).astype(np.int64)
    client = np.repeat(np.arange(CLIENTS, dtype=np.int32), EDGES)
    chance = rng.random(CLIENTS * EDGES)
    arrives = rng.random(len(chance)) < chance
    return AssignmentProblem(
        value=chance if values == "chance" else arrives.astype(np.float64),
        cost=cost[client],
        client=client,
        edge=np.tile(np.arange(EDGES, dtype=np.int32), CLIENTS),
        budget=np.full(EDGES, BUDGET, dtype=np.int64),
    )


def rows(instances: int = INSTANCES) -> Iterator[dict[str, object]]:
    for values in ("chance", "hindsight"):
        rng = np.random.default_rng(2026)
        problems = [instance(rng, values) for _ in range(instances)]
        ExactSolver().solve(problems[0])  # the first call imports and warms up
        exact, seconds = timed(ExactSolver(), problems)
        row = figures("exact", values, exact, exact, seconds)
        row["proved"] = sum(s.bound is not None and s.bound <= s.value + 1e-6 for s in exact)
        row["bar"] = EXACT_BAR_S
        row["met"] = row["proved"] == instances and statistics.median(seconds) <= EXACT_BAR_S
        yield row
        density, seconds = timed(DensitySolver(), problems)
        row = figures("density", values, density, exact, seconds)
        row["bar"] = DENSITY_BAR
        row["met"] = statistics.mean(ratios(density, exact)) >= DENSITY_BAR
        yield row
        greedy, seconds = timed(DensitySolver(max_visits=0), problems)
        yield figures("density without moves", values, greedy, exact, seconds)
        bar = 1 / (1.3 * (2 + 2 * EDGES))
        found, seconds = timed(FlgreedySolver(), problems)
        row = figures("flgreedy", values, found, exact, seconds)
        row["bar"] = round(bar, 4)
        row["met"] = min(ratios(found, exact)) >= bar
        yield row


def timed(solver: Solver, problems: list[AssignmentProblem]) -> tuple[list[Solution], list[float]]:
    found, seconds = [], []
    for problem in problems:
        start = time.perf_counter()
        found.append(solver.solve(problem))
        seconds.append(time.perf_counter() - start)
    return found, seconds


def ratios(ours: list[Solution], exact: list[Solution]) -> list[float]:
    return [a.value / b.value for a, b in zip(ours, exact, strict=True) if b.value > 0]


def figures(
    solver: str, values: str, ours: list[Solution], exact: list[Solution], seconds: list[float]
) -> dict[str, object]:
    ratio = ratios(ours, exact)
    return {
        "bench": "solvers",
        "solver": solver,
        "values": values,
        "clients": CLIENTS,
        "edges": EDGES,
        "instances": len(ours),
        "seconds": round(statistics.median(seconds), 5),
        "seconds_max": round(max(seconds), 5),
        "ratio_mean": round(statistics.mean(ratio), 4),
        "ratio_min": round(min(ratio), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=INSTANCES)
    show(rows(parser.parse_args().instances))


if __name__ == "__main__":
    main()
