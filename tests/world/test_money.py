"""Placed and controlled rounds: rents, multipliers and bandits, to the last credit."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from fedagent_testbed.world import Ending

from . import World
from .kinds import RENTS

Make = Callable[..., World]
ENDS = ("ending", "reported-result")
IN_BOOKS = ("settled", "learnt", "committed", *ENDS)
"""Where the coordinator dies with the round in its books."""


def test_a_calm_run_rents_one_edge_a_round_until_the_money_is_gone(
    world: Make, world_seed: int
) -> None:
    ending = world(kind="placed", seed=world_seed, sets=("rounds.count=500",)).run().ending
    assert ending.reason == "budget"
    assert len(ending.rents) == ending.rounds_done
    asked = {f"edge-{i}": rent for i, rent in enumerate(RENTS)}
    assert all(micro == asked[edge] for _, edge, micro in ending.rents)
    assert {edge for _, edge, _ in ending.rents} == set(asked)
    rho = [dict(notes)["rho"] for *_, notes in ending.controls]
    assert len(set(rho)) > 3, "the iterations never moved"


@pytest.mark.parametrize("placement", ["random", "min-cost", "min-trans", "budgeted-ucb-paper"])
def test_it_stops_exactly_at_the_budget(world: Make, world_seed: int, placement: str) -> None:
    """The invariant: never over it, and not before."""
    rng = np.random.default_rng(world_seed)
    sets = (
        f"placement.name={placement}",
        f"budget.total={int(rng.integers(500_000, 2_000_000)) / 1e6}",
        *("budget.per_edge=0.3", "rounds.count=500", f"seed={world_seed}"),
    )
    rents = tuple(int(rent) for rent in rng.integers(1, 900_000, size=2))
    options = {"edges": 2, "agents": 2, "rents": rents, "train_s": 0.01}
    here = world(kind="placed", seed=world_seed, sets=sets, **options)
    assert here.run(seconds=3000).ending.reason == "budget"


def test_a_dear_edge_does_not_end_a_resumed_run_by_being_heard_first(world: Make) -> None:
    sets = ("placement.name=min-cost", "budget.total=30", "rounds.count=20")
    rents = (50_000_000, 1_000_000)
    here = world(kind="placed", sets=sets, edges=2, agents=2, rents=rents)
    here.kill("edge-1", after=3.0, down_s=14.0).kill("coordinator", after=3.0)
    played = here.run(seconds=300)
    assert played.ending.reason == "rounds"
    assert played.died["edge-1"] == 1
    assert {edge for _, edge, _ in played.ending.rents} == {"edge-1"}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Ending]:
    def run(sets: tuple[str, ...]) -> Ending:
        return World(tmp_path_factory.mktemp("calm"), kind="placed", sets=sets).run().ending

    return cache(run)


@pytest.mark.parametrize("point", ["reserved", "reported", "settle.half", *IN_BOOKS])
def test_the_coordinator_is_killed_and_goes_on_with_what_it_knew(
    world: Make, calm: Callable[[tuple[str, ...]], Ending], point: str
) -> None:
    # A round that was voided is played again under another number, and so with other chance:
    # there, only what no chance enters can be compared.
    sets = () if point in IN_BOOKS else ("placement.name=min-cost",)
    usual = calm(sets)
    here = world(kind="placed", sets=sets)
    played = here.kill("coordinator", at=point, nth=1 if point in ENDS else 4).run()
    ending = played.ending
    assert played.died["coordinator"] == 1
    assert (ending.rounds_done, ending.spent_micro) == (usual.rounds_done, usual.spent_micro)
    for (*_, notes), (*_, others) in zip(ending.controls, usual.controls, strict=True):
        assert dict(notes) == pytest.approx(dict(others), rel=1e-12), "lambda or rho have changed"
    if point in IN_BOOKS:
        assert (ending.controls, ending.rents) == (usual.controls, usual.rents)


def test_an_edge_that_dies_for_good_gets_its_rent_for_no_further_round(world: Make) -> None:
    here = world(kind="placed", seed=2, sets=("placement.name=min-cost",))
    ending = here.kill("edge-0", after=1.0, down_s=1e6).run().ending
    assert ending.reason == "rounds"
    names = [edge for _, edge, _, _ in ending.controls]
    last = max(i for i, name in enumerate(names) if name == "edge-0")
    assert ending.controls[last][2] == 0, "nobody can tell that it got the order"
    assert all(rent == RENTS[0] for _, edge, rent, _ in ending.controls[:last])
    assert set(names[last + 1 :]) == {"edge-2"}, "the next cheapest follows"
