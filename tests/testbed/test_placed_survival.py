"""Placed and controlled rounds must survive too: rents, multipliers and bandits.

Whatever dies, no rent is charged twice, nothing is spent beyond the budget, and what was
learnt from settled rounds is what an undisturbed run learnt from as many.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedagent_testbed.world import Ending
from tests.fakes.virtual_world import RENTS, check, world

ENDS = ("ending", "reported-result")
IN_BOOKS = ("settled", "learnt", "merged", "committed", *ENDS)
"""Where the coordinator dies with the round in its books."""


def test_a_calm_run_rents_one_edge_a_round_until_the_money_is_gone(
    tmp_path: Path, world_seed: int
) -> None:
    here = world("placed", tmp_path, world_seed, "rounds.count=500")
    ending = here.run(seconds=3000)
    check(here, ending)
    assert ending.reason == "budget"
    assert len(ending.rents) == ending.rounds_done
    asked = {f"edge-{i}": rent for i, rent in enumerate(RENTS)}
    assert all(micro == asked[edge] for _, edge, micro in ending.rents)
    assert {edge for _, edge, _ in ending.rents} == set(asked)
    rho = [dict(notes)["rho"] for *_, notes in ending.controls]
    assert len(set(rho)) > 3, "the iterations never moved"


COORDINATOR_POINTS = [
    "decided",
    "reserve.entries",
    "reserved",
    "orders.half",
    "reported",
    "settling",
    "settle.first-entry",
    "settled",
    "learnt",
    "merged",
    "committed",
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("placement", ["random", "min-cost", "min-trans", "budgeted-ucb-paper"])
def test_it_stops_exactly_at_the_budget(tmp_path: Path, seed: int, placement: str) -> None:
    rng = np.random.default_rng(seed)
    sets = (
        f"placement.name={placement}",
        f"budget.total={int(rng.integers(500_000, 3_000_000)) / 1e6}",
        "budget.per_edge=0.3",
        "rounds.count=500",
        f"seed={seed}",
    )
    rents = tuple(int(rent) for rent in rng.integers(1, 900_000, size=2))
    options = {"edges": 2, "agents": 2, "rents": rents, "train_s": 0.01}
    here = world("placed", tmp_path, seed, *sets, **options)
    ending = here.run(seconds=3000)
    check(here, ending)
    assert ending.reason == "budget"


def test_a_dear_edge_does_not_end_a_resumed_run_by_being_heard_first(tmp_path: Path) -> None:
    sets = ("placement.name=min-cost", "budget.total=30", "rounds.count=20")
    rents = (50_000_000, 1_000_000)
    here = world("placed", tmp_path, 1, *sets, edges=2, agents=2, rents=rents)
    here.nodes["edge-1"].stay_down_s = 14.0
    here.kill_after("edge-1", 3.0)
    here.kill_after("coordinator", 3.0)
    ending = here.run(seconds=300)
    check(here, ending)
    assert ending.reason == "rounds"
    assert here.nodes["edge-1"].restarts == 1
    assert {edge for _, edge, _ in ending.rents} == {"edge-1"}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Ending]:
    def run(sets: tuple[str, ...]) -> Ending:
        return world("placed", tmp_path_factory.mktemp("calm"), 1, *sets).run(seconds=900)

    return functools.cache(run)


@pytest.mark.parametrize("point", [*COORDINATOR_POINTS, *ENDS])
def test_the_coordinator_is_killed_and_goes_on_with_what_it_knew(
    tmp_path: Path, calm: Callable[[tuple[str, ...]], Ending], point: str
) -> None:
    # A round that was voided is played again under another number, and so with other chance:
    # there, only what no chance enters can be compared.
    sets = () if point in IN_BOOKS else ("placement.name=min-cost",)
    here, usual = world("placed", tmp_path, 1, *sets), calm(sets)
    here.kill_at("coordinator", {point: 1 if point in ENDS else 4})
    ending = here.run(seconds=900)
    check(here, ending)
    assert here.nodes["coordinator"].restarts == 1
    assert (ending.rounds_done, ending.spent_micro) == (usual.rounds_done, usual.spent_micro)
    for (*_, notes), (*_, others) in zip(ending.controls, usual.controls, strict=True):
        assert dict(notes) == pytest.approx(dict(others), rel=1e-12), "lambda or rho have changed"
    if point in IN_BOOKS:
        assert (ending.controls, ending.rents) == (usual.controls, usual.rents)


def test_an_edge_that_dies_for_good_gets_its_rent_for_no_further_round(tmp_path: Path) -> None:
    here = world("placed", tmp_path, 2, "placement.name=min-cost")
    here.nodes["edge-0"].stay_down_s = 1e6
    here.kill_after("edge-0", 1.0)
    ending = here.run(seconds=900)
    check(here, ending)
    assert ending.reason == "rounds"
    names = [edge for _, edge, _, _ in ending.controls]
    last = max(i for i, name in enumerate(names) if name == "edge-0")
    silent = ending.controls[last]
    assert silent[2] == 0, "nobody can tell that it got the order"
    assert all(rent == RENTS[0] for _, edge, rent, _ in ending.controls[:last])
    assert set(names[last + 1 :]) == {"edge-2"}, "the next cheapest follows"
