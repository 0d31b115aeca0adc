"""What the pages of `docs/policies` say of the papers' constants, tried in small; the plots."""

from pathlib import Path

import pytest

from bench.experiments import constants, plots
from fedagent_testbed.study import compare, load_recipe

COLD_START = constants.CLIENTS // constants.SIZE


def test_cocs_paper_only_explores_and_cocs_stops() -> None:
    recipe = load_recipe("cocs-decisions", ["rounds.count=60"])
    runs = compare(recipe, ["adaptive", "cocs", "cocs-paper"], seeds=1, jobs=1).histories
    explored = {name: int(several[0]["explored"].sum()) for name, several in runs.items()}
    assert explored["cocs-paper"] == 60
    assert explored["cocs"] < 30
    wins = {name: several[0]["wins"].sum() for name, several in runs.items()}
    assert wins["adaptive"] > wins["cocs-paper"]


def test_quick_init_with_the_papers_mu_returns_to_no_set_but_the_best_group() -> None:
    paper = constants.slots("quick-init-ucb", 0, count=120, mu=1.0)
    assert (paper["replays@1"], paper["replays@21"], paper["replays@120"]) == (0, 1, 1)
    assert (constants.slots("quick-init-ucb", 0, count=120)["replays@120"] or 0) > 100


@pytest.mark.parametrize("seed", range(5))
def test_budgeted_ucb_paper_is_round_robin(seed: int) -> None:
    assert constants.rents("budgeted-ucb-paper", seed)["widest_gap"] == 0
    ours = constants.rents("budgeted-ucb", seed)
    assert (ours["widest_gap"] or 0) > constants.RENTED_ROUNDS / 2


def test_a_budget_for_rent_is_never_overspent() -> None:
    run = constants.rents("budgeted-ucb", 1, rounds=2000, budget=30)
    assert 30 - 1 < (run["paid"] or 0) <= 30


@pytest.mark.parametrize("seed", range(3))
def test_literal_beliefs_saturate_and_ours_follow_the_opinions(seed: int) -> None:
    run = {name: value or 0.0 for name, value in constants.saturation(seed).items()}
    assert run["largest@1"] < 0.2
    assert run["largest@12"] > 0.99
    assert run["ours_largest"] < 0.95
    assert run["ours_follows_opinions"] > 0.8


def test_a_larger_v_owes_more_before_it_serves_the_slow() -> None:
    settled, growing = (
        {name: value or 0.0 for name, value in constants.queues(v, 0, rounds=121).items()}
        for v in (1, 50)
    )
    assert settled["queue@1"] == growing["queue@1"] == 0
    assert max(settled[f"queue@{t}"] for t in (61, 81, 101, 121)) < 1
    assert growing["queue@121"] > 5
    fair, unfair = (run["share_of_class@1"] - run["share_of_class@4"] for run in (settled, growing))
    assert fair < 0.2 < unfair


@pytest.mark.parametrize("name", plots.NAMES)
def test_a_picture_is_drawn_from_the_table_the_same_every_time(name: str, tmp_path: Path) -> None:
    first = plots.write(name, tmp_path).read_bytes()
    assert plots.write(name, tmp_path).read_bytes() == first
