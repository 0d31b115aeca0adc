"""Features of different units: declared scaling, and moments that add up exactly."""

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedagent_protocol.errors import ProtocolError
from fedagent_task.errors import RecipeError, TaskFormatError
from fedagent_task.models.features import scaled
from fedagent_task.moments import Moments
from fedagent_task.recipe.spec import DataSpec, FeatureSpec, Recipe
from fedagent_task.recipe.text import (
    MAX_TASK_BYTES,
    frozen,
    parse_recipe,
    parse_task,
    recipe_digest,
    task_bytes,
    task_of,
)

from .test_recipe import GOOD

PA = '{name="pa",mean=101325,deviation=500}'
LUX = '{name="lux",scale=1e-5,offset=-0.5}'
SMALL = ["model.features=3", f'data.features=[{PA},{LUX},{{name="open"}}]']


def _recipe(*sets: str) -> Recipe:
    return parse_recipe(GOOD, sets)


def test_each_feature_is_scaled_as_it_says_also_after_the_wire() -> None:
    recipe = _recipe(*SMALL)
    task = parse_task(task_bytes(recipe))
    assert task == task_of(recipe)
    x = np.array([[101825.0, 100_000.0, 1.0], [101325.0, 0.0, 0.0]])
    np.testing.assert_allclose(scaled(x, task.data), [[1, 0.5, 1], [0, -0.5, 0]], atol=1e-7)
    assert scaled(x, task.data).dtype == np.float32
    with pytest.raises(TaskFormatError, match=r"names 3 features, there are 2"):
        scaled(x[:, :2], task.data)
    assert recipe_digest(recipe) != recipe_digest(_recipe("model.features=3"))


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (f"[{PA}]", "has 1 entries, model.features is 3"),
        (f"[{PA},{PA},{LUX}]", "names 'pa' twice"),
        ('[{name="a",scale=0},{name="b"},{name="c"}]', "'a' has scale 0"),
        ('[{name="a",scale=1,mean=1,deviation=1},{name="b"},{name="c"}]', "has both"),
        ('[{name="a",mean=1},{name="b"},{name="c"}]', "only one of mean and deviation"),
        ('[{name="a",mean=1,deviation=0},{name="b"},{name="c"}]', "needs a deviation above 0"),
        ('[{name="a",scale=inf},{name="b"},{name="c"}]', "finite number"),
        ('[{name="a",sclae=1},{name="b"},{name="c"}]', "unknown key"),
        ('[{name="a\\n"},{name="b"},{name="c"}]', "not a printable name"),
        (f'[{{name="{"a" * 65}"}}]', "length"),
    ],
)
def test_a_wrong_feature_is_named(entries: str, says: str) -> None:
    with pytest.raises(RecipeError, match=r"data\.features") as caught:
        _recipe("model.features=3", f"data.features={entries}")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ((*SMALL, "data.scale=2"), "data.scale: cannot be combined with data.features"),
        (
            ("data.standardize=true", "data.offset=2"),
            "data.scale: cannot be combined with data.standardize",
        ),
        (
            ("model={kind='mf',features=2,users=5,items=5,rank=1}", "data.standardize=true"),
            "data.standardize: does not apply to mf",
        ),
        (
            ("model.features=2", f"data.features=[{PA},{LUX}]", "data.standardize=true"),
            "every feature is scaled",
        ),
        (("model.features=4000", "data.standardize=true"), "data.standardize: make the task"),
        (("model.features=60000", "data.standardize=true", "learner.buffer=1"), "stay under"),
    ],
)
def test_what_does_not_go_together_is_said(sets: tuple[str, ...], says: str) -> None:
    with pytest.raises(RecipeError) as caught:
        _recipe(*sets)
    assert says in str(caught.value)


def test_statistics_become_explicit_scaling_and_nothing_else_changes() -> None:
    recipe = _recipe(
        "model.features=3",
        f"data.features=[{PA},{{name='lux'}},{{name='z'}}]",
        "data.standardize=true",
    )
    x = np.array([[9e4, 1e5, 7.0], [9e4, 3e5, 7.0]], np.float32)
    assert (scaled(x, recipe.data) == x).all(), "raw until the statistics are there"
    found = Moments.of(x)
    data = frozen(recipe.data, found.means(), found.deviations())
    assert data.features == (
        recipe.data.features[0],
        FeatureSpec(name="lux", mean=2e5, deviation=1e5),
        FeatureSpec(name="z", mean=7.0, deviation=1.0),
    )
    assert data == DataSpec(features=data.features)
    assert scaled(x, data)[:, 1].tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("span", [0, 1_000_000_000])
def test_numbers_that_float32_cannot_tell_apart_are_scaled_to_about_1(span: int) -> None:
    ns = 1_763_000_000_000_000_000 + np.linspace(0, span, 50).astype(np.int64)
    raw = np.column_stack([ns, ns % 7]).astype(np.float64)
    found = Moments.of(raw.astype(np.float32))
    data = frozen(DataSpec(standardize=True), found.means(), found.deviations())
    assert np.abs(scaled(raw, data)).max() < 10


def test_a_task_that_may_be_standardized_can_be_told_afterwards() -> None:
    wide = _recipe("model.features=2900", "data.standardize=true")
    found = [1 / 3] * 2900
    task = structs.replace(task_of(wide), data=frozen(wide.data, found, found))
    body = task_bytes(task)
    assert 0.9 * MAX_TASK_BYTES < len(body) <= MAX_TASK_BYTES
    assert parse_task(body) == task


# ------------------------------------------------------------------- moments

FLOATS = st.floats(-(2.0**67), 2.0**67, width=32)
ROWS = st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=20)


def _exactly(rows: list[tuple[float, float]]) -> tuple[list[Fraction], list[Fraction]]:
    columns = list(zip(*rows, strict=True))
    return (
        [sum(map(Fraction, c), Fraction(0)) for c in columns],
        [sum((Fraction(v) ** 2 for v in c), Fraction(0)) for c in columns],
    )


@settings(max_examples=30)
@given(ROWS, st.randoms(use_true_random=False))
def test_moments_are_exact_whatever_the_order_and_the_grouping(rows, random) -> None:  # type: ignore[no-untyped-def]  # hypothesis' own types
    sums, squares = _exactly(rows)
    whole = Moments.of(np.array(rows, np.float32))
    assert [Fraction(s, 1 << 149) for s in whole.sums] == sums
    assert [Fraction(q, 1 << 298) for q in whole.squares] == squares
    mixed = random.sample(rows, len(rows))
    cuts = sorted(random.choices(range(len(rows) + 1), k=3))
    parts = [mixed[a:b] for a, b in itertools.pairwise((0, *cuts, len(rows)))]
    edges = [Moments.of(np.array(part, np.float32).reshape(len(part), 2)) for part in parts]
    random.shuffle(edges)
    assert sum(edges[1:], edges[0]) == whole
    again = Moments.decode(whole.encode(), features=2, most=len(rows))
    assert again == whole
    means = [float(s / len(rows)) for s in sums]
    assert whole.means() == means
    assert all(d > 0 for d in whole.deviations())


def test_names_stand_where_all_that_say_any_agree() -> None:
    plain = Moments.of(np.ones((2, 2), np.float32))
    ours, theirs = plain.called(("t", "h")), plain.called(("h", "t"))
    assert (plain + ours + plain).names == ("t", "h")
    assert (ours + theirs + ours).names is None
    for one in (plain, ours, ours + theirs):
        assert Moments.decode(one.encode(), features=2, most=9) == one
    for names in (("t", "t"), ("t", ""), ("t", "a\nb"), ("t", "x" * 65)):
        assert plain.called(names) is plain
        with pytest.raises(ProtocolError, match="form"):
            Moments.decode(replace(plain, names=names).encode(), features=2, most=9)


def test_what_no_samples_can_be_is_refused_in_one_word() -> None:
    good = Moments.of(np.array([[1.0, 2.0], [3.0, 2.0]], np.float32))
    huge = 1 << 400
    for bad, word in (
        (Moments(0, (0, 0), (0, 0)), "count"),
        (Moments(1001, good.sums, good.squares), "count"),
        (Moments(2, (huge, 0), good.squares), "sum"),
        (Moments(2, good.sums, (good.squares[0] // 2, good.squares[1])), "square"),
        (Moments(2, good.sums, (good.squares[0], 1 << 900)), "square"),
        (Moments(2, good.sums[:1], good.squares), "form"),
        (Moments(2, (1 << 2000, 0), good.squares), "form"),
    ):
        with pytest.raises(ProtocolError) as caught:
            Moments.decode(bad.encode(), features=2, most=1000)
        assert str(caught.value) == word


@given(st.binary(max_size=60))
def test_any_bytes_are_moments_or_one_error(data: bytes) -> None:
    try:
        found = Moments.decode(data, features=1, most=10)
    except ProtocolError as error:
        assert str(error) in {"form", "count", "sum", "square"}
    else:
        assert found.encode() == data
