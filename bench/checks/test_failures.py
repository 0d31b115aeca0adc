"""What the pictures of `docs/policies` claim, in small; and that they draw the same twice."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bench.experiments import failures, plots
from fedagent_coordinator import placement, policies

COLD_START = failures.CLIENTS // failures.SIZE


def test_cocs_paper_only_explores_and_cocs_stops() -> None:
    runs = failures.exploration(-166, seeds=1, rounds=60)
    explored = {name: int(histories[0]["explored"].sum()) for name, histories in runs.items()}
    assert explored["cocs-paper"] == 60
    assert explored["cocs"] < 30
    wins = {name: histories[0]["wins"].sum() for name, histories in runs.items()}
    assert wins["adaptive"] > wins["cocs-paper"]


def test_quick_init_with_the_papers_mu_returns_to_no_set_but_the_best_group() -> None:
    paper = failures.slots(policies.create("quick-init-ucb", mu=1.0), 0, count=120).replays
    assert paper[COLD_START - 1] == 0
    assert paper[COLD_START] == paper[-1] == 1
    tuned = failures.slots(policies.create("quick-init-ucb"), 0, count=120).replays
    assert tuned[-1] > 100


@pytest.mark.parametrize("seed", range(failures.SEEDS))
def test_budgeted_ucb_paper_is_round_robin(seed: int) -> None:
    paper = failures.rents(placement.create("budgeted-ucb-paper"), seed)
    assert np.ptp(paper.plays) == 0
    tuned = failures.rents(placement.create("budgeted-ucb"), seed)
    assert np.ptp(tuned.plays) > failures.RENTED_ROUNDS / 2


def test_a_budget_for_rent_is_never_overspent() -> None:
    run = failures.rents(placement.create("budgeted-ucb"), 1, rounds=2000, budget=30)
    assert 30 - 1 < run.paid.sum() <= 30


def test_literal_beliefs_saturate_and_ours_follow_the_opinions() -> None:
    for seed in range(3):
        run = failures.saturation(seed)
        assert run.literal[0].max() < 0.2
        assert run.literal[-1].max() > 0.99
        assert run.ours.max() < 0.95
        assert np.corrcoef(run.opinion, run.ours)[0, 1] > 0.8


def test_a_larger_v_is_faster_and_less_fair() -> None:
    slow, fair = failures.fairness("rbcs-f", seeds=2, rounds=150, weight=1)
    fast, unfair = failures.fairness("rbcs-f", seeds=2, rounds=150, weight=100)
    assert fast < 0.7 * slow
    assert unfair < 0.5 * fair


def test_a_larger_v_owes_more_before_it_serves_the_slow() -> None:
    settled, even = failures.queues(1, rounds=120)
    growing, uneven = failures.queues(50, rounds=120)
    assert settled[0] == growing[0] == 0
    assert settled[-60:].max() < 1
    assert growing[-1] > 5
    assert (np.diff(growing) > 0).mean() > 0.9
    assert even[:10].mean() - even[-10:].mean() < 0.2 < uneven[:10].mean() - uneven[-10:].mean()
    assert even.sum() == pytest.approx(8)


def test_pictures_and_numbers_are_the_same_every_time(tmp_path: Path) -> None:
    written = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        slots = dict(failures.quick_inits(range(2), count=60))
        plots.write("quick-init", lambda slots=slots: plots.quick_init(slots), folder)  # type: ignore[misc]
        runs = {-166: failures.exploration(-166, seeds=1, rounds=30)}
        plots.write("cocs", lambda runs=runs: plots.cocs(runs), folder)  # type: ignore[misc]
        curve = {1: (10.0, 0.15), 100: (5.0, 0.0)}
        owed = {v: failures.queues(v, rounds=30) for v in (1, 50)}
        even = failures.pulls(rounds=30)
        drawn = partial(plots.rbcs_queues, owed, even, 0.15)
        plots.write("rbcs-f-queues", drawn, folder)
        plots.write("rbcs-f", lambda curve=curve: plots.rbcs(curve, {}, 0.15), folder)  # type: ignore[misc]
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert set(written[0]) == {
        *("quick-init.svg", "cocs.svg", "rbcs-f.svg", "rbcs-f-queues.svg"),
        "figures.json",
    }
    assert written[0] == written[1]
