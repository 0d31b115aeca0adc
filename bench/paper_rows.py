"""Rows of the runs of `bench.paper_runs`: means over seeds with 95 % intervals."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fedagent_coordinator.policies.base import FloatArray
from fedagent_testbed.study import figure

from .kept import Run, Runs, part
from .paper_runs import CHECKPOINTS, HORIZON, NOISES
from .rows import Row

ROUNDS = (50, 100, 250, 500)
SECONDS = (250, 500, 1000, 2000)
SETTLED = 5
"""The mean of so many last tests counts as what a run ends with: single ones differ."""
ALPHA, DIMENSIONS = 1, 2
EXPONENT = (2 * ALPHA + DIMENSIONS) / (3 * ALPHA + DIMENSIONS)
"""Of T in the bound of COCS's regret (Theorem 2)."""
FIT_FROM = 280
Figures = dict[str, float | None]


def rows(name: str, path: Path) -> Iterator[Row]:
    """Yield what a part shows."""
    yield from ({"bench": f"papers-{name}", **row} for row in _ROWS[name](part(path, name)))


def by_round(run: Run, rounds: Sequence[int]) -> Figures:
    """Return the accuracy that was tested after these rounds."""
    tested = dict(zip(run["round"], run["accuracy"], strict=True))
    return {f"{t} rounds": tested.get(t) for t in rounds}


def by_time(run: Run, seconds: Sequence[int]) -> Figures:
    """Return the last accuracy that was tested by these virtual seconds."""
    done = {s: int(np.searchsorted(run["seconds"], s, side="right")) for s in seconds}
    return {f"{s} s": run["accuracy"][at - 1] if at else None for s, at in done.items()}


def last(run: Run) -> float:
    """Return what a run ends with."""
    return float(np.mean(run["accuracy"][-SETTLED:]))


def regrets(found: Runs, name: str, noise: int) -> FloatArray:
    """Return the regret against `oracle-p` on the same seeds, float64[seeds, checkpoints]."""
    best = {run["seed"]: run["wins"] for run in found[f"oracle-p, {noise}"]}
    runs = [run for run in found[f"{name}, {noise}"] if run["seed"] in best]
    return np.array([np.subtract(best[run["seed"]], run["wins"]) for run in runs], dtype=float)


def slope(regret: FloatArray) -> float | None:
    """Return the exponent of T that fits the mean regret; None where it falls below 1."""
    at = np.array(CHECKPOINTS, dtype=float)
    mean = regret.mean(axis=0)
    later = at >= FIT_FROM
    if (mean[later] < 1).any():
        return None
    return float(np.polyfit(np.log(at[later]), np.log(mean[later]), 1)[0])


def _curves(found: Runs) -> Iterator[Row]:
    for label, runs in found.items():
        ends = tuple(t for t in ROUNDS if t in runs[0]["round"])
        points = [
            {**by_round(run, ends), **by_time(run, SECONDS), "last": last(run)} for run in runs
        ]
        yield {
            "of": label,
            "seeds": len(runs),
            **_means(runs, ("seconds_per_round", "selected", "min_rate", "jain")),
            **_means(points, tuple(points[0])),
        }


def _reached(found: Runs) -> Iterator[Row]:
    keys = ("rounds_to", "seconds_to", "last", "seconds_per_round", "updates")
    for label, runs in found.items():
        there = sum(run["rounds_to"] is not None for run in runs)
        yield {"of": label, "seeds": len(runs), "reached": there, **_means(runs, keys)}


def _regret(found: Runs) -> Iterator[Row]:
    for noise in NOISES:
        best = np.mean([run["wins"][-1] for run in found.get(f"oracle-p, {noise}", [])])
        for label, runs in found.items():
            name = label.partition(", ")[0]
            if label != f"{name}, {noise}" or name == "oracle-p":
                continue
            regret = regrets(found, name, noise)
            at = {t: regret[:, CHECKPOINTS.index(t)] for t in (1000, HORIZON)}
            fitted = slope(regret)
            yield {
                "of": label,
                "seeds": len(runs),
                **{f"regret {t}": figure(list(values)).text(1) for t, values in at.items()},
                "share_of_oracle_p": round(1 - float(at[HORIZON].mean() / best), 4),
                "exponent": None if fitted is None else round(fitted, 3),
                "paper_exponent": EXPONENT,
                "explored": float(np.mean([run["explored"] for run in runs])),
            }


def _means(runs: Sequence[Run], keys: Sequence[str]) -> Row:
    return {key: figure([run[key] for run in runs]).text(4) for key in keys}


_ROWS: dict[str, Callable[[Runs], Iterator[Row]]] = {
    "fashion": _curves,
    "fashion-cnn": _curves,
    "uneven": _curves,
    "regret": _regret,
    "merge": _reached,
    "min-updates": _reached,
    "cifar-row": _curves,
}
