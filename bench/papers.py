"""The papers' experiments with training, our curves beside their claims.

    python -m bench.papers                       # all of them; an hour on two cores
    python -m bench.papers --row cocs-mnist --seeds 3
    python -m bench.papers --row gda-mnist       # Table I; the other figures: bench.goals
    python -m bench.papers --row fashion         # RBCS-F, Fig. 6 and 7
    python -m bench.papers --row regret --seeds 0    # play nothing, show what the file holds

Rows of `bench.paper_runs` keep every run in docs/images/papers-runs.jsonl as soon as it is over
and go on where they were stopped; delete lines to measure anew. All but regret, cocs-settings and
gda-digits need FEDAGENT_DATA (MNIST, Fashion-MNIST), the networks torch. What they show is in
`docs/experiments.md`, the pictures are drawn by `bench.plots`.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

from fedagent_testbed.study import compare, figure, load_recipe

from . import goals, paper_rows, paper_runs
from .digits import gda_digits
from .kept import play_missing
from .rows import ROOT, Row, show

RUNS = ROOT / "docs" / "images" / "papers-runs.jsonl"


def cocs_mnist(seeds: int = 10) -> Iterator[Row]:
    """Rounds and seconds to 70 % on MNIST, two labels per client."""
    result = compare(load_recipe("cocs-mnist"), seeds=seeds, jobs=2)
    at = {name: result.to_target(name, 0.7) for name in result.histories}
    rounds = {name: first.mean for name, (first, _) in at.items()}
    order = [rounds[name] for name in ("oracle", "adaptive", "cocs", "random")]
    ordered = None not in order and all(float(str(a)) <= float(str(b)) for a, b in pairwise(order))
    best = rounds["oracle"]
    ours = rounds["adaptive"]
    yield {
        "bench": "cocs-mnist",
        "seeds": seeds,
        "rounds_to_70": {name: first.record() for name, (first, _) in at.items()},
        "seconds_to_70": {name: later.record() for name, (_, later) in at.items()},
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


def kept(name: str, seeds: int, path: Path = RUNS) -> Iterator[Row]:
    """Play what the file of runs lacks of a part, and show the part; no seeds: play nothing."""
    jobs, _ = paper_runs.PARTS[name]
    play_missing(path, jobs(), range(seeds))
    yield from paper_rows.rows(name, path)


ROWS: dict[str, tuple[Callable[[int], Iterator[Row]], int]] = {
    "cocs-mnist": (cocs_mnist, 10),
    "cocs-settings": (cocs_settings, 5),
    "gda-mnist": (lambda seeds: goals.measured("table", seeds), 2),
    "gda-digits": (gda_digits, 2),
}
"""What a row plays, and how many seeds the documents show; those of `paper_runs.PARTS` aside."""


def rows() -> Iterator[Row]:
    for found, seeds in ROWS.values():
        yield from found(seeds)
    for name, (_, seeds) in paper_runs.PARTS.items():
        yield from kept(name, seeds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.papers", description=__doc__)
    parser.add_argument("--row", choices=[*ROWS, *paper_runs.PARTS])
    parser.add_argument("--seeds", type=int, help="0 plays nothing that a file keeps")
    parser.add_argument("--runs", type=Path, default=RUNS)
    chosen = parser.parse_args()
    for name in [chosen.row] if chosen.row else [*ROWS, *paper_runs.PARTS]:
        found, seeds = ROWS.get(name, (None, 0))
        if found is None:
            found, seeds = partial(kept, name, path=chosen.runs), paper_runs.PARTS[name][1]
        show(found(seeds if chosen.seeds is None else chosen.seeds))


if __name__ == "__main__":
    main()
