"""Recipes of studies: ours load, errors name the key and the hint, overrides win."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator import policies
from fedagent_task.errors import RecipeError
from fedagent_testbed.study import load_recipe, make_policy, recipe_names, world_names
from fedagent_testbed.study.selection import policy_names, policy_params
from fedagent_testbed.study.streams import SETS, controls_of


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_ours_loads(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.about
    if recipe.world == "bas":
        for pair in {recipe.policy, *recipe.compare} - {*SETS}:
            controls_of(pair)
        return
    assert recipe.policy in policies.names()
    assert set(recipe.compare) <= set(policy_names(recipe))
    for policy in recipe.policies:
        make_policy(recipe, policy)


def test_there_are_recipes() -> None:
    assert "cocs-decisions" in recipe_names()


def test_the_sets_of_gda_are_drawn_once_and_none_is_the_best() -> None:
    sets = load_recipe("gda-mnist").policies["round-robin"]["sets"]
    rng = np.random.default_rng(5)
    drawn = [sorted(rng.choice(20, 5, replace=False).tolist()) for _ in range(4)]
    assert sets == [[0, 1, 10, 15, 19], *drawn]
    assert all(set(one) != {0, 1, 2, 3, 4} for one in drawn)


@pytest.mark.parametrize("rounds", [1, 3])
def test_every_policy_over_sets_has_the_slots_of_the_training(rounds: int) -> None:
    recipe = load_recipe("gda-mnist", [f"training.slot_rounds={rounds}"])
    found = {name: policy_params(recipe, name)[1].get("slot_rounds") for name in recipe.compare}
    assert found.pop("fixed") is None
    assert set(found.values()) == {rounds}
    same = [f"training.slot_rounds={rounds}", f"policies.ucb.slot_rounds={rounds}"]
    make_policy(load_recipe("gda-mnist", same), "ucb")
    other = load_recipe("gda-mnist", [*same[:1], "policies.ucb.slot_rounds=2"])
    with pytest.raises(RecipeError, match=r"set training\.slot_rounds=2") as caught:
        make_policy(other, "ucb")
    assert caught.value.key == "policies.ucb.slot_rounds"


def test_overrides_win_and_are_exact() -> None:
    recipe = load_recipe(
        "cocs-decisions",
        ["budget.per_edge=0.1", "rounds.count=7", "policies.cocs.h=3", "clients = 8", "clients=9"],
    )
    assert recipe.budget_micro == 100_000
    assert recipe.rounds.count == 7
    assert recipe.rounds.deadline_s == 3.0
    assert recipe.policies["cocs"] == {"h": 3}
    assert recipe.policies["cocs-paper"]["h"] == 5
    assert recipe.clients == 9


def test_a_file_is_read_like_a_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\n[rounds]\ncount = 3\n')
    assert load_recipe(path).rounds.count == 3
    assert load_recipe(str(path), ["rounds.count=4"]).rounds.count == 4


SEE = "docs/testbed.md"
COCS, EXCHANGE, STREAMS = "cocs-decisions", "rbcs-f-numeric", "bas-a9a"


@pytest.mark.parametrize(
    ("recipe", "change", "key", "words"),
    [
        (COCS, "round.count=5", "round", "did you mean rounds?"),
        (COCS, "rounds.cuont=5", "rounds.cuont", "did you mean rounds.count?"),
        (COCS, "deadline_s=3", "deadline_s", "did you mean rounds.deadline_s?"),
        (COCS, "training.modle=svm", "training.modle", "did you mean training.model?"),
        (COCS, "training.judged_on=own", "training.judged_on", "training.evaluated_on?"),
        (COCS, "qqq=1", "qqq", SEE),
        (COCS, "clients=0", "clients", SEE),
        (COCS, "clients=2.5", "clients", SEE),
        (COCS, "clients=", "clients", SEE),
        (COCS, "world=moon", "world", SEE),
        (COCS, "rounds=3", "rounds", SEE),
        (COCS, "name=2020-01-01", "name", "must be text (got 2020-01-01)"),
        (COCS, "rounds.deadline_s=07:32:00", "rounds.deadline_s", "must be a number"),
        (COCS, "work.price=[1, 2020-01-01]", "work.price", "must be a number"),
        (COCS, "rounds.deadline_s=inf", "rounds.deadline_s", "finite"),
        (COCS, "radio.noise_dbm_hz=nan", "radio.noise_dbm_hz", "finite"),
        (COCS, "radio.bandwidth_mhz=[1, inf]", "radio.bandwidth_mhz", "finite"),
        (COCS, "work.price=[2, 1]", "work.price", "low <= high"),
        ("noise", "chances.own=[0.9, 0.1]", "chances.own", "low <= high"),
        (COCS, "work.compute=[0, 1]", "work.compute", SEE),
        (COCS, "speeds.factor=[0, 0.5]", "speeds.factor", "(got [0, 0.5])"),
        (COCS, "links.visible=4", "links.visible", "`edges`"),
        (COCS, "training.dataset=digits", "training.epochs", "one of the two"),
        (COCS, "world=open", "edges", "one edge"),
        (COCS, "policies.nope.x=1", "policies.nope", "there are"),
        (COCS, "policies.cosc.h=1", "policies.cosc", "did you mean cocs?"),
        (COCS, "policies.cocs=3", "policies.cocs", "must be a table (got 3)"),
        (COCS, "policies=3", "policies", "must be a table (got 3)"),
        (COCS, "budget.per_edge=1e11", "budget.per_edge", "1000000000.0"),
        (COCS, "radio.noise_dbm_hz=1e30", "radio.noise_dbm_hz", "-80"),
        (COCS, "radio.path_loss_slope_db=-1e5", "radio.path_loss_slope_db", ">= 0"),
        (STREAMS, "policies.cocs.h=1", "policies.cocs", "is no policy of world bas"),
        (EXCHANGE, "exchange.work_s=[]", "exchange.work_s", SEE),
        (EXCHANGE, "exchange.work_s=[1, -1, 2, 3]", "exchange.work_s", SEE),
        (EXCHANGE, "exchange.snr=[1, 2]", "exchange.snr", "one per class"),
        (EXCHANGE, "exchange.cold_s=-1", "exchange.cold_s", SEE),
        (EXCHANGE, "clients=41", "clients", "multiple of 4"),
        (EXCHANGE, "edges=2", "edges", "one edge"),
    ],
)
def test_an_error_names_the_key_and_the_hint(
    recipe: str, change: str, key: str, words: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, [change])
    assert caught.value.key == key
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_price_that_no_ledger_holds_is_refused() -> None:
    dear = ["work.price=[1, 1e4]", "work.compute=[1, 1e4]", "late.price_factor=1000"]
    assert load_recipe(COCS, dear).late.share == 0
    with pytest.raises(RecipeError, match="below 1000000000") as caught:
        load_recipe(COCS, [*dear, "late.share=0.1"])
    assert caught.value.key == "work.price"


@pytest.mark.parametrize(
    ("recipe", "change", "worlds"),
    [
        (EXCHANGE, "rounds.deadline_s=3", "radio and traces and chances and recorded and open"),
        (EXCHANGE, "rounds.min_updates=2", "radio and traces and chances and recorded"),
        (EXCHANGE, "churn.share=0.1", "radio and traces and chances and recorded"),
        (EXCHANGE, "change.after=0.1", "radio"),
        (EXCHANGE, "success=0.5", "open"),
        (EXCHANGE, "traces.round_s=3", "traces"),
        ("gda-mnist", "rounds.max_wait_s=3", "radio and traces and chances and recorded"),
        ("gda-mnist", "exchange.cold_s=3", "exchange"),
        (COCS, "success=0.5", "open"),
        (COCS, "chances.by=own", "chances"),
        (EXCHANGE, "late.share=0.1", "radio and traces and chances and recorded"),
        (EXCHANGE, "bad_edge.slower=2", "radio and traces"),
        ("gda-mnist", "speeds.share=0.1", "radio and traces"),
        (COCS, "streaming.budget=3", "bas"),
        (
            STREAMS,
            "budget.per_edge=3",
            "radio and traces and chances and recorded and exchange and open",
        ),
        (STREAMS, "rounds.deadline_s=3", "radio and traces and chances and recorded and open"),
    ],
)
def test_a_key_that_the_world_does_not_use_is_refused(
    recipe: str, change: str, worlds: str
) -> None:
    with pytest.raises(RecipeError, match="is not used by world") as caught:
        load_recipe(recipe, [change])
    assert caught.value.key == change.partition("=")[0]
    assert caught.value.hint == f"leave it out, it is for {worlds}"


def test_another_world_leaves_out_what_the_recipe_says_for_its_own_only() -> None:
    moved = ["world=exchange", "edges=1", "clients=12"]
    made = load_recipe("cocs-decisions", moved)
    assert made.radio == load_recipe("rbcs-f-numeric").radio
    assert made.rounds.max_wait_s == 6.0
    with pytest.raises(RecipeError, match=r"radio\.noise_dbm_hz: is not used by world exchange"):
        load_recipe("cocs-decisions", [*moved, "radio.noise_dbm_hz=-160"])


def test_a_file_with_a_key_of_another_world_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nworld = "open"\nedges = 1\n[radio]\nnoise_dbm_hz = -160\n')
    with pytest.raises(RecipeError, match=r"radio\.noise_dbm_hz"):
        load_recipe(path)


def test_nothing_after_the_sign_is_the_empty_text() -> None:
    assert load_recipe("cocs-mnist", ["training.dataset="]).training.dataset == ""


def test_a_recipe_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(RecipeError, match="cocs-decisions"):
        load_recipe("cocs-decision")
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe("/nowhere/x.toml")


def test_a_world_is_its_base_with_its_own_keys_over_it() -> None:
    base, world = load_recipe("cocs-decisions"), load_recipe("middling")
    assert world.name == "middling"
    assert world.world == "chances"
    assert world.chances.by == "compute"
    assert (world.work, world.rounds, world.compare) == (base.work, base.rounds, base.compare)
    assert world.radio == type(base.radio)()
    assert load_recipe("dying", ["dying.share=0.1"]).dying.share == 0.1
    assert load_recipe("middling", ["world=radio"]).chances == type(base.chances)()
    with pytest.raises(RecipeError, match="is not used by world chances"):
        load_recipe("middling", ["radio.noise_dbm_hz=-160"])


def test_the_worlds_are_recipes() -> None:
    assert set(world_names()) <= set(recipe_names())
    assert len(recipe_names()) == len(set(recipe_names()))
