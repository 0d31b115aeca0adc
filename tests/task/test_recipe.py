"""Recipes: good ones are read exactly, bad ones teach in one line."""

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedagent_protocol.messages import Weighting
from fedagent_task.errors import RecipeError, TaskFormatError
from fedagent_task.recipe.explain import recipe_keys
from fedagent_task.recipe.spec import OpinionsSpec
from fedagent_task.recipe.text import (
    MAX_TASK_BYTES,
    override,
    parse_recipe,
    parse_task,
    read_table,
    recipe_digest,
    task_bytes,
    task_of,
)

ROOT = Path(__file__).parents[2]
RECIPES = [*sorted((ROOT / "deploy" / "recipes").glob("*.toml")), ROOT / "bench" / "wire.toml"]
GOOD = """
name = "small"
[model]
kind = "softmax"
features = 64
classes = 10
[rounds]
count = 60
deadline_s = 2.5
[budget]
per_edge = 3.5
total = 0.000001e9
"""


def _error(assignment: str) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(GOOD, [assignment])
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_small_recipe_gets_documented_defaults() -> None:
    recipe = parse_recipe(GOOD)
    assert recipe.budget.per_edge_micro == 3_500_000
    assert recipe.budget.total_micro == 1_000_000_000
    assert recipe.rounds.max_wait_s == 5.0
    assert recipe.rounds.weighting is Weighting.SAMPLES
    assert (recipe.policy.name, recipe.placement.name) == ("adaptive", "coordinator")
    assert recipe.evaluation.dataset == "none"


def test_the_whole_line_says_key_reason_and_hint() -> None:
    assert str(_error("budget.per_edge=-1")) == (
        "budget.per_edge: must be > 0 (got -1); write credits, e.g. per_edge = 3.5"
    )


@pytest.mark.parametrize(
    ("assignment", "key", "says"),
    [
        ("rounds.count=-1", "rounds.count", "must be >= 0 (got -1)"),
        ("rounds.cuont=1", "rounds.cuont", "did you mean rounds.count?"),
        ("rate=0.1", "rate", "did you mean learner.rate?"),
        ("budget.per_edge=0.1234567", "budget.per_edge", "more than 6 decimals"),
        ("budget.per_edge=inf", "budget.per_edge", "finite"),
        (f"budget.per_edge=1{'0' * 400}", "budget.per_edge", "must be <= 1000000000"),
        ("budget.per_edge='3'", "budget.per_edge", "must be a number"),
        ("budget.total=1", "budget.total", "less than budget.per_edge"),
        ("budget={}", "budget.per_edge", "is missing"),
        ("model=4", "model", "must be a table"),
        ("model.kind=tree", "model.kind", "softmax, logistic, linear, svm, mf, mlp, cnn"),
        ("model.kind=mlp", "model.hidden", "is missing"),
        ("model.hidden=[5]", "model.hidden", "for kind = mlp only"),
        ("learner.backend=torch", "learner.backend", "does not train a softmax"),
        ("model.classes=1", "model.classes", "from 2"),
        ("model.features=60000000", "model.features", "parameters"),
        ("model={kind='mf',features=2,users=5,items=5}", "model.rank", "is missing"),
        ("model={kind='mf',features=3,users=5,items=5,rank=1}", "model.features", "must be 2"),
        ("data.scale=0", "data.scale", "other than 0"),
        ("data.labels=['a','b']", "data.labels", "10 different names"),
        ("model.features=100000", "learner.buffer", "on a device"),
        ("rounds.max_wait_s=1", "rounds.max_wait_s", ">= rounds.deadline_s = 2.5 (got 1)"),
        ("rounds.deadline_s=nan", "rounds.deadline_s", "finite"),
        ("name=Two Words", "name", "text matching"),
        ("rounds.count.deeper=1", "count", "not a section"),
        ("name=", "'name='", "write key.path=value"),
    ],
)
def test_every_error_names_its_key_and_teaches(assignment: str, key: str, says: str) -> None:
    error = _error(assignment)
    assert error.key == key
    assert says in str(error)
    assert error.hint


@pytest.mark.parametrize(
    ("sets", "key", "says"),
    [
        (["model.layout=fashion"], "model.features", "write features = 784"),
        (["model.layout=lenet"], "model.layout", "one of fashion, cifar"),
        (["model.layout=fashion", "model.image=[28,28]"], "model.image", "has 2 numbers"),
        (["model.layout=fashion", "model.image=[8,8,1]"], "model.image", "at least 16 rows"),
        (["model.layout=fashion", "model.image=[4096,4096,4]"], "model.features", "67108864"),
    ],
)
def test_a_network_says_what_its_images_must_be(sets: list[str], key: str, says: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(GOOD, ["model.kind=cnn", *sets])
    assert caught.value.key == key
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("opinions", "refused"),
    [
        (OpinionsSpec(mode="peers"), True),
        (OpinionsSpec(epsilon=1.0), True),
        (OpinionsSpec(mode="off", epsilon=1.0), False),
        (OpinionsSpec(mode="report"), False),
    ],
)
def test_no_score_leaves_a_device_beside_what_its_opinions_keep_back(
    opinions: OpinionsSpec, refused: bool
) -> None:
    task = structs.replace(task_of(parse_recipe(GOOD)), opinions=opinions)
    assert parse_task(task_bytes(task)) == task
    telling = task_bytes(structs.replace(task, on_device=True))
    if not refused:
        assert parse_task(telling).on_device
        return
    with pytest.raises(TaskFormatError) as caught:
        parse_task(telling)
    assert caught.value.key == "evaluation.on_device"


def test_text_that_is_not_toml_is_one_error() -> None:
    for text in ("name = ", "[a]\n[a]", "x" * 300_000, "a = 1\x00"):
        with pytest.raises(RecipeError) as caught:
            read_table(text)
        assert caught.value.key == "recipe"


@settings(max_examples=40)
@given(st.text(max_size=200))
def test_any_text_is_a_recipe_or_a_typed_error(text: str) -> None:
    try:
        parse_recipe(text)
    except RecipeError as error:
        assert error.key


@given(
    st.sampled_from([key.name for key in recipe_keys()]),
    st.one_of(
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.booleans(),
        st.sampled_from(["{}", "[]", "[1,2]", "'x'", "1979-05-27", "{a=[[]]}"]),
    ),
)
def test_any_value_of_any_key_is_taken_or_refused_by_name(key: str, value: object) -> None:
    text = str(value).lower() if not isinstance(value, str) else value
    try:
        recipe = parse_recipe(GOOD, [f"{key}={text}"])
    except RecipeError as error:
        assert "; " in str(error)
    else:
        assert parse_task(task_bytes(recipe)) == task_of(recipe)


@settings(max_examples=40)
@given(st.integers(1, 10**15))
def test_credits_are_exact_to_the_micro(micro: int) -> None:
    text = f"{micro // 10**6}.{micro % 10**6:06d}"
    assert parse_recipe(GOOD, ["budget={}", f"budget.per_edge={text}"]).budget.per_edge_micro == (
        micro
    )


def test_overrides_leave_the_table_alone_and_take_bare_words() -> None:
    table = read_table(GOOD)
    changed = override(override(table, "policy.name=cheapest"), "policy.params.eps = 0.5")
    assert "policy" not in table
    assert changed["policy"]["name"] == "cheapest"  # type: ignore[index] # a TOML table
    assert parse_recipe(GOOD, ["policy.params.eps=0.5"]).policy.params == {"eps": 0.5}


def test_the_digest_names_the_content_and_nothing_else() -> None:
    shuffled = GOOD.replace("count = 60\ndeadline_s = 2.5", "deadline_s = 2.50\ncount = 60")
    spelled = parse_recipe(GOOD + "# a comment\n[learner]\nname = 'minibatch'\n")
    assert recipe_digest(parse_recipe(shuffled)) == recipe_digest(parse_recipe(GOOD))
    assert recipe_digest(spelled) == recipe_digest(parse_recipe(GOOD))
    assert recipe_digest(parse_recipe(GOOD, ["seed=1"])) != recipe_digest(parse_recipe(GOOD))


def test_only_what_devices_need_travels() -> None:
    recipe = parse_recipe(GOOD, ["learner.rate=0.25", "limits.norm=9"])
    task = parse_task(task_bytes(recipe))
    assert task == task_of(recipe)
    assert (task.learner.rate, task.limits.norm) == (0.25, 9.0)
    assert b"per_edge" not in task_bytes(recipe)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_task_or_a_typed_error(body: bytes) -> None:
    try:
        parse_task(body)
    except TaskFormatError as error:
        assert str(error).startswith(error.key)


def test_a_task_of_newer_software_is_refused_by_key() -> None:
    table = msgspec.msgpack.decode(task_bytes(parse_recipe(GOOD)))
    for key, change in (
        ("learner.daring", {"learner": {"daring": 0.9}}),
        ("learner.name", {"learner": {"name": "magic"}}),
        ("version", {"version": 2}),
        ("model.classes", {"model": {**table["model"], "classes": 1}}),
    ):
        with pytest.raises(TaskFormatError) as caught:
            parse_task(msgspec.msgpack.encode({**table, **change}))
        assert caught.value.key == key
    with pytest.raises(TaskFormatError):
        parse_task(b"\x00" * (MAX_TASK_BYTES + 1))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_shipped_recipes_are_good(path: Path) -> None:
    assert parse_recipe(path.read_text()).name


def test_every_key_stands_in_the_reference() -> None:
    reference = (ROOT / "docs" / "recipe.md").read_text()
    cells = {row.split("|")[1] for row in reference.splitlines() if row.startswith("|")}
    known = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    missing = [key.name for key in recipe_keys() if key.name not in known]
    assert not missing
