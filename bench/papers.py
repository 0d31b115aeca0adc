"""The papers' experiments with training, our curves beside their claims.

    python -m bench.papers                       # all of them; an hour on two cores
    python -m bench.papers --row cocs-mnist --seeds 3
    python -m bench.papers --row gda-mnist --policies fixed,round-robin

All but gda-digits need FEDAGENT_DATA (MNIST, Fashion-MNIST). What they show is told in
`docs/experiments.md`.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from fedagent_testbed.study import Comparison, compare, load_recipe, play
from fedagent_testbed.study.compare import figure, run_jobs

from .digits import gda_digits

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


def gda_mnist(seeds: int = 2, slots: int = 200, names: Sequence[str] = ()) -> Iterator[Row]:
    """Gap of the policies over client sets to the best fixed set after T slots."""
    recipe = load_recipe("gda-mnist", (f"rounds.count={15 * slots}",))
    # Not by `compare`: its oracles would train too, and here everybody arrives.
    numbers = tuple(range(seeds))
    wanted = list(names) or list(recipe.compare)
    runs = run_jobs(play, recipe, wanted, numbers, 2, None, lambda _name, _seed, _total: None)
    result = Comparison(recipe, numbers, runs, {}, {})
    final = {name: _opinion(result, name, 5) for name in result.histories}
    best = figure(final["fixed"]).mean if "fixed" in final else None
    gap = {
        name: figure([100 * (1 - one / best) for one in values]).record()
        for name, values in final.items()
        if best
    }
    mean = gap.get("quick-init-ucb", {}).get("mean")
    yield {
        "bench": "gda-mnist",
        "seeds": seeds,
        "slots": slots,
        "opinion_of_last_5_slots": {n: figure(list(v)).record() for n, v in final.items()},
        "gap_percent": gap,
        "slots_to": {name: _slots_to(result, name) for name in result.histories},
        "slots_of_an_iid_client_and_of_another": {
            name: _pulls(result, name) for name in result.histories
        },
        "paper_gap_percent": {"quick-init-ucb": 1.44, "bp-ucb": 3.12},
        "paper_slots_of_500": [228.95, 90.34],
        "bar": "quick-init-ucb <= 1.44",
        "met": mean is None or (isinstance(mean, float) and mean <= 1.44),
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
                name: figure([float(run.wins.sum()) for run in runs]).record()
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
        None if at is None else float(run.seconds[:at].sum())
        for run, at in zip(runs, first, strict=True)
    ]
    return list(first), seconds


def _opinion(result: Comparison, name: str, slots: int) -> list[float]:
    """Return each seed's mean opinion at the ends of the last slots."""
    return [float(run.opinion[14::15][-slots:].mean()) for run in result.histories[name]]


def _slots_to(result: Comparison, name: str) -> dict[str, object]:
    """Return the slots until the mean opinion reached the paper's levels."""
    reached: dict[str, object] = {}
    for level in (0.75, 0.78, 0.82, 0.85):
        at = []
        for run in result.histories[name]:
            above = np.flatnonzero(run.opinion[14::15] >= level)
            at.append(float(above[0]) + 1 if len(above) else None)
        reached[str(level)] = figure(at).mean
    return reached


def _pulls(result: Comparison, name: str) -> list[float]:
    """Return in how many slots a client with all labels trained, and in how many another."""
    training = result.recipe.training
    slots = np.mean([run.counts for run in result.histories[name]], axis=0) / training.slot_rounds
    iid = training.iid_clients
    return [round(float(slots[:iid].mean()), 2), round(float(slots[iid:].mean()), 2)]


def _curve(result: Comparison, name: str) -> dict[str, object]:
    """Return accuracy after some rounds and some seconds, means over seeds."""
    runs = result.histories[name]
    by_round = {
        str(t): float(np.mean([run.accuracy[t - 1] for run in runs])) for t in (50, 100, 250, 500)
    }
    by_time = {}
    for seconds in (250.0, 500.0, 1000.0, 2000.0):
        values = []
        for run in runs:
            done = int(np.searchsorted(np.cumsum(run.seconds), seconds))
            tested = run.accuracy[:done][np.isfinite(run.accuracy[:done])]
            values.append(float(tested[-1]) if len(tested) else float("nan"))
        by_time[f"{seconds:g} s"] = float(np.mean(values))
    return {
        "by_round": by_round,
        "by_time": by_time,
        "seconds_per_round": float(np.mean([run.seconds.mean() for run in runs])),
        "min_rate": float(np.mean([run.rates().min() for run in runs])),
    }


ROWS: dict[str, Callable[[int], Iterator[Row]]] = {
    "cocs-mnist": cocs_mnist,
    "cocs-settings": cocs_settings,
    "gda-mnist": gda_mnist,
    "gda-digits": gda_digits,
    "rbcs-f-fashion": rbcs_fashion,
}


def rows() -> Iterator[Row]:
    """Yield every figure."""
    yield from cocs_mnist()
    yield from cocs_settings()
    yield from gda_mnist()
    yield from gda_digits()
    yield from rbcs_fashion()


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", choices=list(ROWS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--policies", default="", help="of gda-mnist: names with commas between")
    chosen = parser.parse_args()
    names = [name for name in chosen.policies.split(",") if name]
    if names and chosen.row != "gda-mnist":
        parser.error("--policies is for --row gda-mnist")
    if names:
        found = gda_mnist(chosen.seeds, names=names)
    else:
        found = ROWS[chosen.row](chosen.seeds) if chosen.row else rows()
    for row in found:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
