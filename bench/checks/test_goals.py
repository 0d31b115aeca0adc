"""The figures of goal-directed selection: what is shown of runs, and that none is made twice."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import goal_figures, goal_sets, goal_trials, goals, goals_report
from bench.goal_curves import Curves
from bench.kept import read
from fedagent_testbed import study

TINY = (
    *("training.dataset=digits", "training.samples_per_client=10", "training.epochs=1"),
    *("training.batch=8", "clients=10", "training.iid_clients=2", "budget.per_edge=2"),
)


def run(label: str, seed: int, opinion: list[float], slots: list[int]) -> dict[str, object]:
    return {
        "part": "table",
        "label": label,
        "seed": seed,
        "opinion": opinion,
        "tested": opinion[-1],
        "slots": slots,
    }


def shown(path: Path, *runs: dict[str, object]) -> dict[object, dict[str, object]]:
    path.write_text("".join(json.dumps(one) + "\n" for one in runs))
    return {row.get("of"): row for row in goals_report.rows(path)}


def test_the_gap_is_the_share_of_the_fixed_set_that_is_missed_on_the_same_seed(
    tmp_path: Path,
) -> None:
    ten, five = [7] * 5 + [1] * 15, [0] * 10 + [2] * 10
    rows = shown(
        tmp_path / "runs",
        run("fixed", 0, [0.5, *[0.8] * 7], ten),
        run("fixed", 1, [0.5, *[0.9] * 7], ten),
        run("bp-ucb", 1, [0.76, *[0.9] * 7], five),
        run("bp-ucb", 0, [0.79, *[0.72] * 7], five),
    )
    gap = rows["bp-ucb"]["gap_percent"]
    assert isinstance(gap, dict)
    assert gap["per_seed"] == pytest.approx([10.0, 0.0])
    assert rows["bp-ucb"]["paper_gap_percent"] == 3.12
    assert "met" not in rows["bp-ucb"], "random has no gap either: that is no bar"
    assert "gap_percent" not in rows["fixed"]
    assert rows["bp-ucb"]["slots_to"] == [1.0, 1.5, None, None]
    assert rows["fixed"]["slots_to"] == [2.0, 2.0, None, None]
    assert rows["fixed"]["slots_of_an_iid_client"] == 7
    assert rows["fixed"]["slots_of_another"] == 1
    assert rows["bp-ucb"]["clients_that_trained"] == [10, 10]


def test_a_run_that_the_file_holds_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    params = "policies.bp-ucb.clients_per_round=2"
    case = goals.Case("table", "bp-ucb", "bp-ucb", (*TINY, params), slots=2)
    goals.play_missing(path, [case], [0])
    once = path.read_text()
    goals.play_missing(path, [case], [0])
    assert path.read_text() == once
    goals.play_missing(path, [case], [0, 1])
    first, second = read(path)
    assert (first["seed"], second["seed"]) == (0, 1)
    assert len(first["opinion"]) == 2
    assert sum(first["slots"]) == 2 * 2
    again = case.measure(0)
    kept = ("opinion", "tested", "slots")
    assert [again[key] for key in kept] == [first[key] for key in kept]


def test_opinions_by_kind_of_client_are_means_over_the_seeds(tmp_path: Path) -> None:
    one = {"part": "kind", "label": "random sets", "seed": 0, "iid_trained": 0.8}
    row = shown(tmp_path / "runs", one, {**one, "seed": 1, "iid_trained": 0.9})[None]
    assert row == {"bench": "gda-kind", "seeds": 2, "iid_trained": 0.85}


def test_a_decision_takes_time() -> None:
    case = goals.Deciding("time", "bp-ucb, 20; K = 5", "bp-ucb", 20, 5, 3.0)
    assert 0 < float(str(case.measure(0)["slot_ms"])) < 1000


SMALL = (
    *(*TINY, "training.reset=true", "policies.bp-ucb.clients_per_round=2"),
    *("policies.quick-init-ucb.clients_per_round=2", "policies.fixed.clients=[0,1]"),
)


def test_a_sets_reward_is_what_a_study_gives_it_in_its_first_slot() -> None:
    world = goal_sets.SlotWorld(SMALL, 3)
    studied = study.play(world.recipe, "fixed", 3)["opinion"][goals.SLOT - 1]
    assert world.opinions((0, 1)).mean() == pytest.approx(studied, abs=1e-12)
    assert world.play("fixed", 3).opinion == pytest.approx([studied] * 3, abs=1e-12)


def test_policies_share_what_a_trial_has_trained_and_begin_with_everybody_once() -> None:
    world = goal_sets.SlotWorld(SMALL, 3)
    played = world.play("bp-ucb", 8)
    assert sorted(client for one in played.sets[:5] for client in one) == list(range(10))
    assert set(played.sets) == set(world.known)
    other = world.play("quick-init-ucb", 8, shuffled=True)
    assert sorted(client for one in other.sets[:5] for client in one) == list(range(10))
    assert other.opinion == pytest.approx([world.opinions(one).mean() for one in other.sets])
    again = world.play("bp-ucb", 8)
    assert again.sets == played.sets
    best = world.climb((0, 1))
    top = world.opinions(best).mean()
    assert all(
        top >= world.opinions(one).mean() for one in world.known if len({*one} - {*best}) < 2
    )


def test_trials_are_kept_by_block_and_shown_against_the_fixed_set(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    cases: list[goals.Job] = [
        goal_trials.Trials("stationary", name, name, SMALL, (), 4, trials=2, most=1)
        for name in ("fixed", "bp-ucb")
    ]
    cases.append(Curves("curves", "K = 2", TINY, (), 2, trials=1))
    goals.play_missing(path, cases, range(2))
    assert len(read(path)) == 3, "one block is the most"
    rows = {row["of"]: row for row in goal_figures.rows(path)}
    gap = rows["bp-ucb"]["gap_percent"]
    assert isinstance(gap, dict)
    assert gap["ci95"] >= 0
    assert rows["fixed"]["trials"] == 2
    assert rows["fixed"]["share_of_slots_iid"] == pytest.approx(2 / 5)
    assert len(rows["K = 2"]["slots_5_20"]) == 2  # type: ignore[arg-type]  # a list


def every_case() -> Iterator[goals.Job]:
    for cases in goals.PARTS.values():
        yield from cases()


def test_every_case_has_a_name_of_its_own_and_a_recipe_that_loads() -> None:
    cases = list(every_case())
    assert len({(case.part, case.label) for case in cases}) == len(cases)
    for case in cases:
        if isinstance(case, goals.Case):
            recipe = case.recipe()
            assert recipe.rounds.count == 15 * case.slots
            assert recipe.world.training.slot_rounds == goals.SLOT


def test_the_recorded_runs_are_of_cases_that_there_are_and_are_drawn(tmp_path: Path) -> None:
    known = {(case.part, case.label) for case in every_case()}
    assert {(run["part"], run["label"]) for run in read(goals.RUNS)} <= known
    drawn = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        goals_report.draw(goals.RUNS, folder)
        drawn.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert drawn[0] == drawn[1]
    assert set(drawn[0]) == {"gda-scaling.svg", "gda-slots.svg"}
    assert all((goals.IMAGES / name).exists() for name in drawn[0])
