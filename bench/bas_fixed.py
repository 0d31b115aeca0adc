"""What iteration control saves against every fixed number, at the same placement.

The measure was chosen before any control was measured: cumulative latency at equal loss. Equal is a
mean over seeds within 0.005 of the least of all pairs, as in the paper's table; the loss is that
after the last round, or, where streams change, the mean over all rounds, because the model is in
use all the time. The fixed number is the best in hindsight: of those with equal loss, the one of
least mean latency on the same seeds.
"""

import re
from typing import Literal

import numpy as np

from fedagent_testbed.study import Comparison, compare, figure, load_recipe
from fedagent_testbed.study.streams import OURS, PAPERS, RENTED

Row = dict[str, object]
Loss = Literal["final_loss", "mean_loss"]
STREAMS = ("bas-drift", "bas-burst", "bas-throttle", "bas-plateau")
FIRST_SEED = 10


def stream(name: str, *, seeds: int = 10, jobs: int = 2) -> Row:
    """Return every fixed number, ours and the paper's control on one of the changing streams."""
    result = compare(load_recipe(name), ["fixed-n"], seeds=seeds, first_seed=FIRST_SEED, jobs=jobs)
    keys = ("latency_s", "compute_s", "mean_loss", "final_loss", "rho", "rounds", "peak_s")
    saved = {one: saving(result, one, "mean_loss") for one in (OURS, PAPERS)}
    ours = saved[OURS]
    low = _number(ours, "mean") - _number(ours, "ci95")
    return {
        "bench": name,
        "seeds": seeds,
        "table": {
            pair: {
                **{key: _rounded(result, pair, key) for key in keys},
                "equal_loss": result.reaches_best(pair, "mean_loss"),
            }
            for pair in result.histories
        },
        "saved": saved,
        "bar": "equal mean loss, and seconds saved against the best fixed number above 0, paired",
        "met": bool(ours["equal_loss"]) and low > 0,
    }


def saving(result: Comparison, name: str, loss: Loss) -> Row:
    """Return the seconds that a control saves against the best fixed number of its placement."""
    place = name.partition("+")[2]
    fixed = [one for one in result.histories if re.fullmatch(rf"fixed-[0-9]+\+{place}", one)]
    equal = [one for one in fixed if result.reaches_best(one, loss)]
    best = min(equal or fixed, key=lambda one: _latency(result, one).mean())
    less = _latency(result, best) - _latency(result, name)
    frontier = _at_equal_loss(result, fixed, result.figures(name)[loss].mean or 0.0, loss)
    return {
        "best_fixed": best,
        "equal_loss": result.reaches_best(name, loss),
        **figure(less.tolist()).record(),
        "fixed_of_the_same_loss_s": frontier,
        "latency_s": float(_latency(result, name).mean()),
    }


def renting(result: Comparison) -> Row:
    """Return what rented edges save: every fixed number's latency with and without."""
    return {
        one: {
            pair: round(float(_latency(result, pair).mean()), 1)
            for pair in result.histories
            if pair.startswith(one.removesuffix(RENTED))
        }
        for one in result.histories
        if re.fullmatch(rf"fixed-[0-9]+\+{RENTED}", one)
    }


def _at_equal_loss(result: Comparison, fixed: list[str], wanted: float, loss: Loss) -> float | None:
    """Return the latency at which fixed numbers, mixed at random, have a loss; None if never."""
    losses = [result.figures(one)[loss].mean or 0.0 for one in fixed]
    seconds = [float(_latency(result, one).mean()) for one in fixed]
    for k, one in enumerate(losses):
        if one <= wanted:
            if k == 0:
                return seconds[0]
            return float(np.interp(wanted, [one, losses[k - 1]], [seconds[k], seconds[k - 1]]))
    return None


def _latency(result: Comparison, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([float(run.latency_s.sum()) for run in result.histories[name]])


def _rounded(result: Comparison, name: str, key: str) -> list[float | None]:
    one = result.figures(name)[key]
    return [None if v is None else round(v, 4) for v in (one.mean, one.ci95)]


def _number(row: Row, key: str) -> float:
    value = row[key]
    return float(value) if isinstance(value, float) else 0.0
