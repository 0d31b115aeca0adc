"""Off-policy estimates against the truth, and how fast recorded rounds are decided again.

The truth is what the other policy earns when it is run itself in the same seeded world. Logs are
of `random`, which explores a third of its choices, among devices that see one edge each.

python -m bench.replay [--seeds 100] [--part coverage|speed]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedagent_coordinator.books.models import recipe_in
from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.run_settings import decision_policies
from fedagent_task.recipe.text import parse_recipe
from fedagent_testbed.off_policy import NoSupportError, choices_of, estimated
from fedagent_testbed.replay import replay
from fedagent_testbed.study import load_recipe, make_policy, play
from fedagent_testbed.study.history import History
from fedagent_testbed.study.selection import SelectionStudy
from fedagent_testbed.world import VirtualFederation

from .rows import Row, Rows, show

STUDY = "cocs-decisions"
SETS = ("world.visible=1", "world.clients=30", "budget.per_edge=12", "rounds.count=300")
EXPLORES = ("policy.exploration=0.3", "policy.exploration_bound=100")
TARGETS = ("linucb", "adaptive", "cheapest", "round-robin")
ESTIMATES = ("ips", "doubly_robust")
BAR, ROUNDS_PER_S = 0.9, 500.0


def coverage(target: str, seeds: int) -> Row:
    """Return in how many seeded runs each 95 % interval holds the truth."""
    plain, exploring = load_recipe(STUDY, SETS), load_recipe(STUDY, (*SETS, *EXPLORES))
    held, errors, widths = ({name: list[float]() for name in ESTIMATES} for _ in range(3))
    refused = 0
    for seed in range(seeds):
        study, history = SelectionStudy(exploring, "random", seed), History("random", seed)
        study.log = []
        for t in range(1, exploring.rounds.count + 1):
            study.play_round(t, history)
        rounds = replay(study.log, make_policy(plain, target), seed=seed)
        try:
            found = estimated([c for one in rounds if (c := choices_of(one.round, one.pairs))])
        except NoSupportError:
            refused += 1
            continue
        truth = float(play(plain, target, seed)["wins"].mean())
        for name in ESTIMATES:
            value = getattr(found, name)
            held[name].append(value.low <= truth <= value.high)
            errors[name].append(value.mean - truth)
            widths[name].append(value.high - value.low)
    answered = seeds - refused
    row: Row = {"bench": "off-policy", "policy": target, "seeds": seeds, "refused": refused}
    for name in ESTIMATES:
        if answered:
            row[name] = {
                "held": int(sum(held[name])),
                "error": round(float(np.mean(errors[name])), 3),
                "width": round(float(np.mean(widths[name])), 3),
            }
    return {**row, "met": bool(answered and sum(held["doubly_robust"]) >= BAR * answered)}


def speed(policy: str, folder: Path) -> Row:
    """Return how many rounds of a database of its own a policy decides in a second."""
    sets = (f"policy.name={policy}", "rounds.count=120", "budget.per_edge=1.2")
    text = (Path(__file__).parent / "wire.toml").read_text(encoding="utf-8")
    VirtualFederation(folder, parse_recipe(text, sets), seed=0, agents=30).run(seconds=30_000)
    with open_reader(folder / "coordinator") as reader:
        run = reader.run()
        recipe = recipe_in(run.recipe)
        assert recipe is not None
        took, same = [], 0
        for _ in range(2):  # the first imports and compiles
            policies = decision_policies(recipe)
            began, wall = time.thread_time(), time.perf_counter()
            found = list(replay(reader.logged(run.run_id), policies.policy, seed=recipe.seed))
            took.append((time.thread_time() - began, time.perf_counter() - wall))
            same = sum(one.same for one in found)
    rate = len(found) / took[-1][0]
    return {
        "bench": "replay-speed",
        "policy": policy,
        "rounds": len(found),
        "same": same,
        "rounds_per_s": round(rate),
        "rounds_per_s_wall": round(len(found) / took[-1][1]),
        "met": rate >= ROUNDS_PER_S and same == len(found),
    }


def rows(seeds: int = 100, part: str = "") -> Rows:
    """Yield the rows of both parts, or of one."""
    if part in {"", "speed"}:
        for policy in ("cheapest", "random", "round-robin", "adaptive"):
            with tempfile.TemporaryDirectory() as folder:
                yield speed(policy, Path(folder))
    if part in {"", "coverage"}:
        for target in TARGETS:
            yield coverage(target, seeds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--part", choices=("speed", "coverage"), default="")
    given = parser.parse_args()
    sys.exit(0 if show(rows(given.seeds, given.part)) else 1)
