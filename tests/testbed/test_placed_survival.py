"""Placed and controlled rounds must survive too: rents, multipliers and bandits.

Whatever dies, no rent is charged twice, nothing is spent beyond the budget, and what was
learnt from settled rounds is what an undisturbed run learnt from as many.
"""

import functools
import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedagent_task.recipe import parse_recipe
from fedagent_testbed.kernel import WAN, Faults, lan
from fedagent_testbed.roles import AGENT_PRICE_MICRO
from fedagent_testbed.world import Ending, VirtualFederation

from .test_survival import COORDINATOR_POINTS, EDGE_POINTS

RECIPE = """
name = "placed"
seed = 3
[model]
kind = "softmax"
features = 64
classes = 10
[learner]
name = "none"
[policy]
name = "all"
[rounds]
count = 12
deadline_s = 3
max_wait_s = 5
merge_timeout_s = 3
[budget]
per_edge = 1.0
total = 6
[placement]
name = "budgeted-ucb"
[iterations]
name = "primal-dual"
params = { load_limit_s = 0.4, start = 8 }
"""
SETTLED_POINTS = ("settled", "learnt", "merged", "committed")
"""Where the coordinator dies with the round in its books."""
RENTS = (70_000, 310_000, 150_000)
AGENTS = 4
CHEAPEST = AGENT_PRICE_MICRO
MONEY = 6_000_000


def world(
    directory: Path, seed: int, *, sets: tuple[str, ...] = (), **options: object
) -> VirtualFederation:
    given: dict[str, object] = {
        "edges": 3,
        "agents": AGENTS,
        "rents": RENTS,
        "iteration_s": 0.02,
        "arrivals": 12,
        **options,
    }
    return VirtualFederation(directory, parse_recipe(RECIPE, sets), seed=seed, **given)  # type: ignore[arg-type] # keyword-only


def check(ending: Ending, *, money: int = MONEY) -> None:
    """The books: balanced, every round and every payment once, never over the budget."""
    assert ending.reason in {"rounds", "budget"}
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
    assert ending.spent_micro <= money
    if ending.reason == "budget":
        assert ending.spent_micro + min(RENTS) + CHEAPEST > money


def test_a_calm_run_rents_one_edge_a_round_until_the_money_is_gone(
    tmp_path: Path, world_seed: int
) -> None:
    ending = world(tmp_path, world_seed, sets=("rounds.count=500",)).run(seconds=3000)
    check(ending)
    assert ending.reason == "budget"
    assert len(ending.rents) == ending.rounds_done
    asked = {f"edge-{i}": rent for i, rent in enumerate(RENTS)}
    assert all(micro == asked[edge] for _, edge, micro in ending.rents)
    assert {edge for _, edge, _ in ending.rents} == set(asked)
    rho = [dict(notes)["rho"] for *_, notes in ending.controls]
    assert len(set(rho)) > 3, "the iterations never moved"


@pytest.mark.parametrize("placement", ["random", "budgeted-ucb"])
def test_a_seed_is_a_placed_run_in_every_message(tmp_path: Path, placement: str) -> None:
    faults = Faults(loss=0.05, duplicate=0.1, delay_s=0.003, jitter_s=0.02)
    runs = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        sets = (f"placement.name={placement}", f"seed={seed}")
        here, messages = world(tmp_path / name, seed, sets=sets, faults=faults), hashlib.sha256()
        here.network.heard = functools.partial(note, here, messages)
        runs.append((here.run(seconds=2000), messages.hexdigest()))
    assert runs[0] == runs[1]
    assert runs[0][1] != runs[2][1]


def note(here: VirtualFederation, messages: "hashlib._Hash", port: str, topic: str) -> None:
    messages.update(f"{here.kernel.now!r} {port} {topic}\n".encode())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("placement", ["random", "min-cost", "min-trans", "budgeted-ucb-paper"])
def test_it_stops_exactly_at_the_budget(tmp_path: Path, seed: int, placement: str) -> None:
    rng = np.random.default_rng(seed)
    money = int(rng.integers(500_000, 3_000_000))
    rents = tuple(int(rent) for rent in rng.integers(1, 900_000, size=2))
    sets = (
        f"placement.name={placement}",
        f"budget.total={money / 1e6}",
        "budget.per_edge=0.3",
        "rounds.count=500",
        f"seed={seed}",
    )
    here = world(tmp_path, seed, sets=sets, edges=2, agents=2, rents=rents, train_s=0.01)
    ending = here.run(seconds=3000)
    assert ending.reason == "budget"
    assert ending.balanced, ending.problems
    assert ending.spent_micro <= money
    assert ending.spent_micro + min(rents) + CHEAPEST > money


def test_a_dear_edge_does_not_end_a_resumed_run_by_being_heard_first(tmp_path: Path) -> None:
    sets = ("placement.name=min-cost", "budget.total=30", "rounds.count=20")
    here = world(tmp_path, 1, sets=sets, edges=2, agents=2, rents=(50_000_000, 1_000_000))
    here.nodes["edge-1"].stay_down_s = 14.0
    here.kill_after("edge-1", 3.0)
    here.kill_after("coordinator", 3.0)
    ending = here.run(seconds=300)
    assert ending.reason == "rounds"
    assert ending.rounds_done == 20
    assert here.nodes["edge-1"].restarts == 1
    assert {edge for _, edge, _ in ending.rents} == {"edge-1"}
    assert ending.balanced, ending.problems


@pytest.mark.parametrize("point", [*COORDINATOR_POINTS, "ending", "reported-result"])
def test_the_coordinator_is_killed_and_goes_on_with_what_it_knew(
    tmp_path: Path, point: str
) -> None:
    in_books = point in {*SETTLED_POINTS, "ending", "reported-result"}
    # A round that was voided is played again under another number, and so with other chance:
    # there, only what no chance enters can be compared.
    sets = () if in_books else ("placement.name=min-cost",)
    calm = world(tmp_path / "calm", 1, sets=sets).run(seconds=900)
    check(calm)
    here = world(tmp_path / "killed", 1, sets=sets)
    here.kill_at("coordinator", {point: 1 if point in {"ending", "reported-result"} else 4})
    ending = here.run(seconds=900)
    check(ending)
    assert here.nodes["coordinator"].restarts == 1
    assert ending.rounds_done == calm.rounds_done
    assert ending.spent_micro == calm.spent_micro
    for (*_, notes), (*_, others) in zip(ending.controls, calm.controls, strict=True):
        assert dict(notes) == pytest.approx(dict(others), rel=1e-12), "lambda or rho have changed"
    if in_books:
        assert ending.controls == calm.controls
        assert ending.rents == calm.rents


@pytest.mark.parametrize("point", EDGE_POINTS)
def test_a_rented_edge_is_killed(tmp_path: Path, world_seed: int, point: str) -> None:
    rng = np.random.default_rng(world_seed)
    here = world(tmp_path, world_seed, sets=("placement.name=min-cost",))
    here.kill_at("edge-0", {point: int(rng.integers(1, 6))})
    check(here.run(seconds=900))
    assert here.nodes["edge-0"].restarts == 1


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
def test_lost_repeated_and_reordered_messages(tmp_path: Path, world_seed: int, loss: float) -> None:
    faults = Faults(loss=loss, duplicate=0.3, delay_s=0.005, jitter_s=0.05)
    check(world(tmp_path, world_seed, faults=faults).run(seconds=2000))


def test_everybody_is_killed_at_random_times(tmp_path: Path, world_seed: int) -> None:
    rng = np.random.default_rng(world_seed)
    faults = Faults(loss=0.02, duplicate=0.05, delay_s=0.003, jitter_s=0.02)
    here = world(tmp_path, world_seed, faults=faults)
    for name in here.nodes:
        for when in rng.uniform(0.1, 12.0, size=3):
            here.kill_after(name, float(when))
    check(here.run(seconds=2000))


@pytest.mark.parametrize("broker", [WAN, lan("edge-0")])
def test_a_network_is_cut_in_mid_round(tmp_path: Path, world_seed: int, broker: str) -> None:
    rng = np.random.default_rng(world_seed)
    here = world(tmp_path, world_seed, train_s=0.05)
    for at in rng.uniform(0.05, 3.0, size=3):
        here.cut(broker, at=float(at), seconds=float(rng.uniform(0.1, 1.5)))
    check(here.run(seconds=900))


def test_an_edge_that_dies_for_good_gets_its_rent_for_no_further_round(tmp_path: Path) -> None:
    here = world(tmp_path, 2, sets=("placement.name=min-cost",))
    here.nodes["edge-0"].stay_down_s = 1e6
    here.kill_after("edge-0", 1.0)
    ending = here.run(seconds=900)
    check(ending)
    assert ending.reason == "rounds"
    names = [edge for _, edge, _, _ in ending.controls]
    last = max(i for i, name in enumerate(names) if name == "edge-0")
    silent = ending.controls[last]
    assert silent[2] == 0, "nobody can say that it got the order"
    assert all(rent == RENTS[0] for _, edge, rent, _ in ending.controls[:last])
    assert set(names[last + 1 :]) == {"edge-2"}, "the next cheapest follows"
