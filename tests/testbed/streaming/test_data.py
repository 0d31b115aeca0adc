"""What streams carry: real sets, a made-up sparse one, and weather whose zeros persist."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedagent_task.errors import DatasetError, RecipeError
from fedagent_task.samples import Csr
from fedagent_testbed.streaming import data as module
from fedagent_testbed.streaming.data import learner_spec, load_stream, make_model
from fedagent_testbed.streaming.spec import Streaming
from fedagent_testbed.streaming.weather import LAGS, UNIT_C, stations_of

REAL = os.environ.get("FEDAGENT_DATA", "")


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Path:
    if not REAL:
        pytest.skip("FEDAGENT_DATA names no data folder")
    monkeypatch.setenv("FEDAGENT_DATA", REAL)
    return Path(REAL)


@pytest.mark.usefixtures("real")
def test_the_real_sets_have_their_published_sizes() -> None:
    for name, shape, tests in (
        ("a9a", (32_561, 123), 16_281),
        ("ml-100k", (90_000, 2), 10_000),
        ("fashion-mnist", (60_000, 784), 10_000),
    ):
        found = load_stream(Streaming(dataset=name))  # type: ignore[arg-type] # one of the names
        assert found.x.shape == shape
        assert len(found.test_y) == tests
    ratings = load_stream(Streaming(dataset="ml-100k"))
    assert {"users": 943, "items": 1682}.items() <= dict(ratings.model).items()
    module._loaded.cache_clear()


@pytest.mark.usefixtures("real")
def test_the_real_weather_has_eight_stations() -> None:
    found = load_stream(Streaming(dataset="weather"))
    assert found.shards is not None
    assert len(found.shards) == 8
    persistence = UNIT_C * np.sqrt(np.mean(found.y**2))
    assert 1.0 < persistence < 2.0
    module._loaded.cache_clear()


def test_the_sparse_set_is_as_rcv1_is() -> None:
    found = load_stream(Streaming(dataset="sparse"))
    assert isinstance(found.x, Csr)
    assert found.x.shape == (20_242, 47_236)
    assert 1e-2 * len(found.x.values) / 20_242 / 47_236 == pytest.approx(1.6e-5, rel=0.1)
    norms = np.sqrt(np.bincount(found.x.owners, found.x.values.astype(np.float64) ** 2))
    np.testing.assert_allclose(norms, 1.0, rtol=1e-5)
    assert 0.4 < found.y.mean() < 0.6
    x, y = found.rows(np.array([3, 1]))
    assert len(x) == len(y) == 2
    module._loaded.cache_clear()


def test_weather_samples_know_nothing_of_the_next_hour() -> None:
    hours = 60
    values = np.zeros((1, hours, 3))
    values[0, :, 0] = np.arange(hours) ** 2 / 10
    values[0, :, 1] = 1000.0
    before = stations_of(values)
    row = int(before.shards[0][10])
    at = LAGS + 10
    assert before.y[row] == pytest.approx((2 * at + 1) / 10 / UNIT_C)
    assert before.x[row, 0] == pytest.approx((2 * at - 1) / 10 / 10)
    changed = values.copy()
    changed[0, at + 1 :] += 7.0
    after = stations_of(changed)
    np.testing.assert_array_equal(before.x[row], after.x[row])
    assert after.y[row] == pytest.approx(before.y[row] + 7.0 / UNIT_C)


def test_an_hour_that_is_missing_is_left_out_with_all_that_need_it() -> None:
    values = np.random.default_rng(0).normal(size=(1, 100, 3))
    values[0, 50, 0] = np.nan
    found = stations_of(values)
    shard = found.shards[0]
    hours = np.flatnonzero(shard < 0) + LAGS
    assert hours.tolist() == list(range(49, 75))
    assert np.isfinite(found.x).all()
    rows = np.concatenate((shard[shard >= 0], found.tested))
    assert sorted(rows.tolist()) == list(range(len(found.y)))


def test_a_weather_file_of_another_shape_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sensor").mkdir()
    np.savez(tmp_path / "sensor/beijing_weather_hourly.npz", values=np.zeros((2, 3)))
    monkeypatch.setenv("FEDAGENT_DATA", str(tmp_path))
    module._loaded.cache_clear()
    with pytest.raises(DatasetError, match="shape"):
        load_stream(Streaming(dataset="weather"))


def test_keys_of_model_and_learner_are_checked() -> None:
    digits = load_stream(Streaming(dataset="digits"))
    model = make_model(digits, Streaming(model={"l2": 0.5}))
    assert (model.spec.features, model.spec.classes, model.spec.l2) == (64, 10, 0.5)
    with pytest.raises(RecipeError, match=r"streaming\.model"):
        make_model(digits, Streaming(model={"kind": "oracle"}))
    assert learner_spec(Streaming()).rate == 0.2
    with pytest.raises(RecipeError, match=r"streaming\.learner"):
        learner_spec(Streaming(learner={"name": "guess"}))
    with pytest.raises(RecipeError, match=r"streaming\.dataset"):
        load_stream(Streaming())
