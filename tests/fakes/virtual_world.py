"""Whole federations in virtual time, by kind, and what must hold of each at its end."""

import hashlib
from bisect import bisect_left
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from fedagent_coordinator.books.reader import open_reader
from fedagent_task.recipe import parse_recipe
from fedagent_testbed.kernel import Faults
from fedagent_testbed.roles import AGENT_PRICE_MICRO
from fedagent_testbed.world import Ending, VirtualFederation

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
ROUNDS = 6
RENTS = (70_000, 310_000, 150_000)
BEST = 2
"""Neighbours that volunteer."""
ROUGH = Faults(loss=0.05, duplicate=0.1, delay_s=0.003, jitter_s=0.02)

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
        "rounds.merge_every=1",
        "rounds.min_updates=1",
    ),
    "placed": (
        "policy.name=all",
        "rounds.count=12",
        "rounds.min_updates=1",
        "rounds.merge_every=1",
        "budget.total=6",
        "placement.name=budgeted-ucb",
        "iterations.name=primal-dual",
        "iterations.params.load_limit_s=0.4",
        "iterations.params.start=8",
    ),
}
OPTIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "evaluated": {"edges": 2, "agents": 4},
    "peers": {"agents": 6},
    "placed": {"edges": 3, "agents": 4, "rents": RENTS, "iteration_s": 0.02, "arrivals": 12},
}


def world(
    kind: str, directory: Path, seed: int, *sets: str, **options: object
) -> VirtualFederation:
    recipe = parse_recipe(RECIPE, (*SETS[kind], *sets))
    return VirtualFederation(directory, recipe, seed=seed, **{**OPTIONS[kind], **options})  # type: ignore[arg-type] # keyword-only


def check(here: VirtualFederation, ending: Ending) -> None:
    """Every round and every payment once, books that balance, and never over the budget."""
    recipe = here.coordinator.recipe
    assert ending.balanced, ending.problems
    numbers = [number for number, _ in ending.settled_reports]
    assert len(set(numbers)) == len(numbers)
    assert {state for _, state in ending.settled_reports} <= {"done", "void"}
    assert len(set(ending.paid)) == len(ending.paid), "somebody was paid twice for a round"
    rented = Counter(round_ for round_, _, _ in ending.rents)
    assert set(rented.values()) <= {1}, "a rent was charged twice"
    assert set(rented) <= {number for number, state in ending.settled_reports if state == "done"}
    rent_micro = sum(micro for _, _, micro in ending.rents)
    assert ending.spent_micro == AGENT_PRICE_MICRO * len(ending.paid) + rent_micro
    money = recipe.budget.total_micro
    assert money is not None
    assert ending.spent_micro <= money
    calls = [number for number, _ in ending.evaluated]
    assert len(set(calls)) == len(calls), "a model was evaluated twice"
    if ending.reason == "budget":
        rents = [edge.rent_micro for edge in here.edges.values()]
        assert ending.spent_micro + min(rents) + AGENT_PRICE_MICRO > money
    else:
        assert (ending.reason, ending.rounds_done) == ("rounds", recipe.rounds.count)
    if recipe.policy.name == "volunteers":
        volunteers(here, ending)


def volunteers(here: VirtualFederation, ending: Ending) -> dict[int, frozenset[str]]:
    """Check that only volunteers were ordered, as an edge can pay; return them of each call."""
    calls = [number for number, _ in ending.evaluated]
    with open_reader(here.coordinator.directory) as read:
        run = read.run()
        ordered = read.outcomes(run.run_id)
        found: dict[int, set[str]] = {number: set() for number in calls}
        for row in read.evaluations.volunteers(run.run_id):
            found[row.round].add(row.agent_id)
    reserved: dict[tuple[int, str], int] = defaultdict(int)
    for order in ordered:
        reserved[order.round, order.edge_id] += order.price_micro
        call = calls[bisect_left(calls, order.round) - 1]
        assert call < order.round
        assert order.agent in found[call], "who has not volunteered was ordered to train"
    limit = here.coordinator.recipe.budget.per_edge_micro
    assert limit is not None
    assert max(reserved.values()) <= limit
    return {call: frozenset(who) for call, who in found.items()}


def kill_all(here: VirtualFederation, seed: int, *, until: float = 15.0) -> None:
    """Kill every node at three random times."""
    rng = np.random.default_rng(seed)
    for name in here.nodes:
        for when in rng.uniform(0.1, until, size=3):
            here.kill_after(name, float(when))


def digest_of(here: VirtualFederation) -> "hashlib._Hash":
    """Return what will be the digest of all messages, with their times."""
    messages = hashlib.sha256()

    def note(port: str, topic: str) -> None:
        messages.update(f"{here.kernel.now!r} {port} {topic}\n".encode())

    here.network.heard = note
    return messages
