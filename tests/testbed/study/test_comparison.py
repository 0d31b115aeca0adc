"""Policies side by side: the same in any process, and honest about what did not run."""

import copy
import json
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fedagent_testbed.study import (
    MARGIN,
    Comparison,
    History,
    compare,
    figure,
    load_recipe,
)
from fedagent_testbed.study import TestbedRecipe as Study
from fedagent_testbed.study.comparison import rows_of
from fedagent_testbed.study.selection import policy_names
from tests.fakes.stream_files import small as pairs_recipe

PAIRS = ("primal-dual+budgeted-ucb", "fixed-1+random")
SMALL = ("world.clients=10", "world.edges=2", "rounds.count=5")


def small(*sets: str) -> Study:
    return load_recipe("cocs-decisions", (*SMALL, *sets))


def timeless(comparison: Comparison) -> dict[str, object]:
    record = copy.deepcopy(comparison.record())
    for one in record["policies"].values():  # type: ignore[attr-defined] # JSON data
        del one["decision_ms"]
    return record


def test_two_processes_find_what_one_finds() -> None:
    names, seen = ("cheapest", "adaptive"), []
    one = compare(small(), names, seeds=2, first_seed=3)
    two = compare(small(), names, seeds=2, first_seed=3, jobs=2, done=lambda *run: seen.append(run))
    assert timeless(one) == timeless(two)
    assert one.seeds == (3, 4)
    assert list(one.histories) == ["cheapest", "adaptive"]
    everybody = ("adaptive", "cheapest", "oracle", "oracle-p")
    assert sorted(seen) == [(name, seed, 8) for name in everybody for seed in (3, 4)]


def test_all_takes_what_can_run_and_says_why_not_the_others() -> None:
    found = compare(small(), ["all"], seeds=1)
    assert set(found.histories) | set(found.skipped) == set(policy_names(small()))
    assert not set(found.histories) & set(found.skipped)
    assert "opinions" in found.skipped["bp-ucb"]
    assert found.record()["skipped"] == found.skipped


def test_regret_is_against_the_same_seeds() -> None:
    found = compare(small("rounds.count=30"), ["random", "oracle"], seeds=3)
    best, mine = found.figures("oracle"), found.figures("random")
    assert best["regret_oracle"].per_seed == (0.0, 0.0, 0.0)
    both = zip(best["utility"].per_seed, mine["utility"].per_seed, strict=True)
    assert mine["regret_oracle"].per_seed == tuple(b - m for b, m in both)  # type: ignore[operator] # known
    assert all(v is not None and v > 0 for v in mine["regret_oracle"].per_seed)


BLANK = dict.fromkeys(("wins", "spent", "selected", "decide_ms", "explored"), 0.0)


def two_runs(*accuracies: tuple[float, float, float]) -> Comparison:
    """Runs of three rounds of ten seconds, with these accuracies."""
    sets = ("world.training.dataset=digits", "world.training.epochs=1", "rounds.count=3")
    runs = []
    for seed, accuracy in enumerate(accuracies):
        rows = [{**BLANK, "accuracy": one, "seconds": 10.0} for one in accuracy]
        runs.append(History("random", seed, rows, np.zeros(2, dtype=np.int64)))
    seeds = tuple(range(len(runs)))
    return Comparison(small(*sets), seeds, {"random": tuple(runs)}, {}, {})


def test_a_target_is_reached_at_it_and_those_that_did_not_are_counted() -> None:
    found = two_runs((0.1, 0.7, 0.9), (0.1, 0.2, 0.69), (0.8, 0.6, 0.6))
    rounds, seconds = found.to_target("random", 0.7)
    assert rounds.per_seed == (2.0, None, 1.0)
    assert seconds.per_seed == (20.0, None, 10.0)
    own = found.record()["policies"]["random"]  # type: ignore[index] # JSON data
    for key in ("rounds_to_target", "seconds_to_target"):
        assert own[key]["0.7"]["reached"] == 2
    heads, row = rows_of(found)
    at = heads.index("to 0.7")
    assert row[at].startswith("1.5 ± ")
    assert row[at].endswith(" (2/3)")
    assert (heads[at + 1], row[at + 1].split()[0]) == ("s to 0.7", "15")
    assert "(" not in rows_of(two_runs((0.7, 0.7, 0.7)))[1][at]


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=80))
def test_the_interval_is_students(values: list[float]) -> None:
    found = figure(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-6)
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    wanted = scipy.stats.t.ppf(0.975, len(values) - 1) * error
    assert found.ci95 == pytest.approx(wanted, rel=3e-4, abs=1e-9)


@pytest.mark.usefixtures("stream_data")
def test_the_record_is_json_and_adds_up() -> None:
    record = json.loads(json.dumps(compare(pairs_recipe(), PAIRS, seeds=2).record()))
    assert set(record["policies"]) == set(PAIRS)
    for one in record["policies"].values():
        parts = sum(one[key]["mean"] for key in ("compute_s", "transfer_s", "aggregate_s"))
        assert one["latency_s"]["mean"] == pytest.approx(parts)
        assert one["spent"]["mean"] <= record["budget"]
        assert len(one["final_loss"]["per_seed"]) == 2
        assert one["error"]["mean"] is None


@pytest.mark.usefixtures("stream_data")
def test_those_that_reach_the_best_loss_come_first_by_latency() -> None:
    found = compare(pairs_recipe(), [*PAIRS, "fixed-5+min-cost", "fixed-20+min-trans"], seeds=2)
    ranked = found.ranked()
    figures = {name: found.figures(name) for name in ranked}
    least = min(one["final_loss"].mean or 0.0 for one in figures.values())
    reaching = [n for n in ranked if (figures[n]["final_loss"].mean or 9) <= least + MARGIN]
    assert ranked[: len(reaching)] == reaching
    latency = [figures[name]["latency_s"].mean or 0.0 for name in reaching]
    assert latency == sorted(latency)
