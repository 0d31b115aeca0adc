"""Policies x worlds: shares, ranks and means out of numbers, and what is not played is said."""

from collections.abc import Mapping

import pytest

from fedagent_protocol.errors import UnknownNameError
from fedagent_task.errors import DatasetError, RecipeError
from fedagent_testbed.study import compare, compare_worlds, figure, load_recipe, play, world_names
from fedagent_testbed.study.matrix import Matrix, Played

RECORDED = {name for name in world_names() if load_recipe(name).world.kind == "traces"}


def made(**worlds: Mapping[str, tuple[float, ...]]) -> Matrix:
    return Matrix(
        {
            world: Played("", 10, {name: {"utility": figure(one)} for name, one in found.items()})
            for world, found in worlds.items()
        }
    )


CALM = {"adaptive": (90.0, 110.0), "cocs": (80.0, 80.0), "random": (40.0, 60.0)}
ROUGH = {"adaptive": (30.0, 30.0), "cocs": (60.0, 60.0), "oracle-p": (100.0, 100.0)}


def test_a_share_is_of_the_best_that_is_no_oracle() -> None:
    matrix = made(calm=CALM, rough=ROUGH)
    assert matrix.worlds["rough"].best == "cocs"
    assert matrix.share("calm", "cocs").per_seed == (80 / 90, 80 / 110)
    assert matrix.share("rough", "random").mean is None
    assert matrix.policies == ("cocs", "adaptive", "random")
    one = matrix.standings["adaptive"]
    assert one.mean_share == pytest.approx(0.75)
    assert one.mean_rank == 1.5
    assert (one.least_share, one.least_in) == (0.5, "rough")
    assert matrix.worlds["rough"].share("cocs", "oracle-p").mean == pytest.approx(0.6)


def test_a_world_of_the_matrix_is_the_comparison_of_its_recipe() -> None:
    sets = ["rounds.count=60"]
    matrix = compare_worlds(["never", "one"], ["cheapest", "fastest"], sets=sets, seeds=2)
    alone = compare(load_recipe("never", sets), ["cheapest"], seeds=2)
    found = matrix.worlds["never"].figures["cheapest"]
    assert found["utility"] == alone.figures("cheapest")["utility"]
    assert "bandwidth_hz" in matrix.worlds["one"].skipped["fastest"]
    (head, *covered) = matrix.coverage_rows()
    assert head == ["coverage", "cheapest"]
    assert {row[0] for row in covered} >= {"never: never_rate", "never: left_out"}
    record = matrix.record()
    assert record["policies"]["cheapest"]["worlds"] == 2  # type: ignore[index]  # JSON data
    assert record["worlds"]["never"]["policies"]["cheapest"]["rank"] == 1.0  # type: ignore[index]
    assert "60 rounds, 2 seeds" in matrix.notes()[0]


@pytest.mark.nightly
def test_recordings_that_are_not_there_skip_their_worlds_if_all_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FEDAGENT_DATA", raising=False)
    matrix = compare_worlds("all", ["cheapest"], sets=["rounds.count=2"], seeds=1)
    assert set(matrix.skipped) == RECORDED
    assert set(matrix.worlds) == set(world_names()) - RECORDED
    with pytest.raises(DatasetError):
        compare_worlds(min(RECORDED), ["cheapest"], seeds=1)
    with pytest.raises(RecipeError):
        compare_worlds("nowhere", ["cheapest"], seeds=1)


def test_policies_that_no_world_knows_or_can_feed_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="cocss"):
        compare_worlds(["one"], ["random", "cocss"], seeds=1)
    for wrong in ("oracle", "bp-ucb"):
        with pytest.raises(RecipeError):
            compare_worlds(["one"], [wrong], seeds=1)


def test_a_parameter_set_of_a_recipe_is_a_policy_of_its_own() -> None:
    sets = ["rounds.count=2", "policies.cocs-mine.base=cocs", "policies.cocs-mine.k_scale=1.0"]
    matrix = compare_worlds(["one"], ["random", "cocs-mine"], sets=sets, seeds=1)
    assert set(matrix.policies) == {"random", "cocs-mine"}
    hidden = ["rounds.count=2", "policies.best.base=oracle"]
    ranked = compare_worlds(["one"], ["random", "best"], sets=hidden, seeds=1)
    assert ranked.worlds["one"].skipped == {"best": "knows the truth"}
    with pytest.raises(RecipeError, match=r"policies\.mine"):
        compare_worlds(["one"], ["random"], sets=["policies.mine.base=cocss"], seeds=1)


@pytest.mark.parametrize("world", sorted(set(world_names()) - RECORDED))
def test_every_world_is_played_by_the_default_policy(world: str) -> None:
    history = play(load_recipe(world, ["rounds.count=5"]), "adaptive", 1)
    assert len(history) == 5
