"""The whole federation under a study's links: it comes to what the study comes to.

An edge may wait a twentieth of a second for agents that need no model, and every message takes a
moment.
"""

from pathlib import Path

import numpy as np
import pytest

from fedagent_task.errors import RecipeError
from fedagent_testbed.study import TestbedRecipe as Study
from fedagent_testbed.study import load_recipe, play
from fedagent_testbed.study.full import play_full

SLACK_S = 0.08
SMALL = ("world.clients=6", "world.edges=2", "budget.per_edge=6", "rounds.count=12")


def small(*sets: str) -> Study:
    return load_recipe("cocs-decisions", (*SMALL, *sets))


@pytest.mark.parametrize(
    ("policy", "sets"),
    [
        ("cheapest", ()),
        ("linucb", ("rounds.merge_every=3",)),
    ],
)
def test_where_nothing_is_tied_the_study_is_the_live_run(
    tmp_path: Path, policy: str, sets: tuple[str, ...]
) -> None:
    recipe = small("world.visible=1", "world.edges=2", "world.radio.noise_dbm_hz=-170", *sets)
    live = play_full(recipe, policy, 3, tmp_path).history
    fast = play(recipe, policy, 3)
    assert live["selected"].tolist() == fast["selected"].tolist()
    assert live["wins"].tolist() == fast["wins"].tolist()
    assert live["spent"] == pytest.approx(fast["spent"])
    assert live.counts.tolist() == fast.counts[: len(live.counts)].tolist()
    assert (live["seconds"] - fast["seconds"] >= 0).all()
    assert (live["seconds"] - fast["seconds"] < SLACK_S).all()
    assert 0 < live["wins"].sum() < live["selected"].sum()


@pytest.mark.parametrize("policy", ["random", "volunteers"])
def test_a_seed_is_a_run_in_every_message(tmp_path: Path, policy: str) -> None:
    recipe = small("rounds.count=5", "world.training.slot_rounds=2")
    runs = [play_full(recipe, policy, seed, tmp_path / str(k)) for k, seed in enumerate((1, 1, 2))]
    assert runs[0].digest == runs[1].digest != runs[2].digest
    assert runs[0].outcomes == runs[1].outcomes != runs[2].outcomes
    assert runs[0].ending == runs[1].ending
    one, two = runs[0].history, runs[1].history
    assert one.counts.tolist() == two.counts.tolist()
    for name in ("wins", "selected", "spent", "seconds"):
        assert one[name].tolist() == two[name].tolist()


@pytest.mark.parametrize("policy", ["quick-init-ucb", "ucb"])
def test_opinions_are_asked_for_at_the_end_of_each_slot(tmp_path: Path, policy: str) -> None:
    slots = ("rounds.merge_every=2", "world.training.slot_rounds=4")
    recipe = small(*slots, f"policies.{policy}.clients_per_round=2")
    run = play_full(recipe, policy, 3, tmp_path)
    assert [number for number, _ in run.ending.evaluated] == [0, 4, 8, 12]
    # A link can be too slow for the model to come before the call is over.
    assert 3 * 6 < sum(answers for _, answers in run.ending.evaluated) <= 4 * 6
    assert np.flatnonzero(np.isfinite(run.history["opinion"])).tolist() == [3, 7, 11]


def test_neighbours_decide_who_trains_in_a_slot(tmp_path: Path) -> None:
    sets = (
        "rounds.merge_every=2",
        "world.training.slot_rounds=4",
        "world.edges=1",
        "world.visible=0",
    )
    recipe = small(*sets, "policies.volunteers.clients_per_round=2", "budget.per_edge=100")
    run = play_full(recipe, "volunteers", 3, tmp_path)
    assert run.ending.balanced, run.ending.problems
    calls = [number for number, _ in run.ending.evaluated]
    assert calls == [0, 4, 8]
    assert {answers for _, answers in run.ending.evaluated} == {2}
    for call in calls:
        slot = [row for row in run.outcomes if call < row.round <= call + 4]
        # One who is still busy with the round before is left out of the next.
        assert len({row.agent for row in slot}) == 2
        assert len(slot) > 4


@pytest.mark.parametrize(
    ("sets", "policy", "words"),
    [
        (("world.churn.share=0.1",), "random", r"^world\.churn\.share: replaces agents"),
        (("world.kind=open", "world.edges=1"), "random", r"^world\.kind: is open"),
        (
            ("world.flips.every=3",),
            "random",
            r"^world\.flips\.every: is not played .* leave out --full",
        ),
        (("world.bad_edge.fails=0.1",), "random", r"^world\.bad_edge\.fails: is not played"),
        ((), "oracle", "^policy: oracle needs what no live coordinator"),
    ],
)
def test_what_cannot_be_live_is_said(
    tmp_path: Path, sets: tuple[str, ...], policy: str, words: str
) -> None:
    with pytest.raises(RecipeError, match=words):
        play_full(small(*sets), policy, 1, tmp_path)
