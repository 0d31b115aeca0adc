"""The papers' experiments with training, our curves beside their claims.

    python -m bench.papers                       # all of them; an hour on two cores
    python -m bench.papers --row cocs-mnist --seeds 3
    python -m bench.papers --row gda-mnist       # Table I; the other figures: bench.goals

All but gda-digits need FEDAGENT_DATA (MNIST, Fashion-MNIST). What they show is in
`docs/experiments.md`.
"""

import argparse
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from fedagent_testbed.study import Comparison, compare, figure, load_recipe

from . import goals
from .digits import gda_digits
from .rows import show

Row = dict[str, object]


def cocs_mnist(seeds: int = 10) -> Iterator[Row]:
    """Rounds and seconds to 70 % on MNIST, two labels per client."""
    result = compare(load_recipe("cocs-mnist"), seeds=seeds, jobs=2)
    at = {name: _to_target(result, name, 0.7) for name in result.histories}
    rounds = {name: figure(first).mean for name, (first, _) in at.items()}
    order = [rounds[name] for name in ("oracle", "adaptive", "cocs", "random")]
    ordered = None not in order and all(float(str(a)) <= float(str(b)) for a, b in pairwise(order))
    best = rounds["oracle"]
    ours = rounds["adaptive"]
    yield {
        "bench": "cocs-mnist",
        "seeds": seeds,
        "rounds_to_70": {name: figure(first).record() for name, (first, _) in at.items()},
        "seconds_to_70": {name: figure(later).record() for name, (_, later) in at.items()},
        "paper_rounds": {"oracle": 111, "cocs": 121, "cucb": 134, "linucb": 156, "random": 161},
        "bar": "oracle <= adaptive <= cocs < random in rounds; adaptive <= 1.05 oracle",
        "order_holds": ordered,
        "met": ordered and ours is not None and best is not None and ours <= 1.05 * best,
    }


def cocs_settings(seeds: int = 5) -> Iterator[Row]:
    """Successes in 1000 rounds for the paper's budgets and deadlines (COCS, Fig. 4)."""
    names = ("adaptive", "cocs", "random")
    for key, values in (("budget.per_edge", (3.5, 5, 10)), ("rounds.deadline_s", (2, 4, 8))):
        for value in values:
            sets = [f"{key}={value}"]
            if key == "rounds.deadline_s":
                sets.append("rounds.max_wait_s=16")
            result = compare(load_recipe("cocs-decisions", sets), names, seeds=seeds, jobs=2)
            wins = {
                name: figure([float(run["wins"].sum()) for run in runs]).record()
                for name, runs in {**result.histories, **result.reference}.items()
            }
            yield {"bench": "cocs-settings", key: value, "seeds": seeds, "successes": wins}


def rbcs_fashion(seeds: int = 2) -> Iterator[Row]:
    """Accuracy against rounds and time for RBCS-F and its baselines; Dirichlet 1, 10, infinity."""
    for gamma in ("1.0", "10.0", "inf"):
        dealt = "training.partition=iid" if gamma == "inf" else f"training.gamma={gamma}"
        curves: dict[str, object] = {}
        for name, sets in (
            ("rbcs-f V=1", ("policies.rbcs-f.V=1.0",)),
            ("rbcs-f V=20", ("policies.rbcs-f.V=20.0",)),
            ("rbcs-f V=50", ("policies.rbcs-f.V=50.0",)),
            ("random", ()),
            ("fedcs", ()),
            ("fastest", ()),
        ):
            recipe = load_recipe("rbcs-f-fashion", (dealt, *sets))
            policy = name.split()[0]
            result = compare(recipe, [policy], seeds=seeds, jobs=2)
            curves[name] = _curve(result, policy)
        yield {"bench": "rbcs-f-fashion", "gamma": gamma, "seeds": seeds, "curves": curves}


def _to_target(
    result: Comparison, name: str, target: float
) -> tuple[list[float | None], list[float | None]]:
    """Return each seed's first round and second at a target."""
    runs = result.histories[name]
    first = [run.first_at(target) for run in runs]
    seconds = [
        None if at is None else float(run["seconds"][:at].sum())
        for run, at in zip(runs, first, strict=True)
    ]
    return list(first), seconds


def _curve(result: Comparison, name: str) -> dict[str, object]:
    """Return accuracy after some rounds and some seconds, means over seeds."""
    runs = result.histories[name]
    by_round = {
        str(t): float(np.mean([run["accuracy"][t - 1] for run in runs]))
        for t in (50, 100, 250, 500)
    }
    by_time = {}
    for seconds in (250.0, 500.0, 1000.0, 2000.0):
        values = []
        for run in runs:
            done = int(np.searchsorted(np.cumsum(run["seconds"]), seconds))
            tested = run["accuracy"][:done][np.isfinite(run["accuracy"][:done])]
            values.append(float(tested[-1]) if len(tested) else float("nan"))
        by_time[f"{seconds:g} s"] = float(np.mean(values))
    return {
        "by_round": by_round,
        "by_time": by_time,
        "seconds_per_round": float(np.mean([run["seconds"].mean() for run in runs])),
        "min_rate": float(np.mean([run.rates().min() for run in runs])),
    }


ROWS: dict[str, Callable[[int], Iterator[Row]]] = {
    "cocs-mnist": cocs_mnist,
    "cocs-settings": cocs_settings,
    "gda-mnist": lambda seeds: goals.measured("table", seeds),
    "gda-digits": gda_digits,
    "rbcs-f-fashion": rbcs_fashion,
}


def rows() -> Iterator[Row]:
    yield from cocs_mnist()
    yield from cocs_settings()
    yield from goals.measured("table", 2)
    yield from gda_digits()
    yield from rbcs_fashion()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", choices=list(ROWS))
    parser.add_argument("--seeds", type=int, default=2)
    chosen = parser.parse_args()
    found = ROWS[chosen.row](chosen.seeds) if chosen.row else rows()
    show(found)


if __name__ == "__main__":
    main()
