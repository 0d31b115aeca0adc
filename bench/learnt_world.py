"""Does a world learnt from one run rank policies as the true one does?

python -m bench.learnt_world [--seeds 2] [--policy random|linucb]

Ten worlds in which different policies lead. In each, one policy is recorded with exploration, a
world is learnt from that record alone, and five policies are played in the true world (the same
devices) and in the learnt one. Two policies are in order where their difference in the true world
is beyond two standard errors over its rounds; a world is ranked alike if no such two are swapped.
"""

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

import numpy as np

from fedagent_testbed.fit_world import fit_world
from fedagent_testbed.recipe import TestbedRecipe
from fedagent_testbed.study import load_recipe, play
from fedagent_testbed.study.history import History
from fedagent_testbed.study.selection import SelectionStudy
from fedagent_testbed.worlds.learnt import Learnt, write_learnt

from .rows import Row, Rows, show

WORLDS = (
    *("late-cheap", "dying", "repriced", "middling", "noise"),
    *("missing", "liars", "healing", "static-live", "flips"),
)
POLICIES = ("linucb", "cocs", "oort", "cheapest", "random")
ROUNDS, DRAWS, BAR = 300, 3, 0.8
SETS = ("clients=30", f"rounds.count={ROUNDS}")
EXPLORES = ("exploration=0.5", "exploration_bound=100")


def logged(name: str, policy: str, seed: int) -> Learnt:
    """Return what is learnt from one recorded run."""
    study = SelectionStudy(load_recipe(name, (*SETS, *EXPLORES)), policy, seed)
    study.log = []
    history = History(policy, seed)
    for t in range(1, ROUNDS + 1):
        study.play_round(t, history)
    return fit_world(study.log)


def recipe_of(tape: Learnt, folder: Path, budget: float) -> TestbedRecipe:
    """Return the recipe of a learnt world."""
    world, recipe = folder / "field.world", folder / "field.toml"
    write_learnt(tape, world)
    recipe.write_text(
        f'name = "learnt"\nworld = "learnt"\nclients = {len(tape.client)}\n'
        f"edges = {len(tape.edge)}\n[rounds]\ncount = {ROUNDS}\n"
        f"[budget]\nper_edge = {budget}\n[learnt]\nfile = '{world}'\n"
    )
    return load_recipe(recipe)


def measured(name: str, policy: str, seed: int) -> Row:
    """Return how one world is ranked."""
    plain = load_recipe(name, SETS)
    wins = {each: play(plain, each, seed)["wins"].astype(float) for each in POLICIES}
    true = {each: float(of.mean()) for each, of in wins.items()}
    with tempfile.TemporaryDirectory() as folder:
        learnt = recipe_of(logged(name, policy, seed), Path(folder), plain.budget.per_edge)
        means = {
            each: float(np.mean([play(learnt, each, draw)["wins"].mean() for draw in range(DRAWS)]))
            for each in POLICIES
        }
    swapped, ordered = 0, 0
    for one, two in itertools.combinations(POLICIES, 2):
        gap = wins[one] - wins[two]
        if abs(gap.mean()) > 2 * gap.std(ddof=1) / np.sqrt(len(gap)):
            ordered += 1
            swapped += int((gap.mean() > 0) != (means[one] > means[two]))
    return {
        "bench": "learnt-world",
        "world": name,
        "log": policy,
        "seed": seed,
        "true": [f"{each} {true[each]:.2f}" for each in _order(true)],
        "learnt": [f"{each} {means[each]:.2f}" for each in _order(means)],
        "identical": _order(true) == _order(means),
        "ordered": ordered,
        "swapped": swapped,
        "error": round(max(abs(means[each] / true[each] - 1) for each in POLICIES), 3),
        "met": not swapped,
    }


def _true(row: Row) -> list[str]:
    names = row["true"]
    assert isinstance(names, list)
    return names


def _order(means: dict[str, float]) -> list[str]:
    return sorted(means, key=lambda each: -means[each])


def rows(seeds: int = 2, policy: str = "random") -> Rows:
    """Yield a row per world and seed, and one of them all."""
    found = []
    for seed, name in itertools.product(range(3, 3 + seeds), WORLDS):
        found.append(measured(name, policy, seed))
        yield {**found[-1], "met": True}
    orders = {tuple(each.split()[0] for each in names) for names in map(_true, found)}
    alike = sum(not row["swapped"] for row in found)
    yield {
        "bench": "learnt-world",
        "log": policy,
        "worlds": len(found),
        "true_orders": len(orders),
        "alike": alike,
        "identical": sum(bool(row["identical"]) for row in found),
        "met": alike >= BAR * len(found),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--policy", default="random")
    given = parser.parse_args()
    sys.exit(0 if show(rows(given.seeds, given.policy)) else 1)
