"""The comparison of strategies: what a run tells, what is kept, and the page beside it."""

import re
from pathlib import Path

import numpy as np
import pytest

from bench import kept, strategies
from bench.strategies import PARAMETERS, POLICIES, RATES, TARGETS, TUNING
from fedagent_testbed.study import History

PAGE = Path(__file__).parents[2] / "docs" / "strategies-compared.md"
SEEDS = 10


def history(accuracy: list[float]) -> History:
    return History("x", 1, [{"accuracy": one, "seconds": 2.0} for one in accuracy])


def test_a_target_is_reached_by_the_mean_of_five_and_not_by_one_lucky_round() -> None:
    told = strategies.outcome(history([0.1] * 5 + [0.9] + [0.1] * 4 + [0.8] * 5), 0.8)
    assert told == {"reached": True, "rounds": 15, "seconds": 30.0, "accuracy": 0.53}
    never = strategies.outcome(history([0.9] + [0.1] * 19), 0.8)
    assert never == {"reached": False, "rounds": 20, "seconds": 40.0, "accuracy": 0.1}


@pytest.mark.parametrize("data", list(TARGETS))
def test_every_strategy_was_tried_with_the_same_rates_and_shown_on_other_seeds(data: str) -> None:
    tried = kept.part(strategies.RUNS, f"tune-{data}")
    for name in PARAMETERS:
        own = f"aggregation.name={name}"
        rates = {one.sets[1] for one in strategies.candidates(data) if one.sets[0] == own}
        assert rates == {f"world.training.rate={rate}" for rate in RATES}
        assert strategies.tuned(data, name)[0] == own
    assert {run["seed"] for runs in tried.values() for run in runs} == set(TUNING)
    shown = kept.part(strategies.RUNS, data)
    assert {len(runs) for runs in shown.values()} == {SEEDS}
    assert len(shown) == len(PARAMETERS) * len(POLICIES)


@pytest.mark.parametrize("data", list(TARGETS))
def test_the_page_has_the_table_of_the_kept_runs(data: str) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for one in strategies.table(data):
        assert one.markdown() in lines
    assert set(strategies.between(data)) <= set(lines)
    for one in strategies.table(data):
        assert f"`{re.sub(' ', '`, `', one.keys)}`" in "\n".join(lines), one.strategy


def test_what_is_saved_is_counted_on_each_seed() -> None:
    entry = next(
        one
        for one in strategies.table("a9a")
        if (one.policy, one.strategy) == ("random", "scaffold")
    )
    runs = kept.part(strategies.RUNS, "a9a")
    pairs = zip(runs["random, fedavg"], runs["random, scaffold"], strict=True)
    saved = [one["rounds"] - own["rounds"] for one, own in pairs]
    assert entry.rounds_less.mean == pytest.approx(np.mean(saved))
