"""Keys that do not go together are named when the recipe is read."""

from pathlib import Path

import pytest

from fedagent_task.errors import RecipeError
from fedagent_task.recipe.spec import LearnerSpec
from fedagent_task.recipe.text import parse_recipe

DEMO = (Path(__file__).parents[2] / "deploy/recipes/demo.toml").read_text()
MLP = ("model.kind=mlp", "model.hidden=[8]")
NOISE = ("privacy.mode=central", "rounds.weighting=uniform")
MASKS = ("secure_aggregation.minimum_cohort=3",)
STRATEGY = "aggregation.name"
MF = ("model={kind='mf',features=2,users=9,items=7,rank=2}",)


@pytest.mark.parametrize(
    "sets",
    [
        ("learner.momentum=0.9", "learner.weight_decay=0.1", "learner.decay=0.99"),
        ("learner.optimizer=adam", "learner.clip_norm=1"),
        (*MLP, "learner.device=cuda", "learner.precision=float16", "learner.threads=2"),
        ("aggregation.name=fednova", "learner.momentum=0.5"),
        ("aggregation.name=scaffold", "learner.clip_norm=1"),
        *((*NOISE, *MASKS, f"aggregation.name={n}") for n in ("fedavg", "fedprox", "fedadam")),
        (*MF, "learner.decay=0.9", "evaluation.dataset=none", "evaluation.target=0"),
    ],
)
def test_keys_that_go_together_are_taken(sets: tuple[str, ...]) -> None:
    parse_recipe(DEMO, sets)


@pytest.mark.parametrize(
    ("sets", "key"),
    [
        (("learner.name=strsaga", "learner.rate=0.01", "learner.optimizer=adam"), "optimizer"),
        (("learner.optimizer=adam", "learner.momentum=0.1"), "momentum"),
        (("learner.device=cuda",), "device"),
        ((*MLP, "learner.backend=numpy", "learner.device=cuda"), "device"),
        ((*MLP, "learner.device=cpu", "learner.precision=float16"), "precision"),
        (
            (*MF, "evaluation.dataset=none", "evaluation.target=0", "learner.momentum=0.5"),
            "momentum",
        ),
        (("aggregation.name=scaffold", "learner.name=strsaga"), STRATEGY),
        (("aggregation.name=scaffold", "learner.momentum=0.5"), STRATEGY),
        (("aggregation.name=fednova", "learner.optimizer=adam"), STRATEGY),
        (("aggregation={name='fednova',params={mu=0.1}}", "learner.momentum=0.5"), STRATEGY),
        (("aggregation={name='fedprox',params={mu=100}}",), STRATEGY),
        (("privacy.mode=central",), "rounds.weighting"),
        ((*NOISE, "rounds.count=0"), "privacy.releases"),
        ((*NOISE, "data.standardize=true", "data.scale=1", "data.offset=0"), "data.standardize"),
        ((*NOISE, "evaluation.on_device=true"), "evaluation.on_device"),
        ((*NOISE, "opinions.mode=report"), "opinions.epsilon"),
        (("privacy.mode=local", "rounds.weighting=uniform"), "limits.norm"),
        ((*NOISE, "aggregation.name=qfedavg"), "privacy.mode"),
        (("secure_aggregation.minimum_cohort=2",), "secure_aggregation.minimum_cohort"),
        ((*MASKS, "aggregation.name=scaffold"), "secure_aggregation.minimum_cohort"),
        ((*MASKS, "learner.name=none"), "learner.name"),
        ((*MASKS, "placement.name=budgeted-ucb"), "placement.name"),
    ],
)
def test_a_key_that_does_not_fit_is_refused_with_the_hint(sets: tuple[str, ...], key: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(DEMO, sets)
    assert caught.value.key == (key if "." in key else f"learner.{key}")
    assert caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sets", "keys"),
    [
        (("privacy.mode=local",), ["rounds.weighting", "limits.norm"]),
        (
            ("learner.batch=x", "rounds.cuont=3", "model.kind=7", "budget.per_edge=nan"),
            ["budget.per_edge", "model.kind", "learner.batch", "rounds.cuont"],
        ),
        (("model=3", "rounds={}"), ["model", "rounds.count", "rounds.deadline_s"]),
        (("learner.name=foo", "model.kind=bar"), ["model.kind", "learner.name"]),
        (("model.kind=cnn", "model.classes=1"), ["model.layout", "model.classes"]),
        (
            ("learner.batch=0", "rounds.stop=target", "evaluation.target=0"),
            ["learner.batch", "rounds.stop"],
        ),
    ],
)
def test_all_that_is_wrong_is_said_at_once(sets: tuple[str, ...], keys: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(DEMO, sets)
    said = str(caught.value).split(" | ")
    assert sorted(line.partition(":")[0] for line in said) == sorted(keys)
    assert all("; " in line for line in said)


def test_the_rate_falls_by_a_factor_a_round_and_is_never_0() -> None:
    assert [LearnerSpec(rate=1.0, decay=0.5).rate_at(t) for t in (1, 2, 3)] == [1.0, 0.5, 0.25]
    assert LearnerSpec(rate=0.1, decay=1e-6).rate_at(10**7) > 0
