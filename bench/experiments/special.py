"""Experiments that are no run of a testbed recipe under a policy, by name."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from fedagent_coordinator import policies
from fedagent_coordinator.core.trust import Trust
from fedagent_coordinator.policies import Purpose, create, round_rng
from fedagent_coordinator.policies.base import FloatArray
from fedagent_testbed.learning.trainer import FederatedLearner
from fedagent_testbed.study import History, TestbedRecipe, load_recipe, make_world
from fedagent_testbed.study.play import one_blas_thread
from fedagent_testbed.worlds.base import spawned_rng
from fedagent_testbed.worlds.population import Population

from . import agreement, client_sets, constants, robust
from .measures import Figures, curve
from .table import Line, line

CALIBRATED = (
    *("mnist-160", "mnist-160-live", "static-live", "late-cheap", "dying", "flips"),
    *("bad-edge", "correlated", "middling", "noise", "cold", "liars"),
)
BINS, BEGIN, CALIBRATED_ROUNDS = 10, 50, 500
SELECTED, UNEVEN = 8, 1 << 26
"""Clients of a round, and the first spawn key of the shares of uneven selection."""


def uneven(name: str, seeds: int, only: str) -> Iterator[Line]:
    """RBCS-F, Fig. 5: clients drawn in each round by shares out of Dir(gamma2), drawn once."""
    for labels in ("1", "10", "inf"):
        dealt = (
            "world.training.partition=iid"
            if labels == "inf"
            else f"world.training.gamma={float(labels)}"
        )
        recipe = load_recipe("rbcs-f-fashion", [dealt, "world.training.evaluate_every=10"])
        base: list[Figures] = []
        for gamma in ("inf", "10", "1", "0.1"):
            if only in (case := f"{labels}, {gamma}"):
                runs = [curve(drawn(recipe, float(gamma), seed), recipe) for seed in range(seeds)]
                yield line(name, case, runs, base)
                base = base or runs


def shares(gamma: float, clients: int, seed: int) -> FloatArray:
    """Return every client's share of the selection, float64[N]; all alike without end."""
    if np.isinf(gamma):
        return np.full(clients, 1 / clients)
    # Eight of those available are wanted, so that none may be impossible.
    floored = np.maximum(spawned_rng(seed, UNEVEN).dirichlet(np.full(clients, gamma)), 1e-12)
    return np.asarray(floored / floored.sum(), dtype=np.float64)


def drawn(recipe: TestbedRecipe, gamma: float, seed: int) -> History:
    """Let clients train that are drawn by their shares among the available ones."""
    share = shares(gamma, recipe.world.clients, seed)
    with one_blas_thread():
        world, learner = make_world(recipe, seed), FederatedLearner(recipe, seed)
        history = History("", seed)
        for t in range(1, recipe.rounds.count + 1):
            view = world.view(t)
            there = np.flatnonzero(view.client_available[view.pair_client])
            chance = share[view.pair_client[there]]
            rng = round_rng(seed, t, Purpose.SELECT)
            chosen = rng.choice(there, SELECTED, replace=False, p=chance / chance.sum())
            feedback = world.play(view, np.sort(chosen))
            learner.advance(feedback)
            tested = t % recipe.world.training.evaluate_every == 0
            history.count(view.pair_client[feedback.pairs], recipe.world.clients)
            history.rows.append(
                {
                    "accuracy": learner.accuracy() if tested else np.nan,
                    "seconds": float(feedback.tau_s.max()),
                    "selected": SELECTED,
                }
            )
    return history


def calibration(name: str, seeds: int, only: str) -> Iterator[Line]:
    """Forecasts of `adaptive` of the orders after round 50, by tenths: what share arrived.

    `error` is the mean distance of the two, weighed by orders; `skill` is 1 - Brier score / that
    of a forecaster who knows the mean alone.
    """
    for world in CALIBRATED:
        if only in world:
            yield line(name, world, [reliability(world, seed) for seed in range(seeds)])


def reliability(name: str, seed: int) -> Figures:
    """Play a world with `adaptive`."""
    recipe = load_recipe(name, [f"rounds.count={CALIBRATED_ROUNDS}"])
    world, policy = make_world(recipe, seed), create("adaptive")
    forecasts, outcomes = list[FloatArray](), list[FloatArray]()
    for t in range(1, CALIBRATED_ROUNDS + 1):
        view = world.view(t)
        seen = replace(view, truth=None)
        selection = policy.select(seen, round_rng(seed, t, Purpose.SELECT))
        feedback = world.play(view, selection.pairs)
        policy.learn(replace(feedback, view=seen))
        if t > BEGIN:
            forecasts.append(selection.scores[feedback.pairs])
            outcomes.append(feedback.X.astype(np.float64))
    p, x = np.concatenate(forecasts), np.concatenate(outcomes)
    tenth = np.minimum((p * BINS).astype(np.int64), BINS - 1)
    bins = [(b, tenth == b) for b in range(BINS) if (tenth == b).any()]
    mean = float(x.mean())
    brier = float(((p - x) ** 2).mean())
    return {
        "error": float(sum(abs(p[r].mean() - x[r].mean()) * r.sum() for _, r in bins) / len(p)),
        "skill": 1.0 - brier / max(mean * (1 - mean), 1e-9),
        "orders": float(len(p)),
    }


def claims(name: str, seeds: int, _: str) -> Iterator[Line]:
    """Does the claim gap tell who lies: a fifth of COCS's clients claim twice their compute.

    `in_order` is how often a liar's gap is the larger of a pair.
    """
    sets = ("world.liars.share=0.2", "world.liars.factor=2", "rounds.count=200")
    recipe, runs = load_recipe("cocs-decisions", sets), list[Figures]()
    for seed in range(seeds):
        world, policy, trust = make_world(recipe, seed), policies.create("random"), Trust()
        for t in range(1, recipe.rounds.count + 1):
            view = world.view(t)
            pairs = policy.select(view, round_rng(seed, t, Purpose.SELECT)).pairs
            trust.learn(replace(world.play(view, pairs), view=replace(view, truth=None)))
        found = trust.gaps(recipe.world.clients)
        known, liar = np.isfinite(found), Population(recipe, seed).liar
        lying, honest = found[known & liar], found[known & ~liar]
        runs.append(
            {
                "gap_of_liars": float(np.median(lying)),
                "gap_of_others": float(np.median(honest)),
                "in_order": float((lying[:, None] > honest[None, :]).mean()),
            }
        )
    yield line(name, "a fifth lie", runs)


ABOUT: dict[str, tuple[str, int]] = {
    "agreement": ("GDA, section V", 250),
    "rbcs-uneven": ("RBCS-F, Fig. 5", 5),
    "calibration": ("ours", 3),
    "claims": ("ours (ALGORITHMS section 8)", 10),
    "robust-digits": ("ours: attacks on aggregation", 3),
    "robust-fashion": ("ours: attacks on aggregation", 3),
    **client_sets.ABOUT,
    **constants.ABOUT,
}
"""Paper, and how many seeds (of client sets: trials) the table has."""
EXPERIMENTS: dict[str, Callable[[str, int, str], Iterator[Line]]] = {
    "agreement": agreement.lines,
    "rbcs-uneven": uneven,
    "calibration": calibration,
    "claims": claims,
    "robust-digits": robust.lines,
    "robust-fashion": robust.lines,
    **dict.fromkeys(client_sets.ABOUT, client_sets.lines),
    **dict.fromkeys(constants.ABOUT, constants.lines),
}
