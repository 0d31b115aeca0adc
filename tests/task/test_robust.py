"""Each robust rule against a few lines of numpy, whatever liars send, in blocks of any length."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_protocol.errors import ParameterError
from fedagent_task.aggregation import ALL_TRAIN, Contribution, Rules, Weighed, combining
from fedagent_task.aggregation.alignment import (
    COPIED,
    DOUBTS,
    LENGTH,
    OPPOSED,
    UNLIKE,
    Signs,
    Sketch,
    doubts,
    gram_of,
    judged,
    remembered,
)
from fedagent_task.aggregation.averaging import FedAvg, FedNova
from fedagent_task.aggregation.bounds import Told, settled
from fedagent_task.aggregation.combining import combine
from fedagent_task.aggregation.robust import Robust, registry

Floats = npt.NDArray[np.float64]
LIARS = 4
HONEST = 16
CENTRE = np.linspace(-1.0, 1.0, 40)


def made(name: str, updates: Floats, **params: float) -> Floats:
    """Return what a rule makes of float64[n, d], as two tensors."""
    rule = registry.create(name, **params)
    terms = [Weighed(1.0, 1.0)] * len(updates)
    return of_terms(rule, updates, terms)


def of_terms(
    rule: Robust, updates: Floats, terms: list[Weighed], rules: Rules = ALL_TRAIN
) -> Floats:
    half = updates.shape[1] // 2
    opened = [
        ((lambda row=row: {"a": row[:half], "b": row[half:]}), term)
        for row, term in zip(updates, terms, strict=True)
    ]
    base = {"a": np.zeros(half), "b": np.zeros(updates.shape[1] - half)}
    model = combine(rule, opened, rules).apply(base)
    return np.concatenate([np.asarray(model[name], np.float64) for name in ("a", "b")])


def trimmed(updates: Floats, cut: int) -> Floats:
    kept = np.sort(updates, axis=0)[cut : len(updates) - cut]
    return np.asarray(kept.mean(axis=0))


def krum(updates: Floats, share: float = 0.2) -> Floats:
    n = len(updates)
    out = int(np.ceil(share * n))
    scores = []
    for i in range(n):
        far = sorted(float(((updates[i] - updates[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(far[: n - out - 2]))
    kept = updates[np.argsort(scores, kind="stable")[: n - out]]
    return np.asarray(kept.mean(axis=0))


def weiszfeld(updates: Floats) -> Floats:
    at = updates.mean(axis=0)
    for _ in range(2000):
        far = np.linalg.norm(updates - at, axis=1)
        weights = 1.0 / np.maximum(far, 1e-6 * np.median(far))
        at = weights @ updates / weights.sum()
    return np.asarray(at)


def centred(updates: Floats, steps: int = 5) -> Floats:
    at = np.zeros(updates.shape[1])
    for _ in range(steps):
        apart = updates - at
        far = np.linalg.norm(apart, axis=1)
        at = at + (apart * np.minimum(1.0, np.median(far) / far)[:, None]).mean(axis=0)
    return at


REFERENCES: dict[str, Callable[[Floats], Floats]] = {
    "trimmed-mean": lambda rows: trimmed(rows, int(0.2 * len(rows))),
    "median": lambda rows: np.median(rows, axis=0),
    "multi-krum": krum,
    "geometric-median": weiszfeld,
    "centered-clipping": centred,
    "none": lambda rows: rows.mean(axis=0),
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("length", [1, 1 << 19])
def test_a_rule_is_that_of_its_paper(
    name: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combining, "_AT_ONCE", length)
    rng = np.random.default_rng(3)
    for n in (6, 7, 20):
        rows = rng.normal(size=(n, 150)) + 1.0
        assert np.allclose(made(name, rows), REFERENCES[name](rows), atol=1e-7)


def spread(seed: int) -> Floats:
    return CENTRE + 0.3 * np.random.default_rng(seed).normal(size=(HONEST, len(CENTRE)))


@pytest.mark.parametrize(
    "name", ["trimmed-mean", "median", "multi-krum", "geometric-median", "centered-clipping"]
)
@settings(max_examples=40)
@given(seed=st.integers(0, 99), by=st.sampled_from([-1e27, -1e6, -100.0, -1.0, 0.0, 1e6]))
def test_a_fifth_of_liars_moves_a_rule_by_no_more_than_the_honest_differ(
    name: str, seed: int, by: float
) -> None:
    honest = spread(seed)
    lies = np.tile(by * honest.mean(axis=0), (LIARS, 1))
    found = made(name, np.vstack([lies, honest]))
    farthest = float(np.linalg.norm(honest - honest.mean(axis=0), axis=1).max())
    assert np.linalg.norm(found - honest.mean(axis=0)) <= farthest


def told(samples: float, norm: float = 1.0, local_steps: float = 0.0) -> Contribution:
    return Contribution(num_samples=samples, norm=norm, local_steps=local_steps, most_steps=100.0)


@settings(max_examples=40)
@given(
    norms=st.lists(st.floats(0.5, 2.0), min_size=5, max_size=12),
    lie=st.floats(10.0, 1e30),
    liars=st.integers(1, 2),
)
def test_a_minority_is_held_to_a_multiple_of_the_median_of_norms_and_claims_in_the_first_round_too(
    norms: list[float], lie: float, liars: int
) -> None:
    rule = registry.create("clipped-mean")
    round_ = [(told(10.0, norm), 0.0) for norm in norms] + [(told(lie, lie), 0.0)] * liars
    found = settled(rule, FedAvg().weigh, round_, ())
    # At worst all liars are above, and so the median is the largest of the honest.
    for (one, _), weighed in zip(round_, found, strict=True):
        assert weighed.weight <= 20.0
        assert one.norm * weighed.clip <= 1.5 * max(norms) * (1 + 1e-9)
    for weighed in found[: len(norms)]:
        assert weighed.weight == 10.0


def test_one_update_alone_is_held_against_the_rounds_before() -> None:
    before = [Told(1.0, 0.0, 10.0, 0.0, 0.0)] * 8
    rule = registry.create("clipped-mean")
    (weighed,) = settled(rule, FedAvg().weigh, [(told(1e6, 1e6), 0.0)], before)
    assert weighed.weight == 20.0
    assert weighed.clip == pytest.approx(1.5e-6)
    (weighed,) = settled(rule, FedAvg().weigh, [(told(1e6, 1e6), 0.0)], ())
    assert weighed == FedAvg().weigh(told(1e6, 1e6))


def test_what_devices_tell_of_steps_is_bounded_too() -> None:
    rule = registry.create("clipped-mean")
    round_ = [(told(10.0, local_steps=8.0), 0.0)] * 4
    round_ += [(told(10.0, local_steps=steps), 0.0) for steps in (1.0, 100.0)]
    found = settled(rule, FedNova().weigh, round_, ())
    assert [one.coefficient for one in found[-2:]] == [10.0 / 4.0, 10.0 / 16.0]


@settings(max_examples=40)
@given(
    rows=st.lists(st.lists(st.floats(-2, 2, width=32), min_size=4, max_size=4), min_size=1),
    before=st.integers(0, 3),
)
def test_where_nothing_is_unusual_the_mean_is_the_plain_one_bit_for_bit(
    rows: list[list[float]], before: int
) -> None:
    updates = np.array(rows)
    rule, plain = registry.create("clipped-mean"), registry.create("none")
    round_ = [(told(10.0 + place % 3), 0.0) for place in range(len(updates))]
    history = [Told(1.0, 0.0, 10.0, 0.0, 0.0)] * before
    found = settled(rule, FedAvg().weigh, round_, history)
    base = settled(plain, FedAvg().weigh, round_, history)
    assert found == base
    assert np.array_equal(of_terms(rule, updates, found), of_terms(plain, updates, base))


def test_who_keeps_pointing_against_the_others_is_left_out_and_comes_back() -> None:
    rng = np.random.default_rng(0)
    names, before = [str(i) for i in range(20)], dict[str, float]()
    out = []
    for round_ in range(12):
        rows = CENTRE + rng.normal(size=(20, len(CENTRE)))
        if round_ < 6:
            rows[:4] *= -1.0
        past = np.array([before.get(name, np.nan) for name in names])
        now, against = judged(gram_of(list(rows)), past)
        before = remembered(before, names, now)
        out.append(against)
    assert all(row[:4].all() and not row[4:].any() for row in out[1:6])
    assert not out[-1].any()


def test_nobody_is_left_out_among_three_or_by_half() -> None:
    rows = [CENTRE, CENTRE, -CENTRE]
    now, against = judged(gram_of(rows), np.full(3, np.nan))
    assert not against.any()
    assert np.isnan(now).all()
    half = judged(gram_of([CENTRE, CENTRE, -CENTRE, -CENTRE]), np.full(4, np.nan))[1]
    assert not half.any()
    # Who does no work has no direction.
    now, _ = judged(gram_of([*[CENTRE] * 4, 0.0 * CENTRE]), np.full(5, np.nan))
    assert np.isnan(now[-1])


def test_sketches_have_the_inner_products_of_the_updates() -> None:
    rng, signs = np.random.default_rng(1), Signs(5)
    rows = rng.normal(size=(6, 30_000)) + 0.3
    rows[1] = -rows[0]
    sketches = []
    for row in rows:
        sketch = Sketch(signs)
        for start in range(0, row.size, 4096):
            sketch.take(row[start : start + 4096])
        sketches.append(sketch.values)
    far = 4.0 / np.sqrt(LENGTH) * float((rows**2).sum(axis=1).max())
    assert np.abs(gram_of(sketches) - gram_of(list(rows))).max() < far


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("clipped-mean", {"clip": 0.5}),
        ("trimmed-mean", {"share": 0.5}),
        ("geometric-median", {"steps": 0}),
        ("none", {"clip": 2.0}),
    ],
)
def test_parameters_out_of_range_are_refused(name: str, params: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        registry.create(name, **params)


def odd(updates: Floats, now: Floats) -> list[str]:
    return doubts(updates @ updates.T, now, now < -0.05, updates.shape[1])


@given(st.integers(0, 2**32), st.floats(1e-6, 0.02))
def test_devices_that_hardly_differ_are_no_copies_of_each_other(seed: int, size: float) -> None:
    updates = np.ones((7, 400)) + size * np.random.default_rng(seed).normal(size=(7, 400))
    found = odd(updates, np.ones(7))
    assert COPIED not in found


def test_a_copy_among_updates_that_differ_is_seen() -> None:
    updates = np.random.default_rng(3).normal(size=(7, 50)) + 1.0
    updates[4] = 2.0 * updates[1]
    found = odd(updates, np.ones(7))
    assert [place for place, why in enumerate(found) if why == COPIED] == [4]


def test_where_the_directions_of_all_are_noise_nobody_is_accused_of_his() -> None:
    """An honest device near convergence was left out as if it lied, and lost its trust."""
    rows = np.random.default_rng(3).normal(size=(8, 50))
    noise = np.array([-0.2, *np.linspace(-0.02, 0.05, 7)])
    assert odd(rows, noise) == [UNLIKE, *[""] * 7]
    agreed = np.array([-0.7, *np.linspace(0.68, 0.72, 7)])
    assert odd(rows, agreed) == [OPPOSED, *[""] * 7]
    # Nor where they agree less: an honest device with other data may oppose the rest.
    assert odd(rows, 0.5 * agreed) == [UNLIKE, *[""] * 7]
    # Nor are the directions of a model of few numbers, of which many are alike.
    assert odd(rows[:, :3], agreed) == [UNLIKE, *[""] * 7]
    assert odd(np.repeat(rows[:, :3], 2, axis=0), np.ones(16)) == [""] * 16


def test_honest_devices_that_follow_a_stream_are_never_accused() -> None:
    """4.6 % of such updates were: 12 fleets of eight devices, 100 rounds, ten samples in each."""
    accused, orders = 0, 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        centres, mix = rng.normal(size=(4, 16)), rng.dirichlet(np.full(4, 0.5), 8)
        model, alignments, names = np.zeros((17, 4)), dict[str, float](), list("abcdefgh")
        for _ in range(100):
            rows = []
            for shares in mix:
                y = rng.choice(4, 10, p=shares)
                x = np.c_[centres[y] + rng.normal(size=(10, 16)), np.ones(10)]
                said = np.exp(x @ model)
                said /= said.sum(axis=1, keepdims=True)
                said[np.arange(10), y] -= 1.0
                rows.append((-0.03 * x.T @ said).ravel())
            before = np.array([alignments.get(name, np.nan) for name in names])
            gram = gram_of(rows)
            now, against = judged(gram, before)
            found = doubts(gram, now, against, model.size)
            alignments = remembered(alignments, names, now)
            accused += sum(one in DOUBTS for one in found)
            orders += len(found)
            model += np.mean(rows, axis=0).reshape(model.shape)
    assert (accused, orders) == (0, 9600)
