"""The papers' experiments can be played again, and the table has a row for each of them."""

from pathlib import Path

import pytest

from bench.experiments import driver, special, table
from bench.experiments.measures import curve
from bench.experiments.special import drawn, shares
from fedagent_testbed.study import load_recipe, streams
from fedagent_testbed.study.selection import make_policy

FILE = driver.experiments()
ELSEWHERE = {"solvers", "field-policies", "field-bas", "bas-streams", "bas-scaling"}
"""Rows that a module of their own, or several experiments together, gave."""


@pytest.mark.parametrize("name", FILE)
def test_every_recipe_of_an_experiment_loads_and_makes_its_policies(name: str) -> None:
    one = FILE[name]
    labels = [label for label, _, _ in one.settings()]
    assert len(set(labels)) == len(labels)
    settings = list(one.settings())
    # Of the 37 worlds the first shows it: reading all of them takes minutes.
    for _, recipe, sets in settings[: 1 if one.recipe == driver.WORLDS else None]:
        for policy, *params in one.named().values():
            found = load_recipe(recipe, [*sets, *params])
            if found.world.kind != "bas":
                make_policy(found, policy)
            else:
                assert streams.chosen(found, [policy])


def test_every_row_of_the_table_can_be_played_again() -> None:
    kept = {one.experiment for one in table.read()}
    assert kept - ELSEWHERE <= {*FILE, *special.EXPERIMENTS}


def test_a_case_has_what_it_does_better_than_its_base_by_seed(tmp_path: Path) -> None:
    runs: table.Runs = [{"wins": 9.0, "none": None}, {"wins": 13.0, "none": 1.0}]
    base: table.Runs = [{"wins": 10.0, "none": 1.0}, {"wins": 12.0, "none": 1.0}]
    one = table.line("a", "b", runs, base)
    assert one.figures == {"wins": "11±25", "more_wins": "0±13"}
    table.keep([one], path := tmp_path / "kept.csv")
    table.keep([table.line("a", "c", base), one], path)
    assert [(line.case, line.mean("wins")) for line in table.read(path)] == [("b", 11), ("c", 11)]


def test_a_small_experiment_is_played_beside_the_policy_it_names() -> None:
    one = FILE["cocs-scenes"]
    found = list(driver.lines("x", one, seeds=1, sets=["rounds.count=5"], only="liars-166", jobs=1))
    assert [line.case for line in found] == [f"liars-166, {name}" for name in one.named()]
    by_case = {line.case.partition(", ")[2]: line for line in found}
    linucb, other = by_case["linucb"].mean("wins"), by_case["random"]
    assert other.mean("more_wins") == other.mean("wins") - linucb
    assert "more_wins" not in by_case["linucb"].figures


def test_a_smaller_gamma_selects_less_evenly() -> None:
    sets = (
        "world.training.dataset=digits",
        "world.training.samples_per_client=30",
        "rounds.count=20",
    )
    recipe = load_recipe("rbcs-f-fashion", [*sets, "world.training.evaluate_every=10"])
    evenness = [
        curve(drawn(recipe, gamma, 0), recipe)["jain"] or 0.0 for gamma in (0.1, 10.0, float("inf"))
    ]
    assert evenness == sorted(evenness)
    assert shares(float("inf"), 4, 0).tolist() == [0.25] * 4
