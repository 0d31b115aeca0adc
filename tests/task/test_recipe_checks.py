"""Keys that do not go together are named when the recipe is read; the rate of each round."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_task.errors import RecipeError
from fedagent_task.recipe.schedule import rate_at
from fedagent_task.recipe.spec import LearnerSpec
from fedagent_task.recipe.text import parse_recipe

DEMO = (Path(__file__).parents[2] / "deploy/recipes/demo.toml").read_text()
MLP = ("model.kind=mlp", "model.hidden=[8]")
NOISE = ("privacy.mode=central", "rounds.weighting=uniform")
MASKS = ("secure_aggregation.minimum_cohort=3",)
STRATEGY = "aggregation.name"
MF = ("model={kind='mf',features=2,users=9,items=7,rank=2}", "data={dtype='int64'}")


@pytest.mark.parametrize(
    "sets",
    [
        ("learner.momentum=0.9", "learner.nesterov=true", "learner.weight_decay=0.1"),
        ("learner.optimizer=adam", "learner.betas=[0.8,0.9]", "learner.clip_norm=1"),
        ("learner.schedule=cosine", "learner.schedule_rounds=5", "learner.warmup_rounds=2"),
        ("learner.schedule=exponential", "learner.gamma=0.5"),
        (*MLP, "learner.device=cuda", "learner.precision=float16", "learner.threads=2"),
        ("aggregation.name=fednova", "learner.momentum=0.5"),
        ("aggregation.name=scaffold", "learner.clip_norm=1"),
        *((*NOISE, *MASKS, f"aggregation.name={n}") for n in ("fedavg", "fedprox", "fedadam")),
        (*MF, "learner.schedule=exponential", "evaluation.dataset=none", "evaluation.target=0"),
    ],
)
def test_keys_that_go_together_are_taken(sets: tuple[str, ...]) -> None:
    parse_recipe(DEMO, sets)


@pytest.mark.parametrize(
    ("sets", "key"),
    [
        (("learner.name=strsaga", "learner.rate=0.01", "learner.optimizer=adam"), "optimizer"),
        (("learner.name=strsaga", "learner.schedule=exponential"), "schedule"),
        (("learner.name=none", "learner.momentum=0.1"), "momentum"),
        (("learner.optimizer=adam", "learner.momentum=0.1"), "momentum"),
        (("learner.betas=[0.1,0.1]",), "betas"),
        (("learner.betas=[0.1]",), "betas"),
        (("learner.betas=[0.1,1.0]",), "betas"),
        (("learner.nesterov=true",), "nesterov"),
        (("learner.optimizer=adamm",), "optimizer"),
        (("learner.schedule=cosine",), "schedule_rounds"),
        (("learner.schedule_rounds=5",), "schedule_rounds"),
        (("learner.gamma=0.5",), "gamma"),
        (("learner.device=cuda",), "device"),
        (("learner.threads=2",), "threads"),
        ((*MLP, "learner.backend=numpy", "learner.device=cuda"), "device"),
        ((*MLP, "learner.device=cpu", "learner.precision=float16"), "precision"),
        (
            (*MF, "evaluation.dataset=none", "evaluation.target=0", "learner.momentum=0.5"),
            "momentum",
        ),
        (("aggregation.name=scaffold", "learner.name=strsaga"), STRATEGY),
        (("aggregation.name=fedprox", "learner.name=none"), STRATEGY),
        (("aggregation.name=scaffold", "learner.momentum=0.5"), STRATEGY),
        (("aggregation.name=fednova", "learner.optimizer=adam"), STRATEGY),
        (
            ("aggregation.name=fednova", "learner.momentum=0.5", "learner.nesterov=true"),
            STRATEGY,
        ),
        (("aggregation={name='fednova',params={mu=0.1}}", "learner.momentum=0.5"), STRATEGY),
        (("aggregation={name='fedprox',params={mu=100}}",), STRATEGY),
        (("privacy.mode=central",), "rounds.weighting"),
        ((*NOISE, "rounds.count=0"), "privacy.releases"),
        ((*NOISE, "data.standardize=true", "data.scale=1", "data.offset=0"), "data.standardize"),
        ((*NOISE, "evaluation.on_device=true"), "evaluation.on_device"),
        ((*NOISE, "opinions.mode=report"), "opinions.epsilon"),
        (("privacy.mode=local", "rounds.weighting=uniform"), "limits.norm"),
        ((*NOISE, "privacy.epsilon=0"), "privacy.epsilon"),
        ((*NOISE, "privacy.delta=1"), "privacy.delta"),
        ((*NOISE, "aggregation.name=qfedavg"), "privacy.mode"),
        (("secure_aggregation.minimum_cohort=2",), "secure_aggregation.minimum_cohort"),
        ((*MASKS, "secure_aggregation.threshold=0.5"), "secure_aggregation.threshold"),
        ((*MASKS, "aggregation.name=scaffold"), "secure_aggregation.minimum_cohort"),
        ((*MASKS, "aggregation.name=fednova"), "secure_aggregation.minimum_cohort"),
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


def _rates(rounds: int = 8, **keys: object) -> list[float]:
    spec = LearnerSpec(rate=1.0, **keys)  # type: ignore[arg-type] # by test
    return [round(rate_at(spec, number), 4) for number in range(1, rounds + 1)]


def test_a_schedule_gives_each_round_its_rate() -> None:
    assert _rates(3) == [1, 1, 1]
    assert _rates(5, warmup_rounds=4) == [0.25, 0.5, 0.75, 1, 1]
    assert _rates(4, schedule="exponential", gamma=0.5) == [1, 0.5, 0.25, 0.125]
    assert _rates(5, schedule="step", gamma=0.1, schedule_rounds=2) == [1, 1, 0.1, 0.1, 0.01]
    assert _rates(6, schedule="linear", schedule_rounds=4) == [1, 0.75, 0.5, 0.25, 0.25, 0.25]
    assert _rates(3, schedule="cosine", schedule_rounds=2) == [1, 0.5, 0.5]
    assert _rates(3, schedule="linear", schedule_rounds=2, warmup_rounds=1) == [1, 1, 0.5]


@given(
    schedule=st.sampled_from(["constant", "step", "exponential", "cosine", "linear"]),
    number=st.integers(0, 10_000_000),
    rounds=st.integers(0, 1000),
    warmup=st.integers(0, 100),
    gamma=st.floats(1e-6, 1),
)
def test_a_rate_is_above_0_and_no_larger_than_the_recipes(
    schedule: str, number: int, rounds: int, warmup: int, gamma: float
) -> None:
    spec = LearnerSpec(
        rate=0.1,
        schedule=schedule,  # type: ignore[arg-type] # one of them
        schedule_rounds=rounds,
        warmup_rounds=warmup,
        gamma=gamma,
    )
    assert 0 < rate_at(spec, number) <= 0.1
