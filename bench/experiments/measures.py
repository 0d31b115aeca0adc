"""What is kept of a run: figures by name; ``name@x`` is a point of a curve."""

from collections.abc import Callable

import numpy as np

from fedagent_testbed.study import History, TestbedRecipe
from fedagent_testbed.study.history import jain

Figures = dict[str, float | None]
CHECKPOINTS = (100, 280, 550, 1000, 1500, 2000, 2500, 3000)
AT_ROUNDS = (5, 10, 20, 40, 50, 60, 100, 200, 300, 400, 500)
AT_SECONDS = (150, 250, 300, 500, 600, 1000, 2000)
LEVELS = (0.75, 0.78, 0.82, 0.85)
SMOOTH, LAST, SETTLED = 5, 10, 5
"""Accuracies whose mean must reach a target; the last of a run; the last tests of a curve."""


def who(run: History, _: TestbedRecipe) -> Figures:
    """How fast, and how evenly clients were selected."""
    rates = run.rates()
    return {
        "seconds_per_round": float(run["seconds"].mean()),
        "min_rate": float(rates.min()),
        "jain": jain(rates),
        "clients_per_round": float(run["selected"].mean()),
    }


def wins(run: History, _: TestbedRecipe) -> Figures:
    """Updates in time, and the rounds that explored."""
    total = run["wins"].cumsum()
    at: Figures = {f"wins@{t}": float(total[t - 1]) for t in CHECKPOINTS if t <= len(run)}
    return {"wins": float(total[-1]), "explored": float(run["explored"].sum()), **at}


def utility(run: History, recipe: TestbedRecipe) -> Figures:
    """Utility, and who is ordered against who could deliver (ALGORITHMS section 9)."""
    seen = run.coverage
    return {
        "utility": float(run.utility(recipe.world.utility).sum()),
        "never_rate": seen.never_rate if seen else None,
        "back_rounds": seen.back_rounds if seen else None,
        "left_out": seen.left_out if seen else None,
    }


def reached(run: History, recipe: TestbedRecipe) -> Figures:
    """Rounds and virtual seconds to an accuracy of 70 %, and the accuracy at the end."""
    first = run.first_at(0.7)
    return {
        "rounds_to_70": None if first is None else float(first),
        "seconds_to_70": None if first is None else float(run["seconds"][:first].sum()),
        "last": float(np.nanmean(run["accuracy"][-LAST:])),
        "updates": float(run["wins"].sum()),
        **who(run, recipe),
    }


def target(run: History, recipe: TestbedRecipe) -> Figures:
    """When the mean of five accuracies reached 0.77 (clothes) or 0.82 (stream); else the end."""
    accuracy, seconds = run["accuracy"], run["seconds"].cumsum()
    smooth = np.convolve(accuracy, np.ones(SMOOTH) / SMOOTH, mode="valid")
    there = np.flatnonzero(smooth >= (0.82 if recipe.world.training.dataset == "a9a" else 0.77))
    at = int(there[0]) + SMOOTH - 1 if len(there) else len(accuracy) - 1
    return {
        "reached": float(bool(len(there))),
        "rounds": at + 1.0,
        "seconds": float(seconds[at]),
        "accuracy": float(accuracy[-LAST:].mean()),
    }


def curve(run: History, recipe: TestbedRecipe) -> Figures:
    """Accuracy over rounds and over virtual seconds, and who trained."""
    tested = np.flatnonzero(np.isfinite(run["accuracy"]))
    accuracy, seconds = run["accuracy"][tested], run["seconds"].cumsum()[tested]
    by_round = dict(zip((tested + 1).tolist(), accuracy.tolist(), strict=True))
    done = {s: int(np.searchsorted(seconds, s, side="right")) for s in AT_SECONDS}
    return {
        "last": float(accuracy[-SETTLED:].mean()),
        **{f"accuracy@{t}": by_round[t] for t in AT_ROUNDS if t in by_round},
        **{f"by_second@{s}": float(accuracy[at - 1]) for s, at in done.items() if at},
        **who(run, recipe),
    }


def slots(run: History, recipe: TestbedRecipe) -> Figures:
    """Mean opinions at the ends of slots, the slots to the paper's levels, and who trained."""
    length = recipe.world.training.slot_rounds
    end = slice(length - 1, None, length)
    opinion, accuracy = run["opinion"][end], run["accuracy"][end]
    iid = recipe.world.training.iid_clients
    trained = run.counts / length
    levels: Figures = {}
    for level in LEVELS:
        at = np.flatnonzero(opinion >= level)
        levels[f"slots_to_{level:g}"] = float(at[0]) + 1 if len(at) else None
    quarter = max(1, len(opinion) // 4)
    return {
        "opinion": float(opinion[-quarter:].mean()),
        "tested": float(np.nanmean(accuracy[-quarter:])),
        "iid_slots": float(trained[:iid].mean()),
        "other_slots": float(trained[iid:].mean()),
        **levels,
    }


def streams(run: History, _: TestbedRecipe) -> Figures:
    """Latency, loss and load of a run of BAS."""
    peak = float(run["peak_s"].max()) if len(run) else None
    return {
        "latency_s": float(run.latency_s.sum()),
        "compute_s": float(run["compute_s"].sum()),
        "transfer_s": float(run["transfer_s"].sum()),
        "final_loss": run.final_loss,
        "mean_loss": run.mean_loss,
        "rounds": float(len(run)),
        "latency_of_a_round": float(run.latency_s.mean()),
        "rho": float(run["rho"].mean()),
        "peak_s": peak,
        "within_limit": run.within_limit,
        "over_s": float(run["over_s"].sum()),
        "error": run.error(),
        "persistence": run.error("naive"),
    }


MEASURES: dict[str, Callable[[History, TestbedRecipe], Figures]] = {
    "who": who,
    "wins": wins,
    "utility": utility,
    "reached": reached,
    "target": target,
    "curve": curve,
    "slots": slots,
    "streams": streams,
}
