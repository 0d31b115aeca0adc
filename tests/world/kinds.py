"""Kinds of worlds: the recipes that they run, and the fields that those need."""

from pathlib import Path

from fedagent_task.recipe.text import parse_recipe
from fedagent_testbed.kernel import Faults
from fedagent_testbed.world import VirtualFederation

RECIPE = """
name = "survival"
seed = 3
[model]
kind = "softmax"
features = 64
classes = 10
[learner]
name = "none"
[rounds]
count = 6
deadline_s = 3
max_wait_s = 5
min_updates = 2
merge_every = 2
merge_timeout_s = 3
[budget]
per_edge = 1.0
total = 50
"""
RENTS = (70_000, 310_000, 150_000)
BEST = 2
"""Neighbours that volunteer."""
RELEASES = 8
ROUGH = Faults(loss=0.05, duplicate=0.1, delay_s=0.003, jitter_s=0.02)
EACH = ("rounds.merge_every=1", "rounds.min_updates=1")

SETS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "evaluated": (
        "opinions.mode=report",
        "opinions.timeout_s=1",
        "policy.name=quick-init-ucb",
        "policy.params.clients_per_round=3",
        "rounds.merge_every=1",
    ),
    "peers": (
        "opinions.mode=peers",
        "opinions.timeout_s=3",
        f"peers.best={BEST}",
        "policy.name=volunteers",
        *EACH,
    ),
    "placed": (
        "policy.name=all",
        "rounds.count=12",
        *EACH,
        "budget.total=6",
        "placement.name=budgeted-ucb",
        "iterations.name=primal-dual",
        "iterations.params.load_limit_s=0.4",
        "iterations.params.start=8",
    ),
}
KINDS = {
    **SETS,
    "private": (
        "privacy.mode=central",
        "rounds.weighting=uniform",
        f"privacy.releases={RELEASES}",
        *EACH,
    ),
    "noisy": (*SETS["evaluated"], "opinions.epsilon=1.0", "opinions.timeout_s=5"),
}
"""With those that need OpenDP."""
OPTIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "evaluated": {"edges": 2, "agents": 4},
    "peers": {"agents": 6},
    "placed": {"edges": 3, "agents": 4, "rents": RENTS, "iteration_s": 0.02, "arrivals": 12},
    "private": {},
    "noisy": {"edges": 2, "agents": 4},
}


def world(
    kind: str, directory: Path, seed: int, *sets: str, **options: object
) -> VirtualFederation:
    """Return a federation of a kind, with nothing noted and nothing checked."""
    recipe = parse_recipe(RECIPE, (*KINDS[kind], *sets))
    return VirtualFederation(directory, recipe, seed=seed, **{**OPTIONS[kind], **options})  # type: ignore[arg-type] # keyword-only
