"""Whether the claim gap tells who lies: COCS's radio, a fifth claim twice their compute.

`random` orders for 200 rounds. Of each seed: the median gap of those who lie and of the
others, and how often a liar's is the larger of a pair (1 is always).

    python -m bench.claims --seeds 10
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedagent_coordinator import policies
from fedagent_coordinator.core.claims import ClaimGaps
from fedagent_coordinator.policies import Purpose, round_rng
from fedagent_testbed.study import load_recipe, make_world
from fedagent_testbed.study.comparison import figure
from fedagent_testbed.worlds.population import Population

from .rows import show

ROUNDS = 200
SETS = ("world.liars.share=0.2", "world.liars.factor=2", f"rounds.count={ROUNDS}")


def told_apart(seed: int) -> tuple[float, float, float]:
    """Return the median gap of liars and of others, and the share of pairs in their order."""
    recipe = load_recipe("cocs-decisions", SETS)
    world, policy, gaps = make_world(recipe, seed), policies.create("random"), ClaimGaps()
    for t in range(1, ROUNDS + 1):
        view = world.view(t)
        pairs = policy.select(view, round_rng(seed, t, Purpose.SELECT)).pairs
        gaps.learn(replace(world.play(view, pairs), view=replace(view, truth=None)))
    found = gaps.of(recipe.world.clients)
    known, liar = np.isfinite(found), Population(recipe, seed).liar
    lying, honest = found[known & liar], found[known & ~liar]
    order = float((lying[:, None] > honest[None, :]).mean())
    return float(np.median(lying)), float(np.median(honest)), order


def rows(seeds: int = 10) -> Iterator[dict[str, object]]:
    each = [told_apart(seed) for seed in range(seeds)]
    names = ("gap_of_liars", "gap_of_others", "in_order")
    figures = {
        name: figure(list(column)).text(3)
        for name, column in zip(names, zip(*each, strict=True), strict=True)
    }
    yield {"bench": "claims", "seeds": seeds, "rounds": ROUNDS, **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    show(rows(parser.parse_args().seeds))


if __name__ == "__main__":
    main()
