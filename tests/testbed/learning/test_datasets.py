"""Datasets are there, scaled and split; a made-up sparse one; weather whose zeros persist."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fedagent_task.errors import DatasetError, RecipeError
from fedagent_task.models.samples import Csr
from fedagent_testbed.learning.datasets import (
    LAGS,
    WARMER_C,
    StudyData,
    load_classes,
    load_data,
    stations_of,
)
from fedagent_testbed.learning.fleet import learner_spec, make_model

WEATHER = "sensor/beijing_weather_hourly.npz"
REAL = os.environ.get("FEDAGENT_DATA", "")


@pytest.fixture(autouse=True)
def read_anew() -> None:
    load_data.cache_clear()


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Path:
    if not REAL:
        pytest.skip("FEDAGENT_DATA names no data folder")
    monkeypatch.setenv("FEDAGENT_DATA", REAL)
    return Path(REAL)


def test_digits_are_bundled_scaled_and_split() -> None:
    data = load_classes("digits")
    assert data.x.dtype == np.float32
    assert (data.x.shape, data.test_x.shape) == ((1438, 64), (359, 64))
    assert (data.dense_x.min(), data.dense_x.max(), data.classes) == (0.0, 1.0, 10)
    assert set(np.unique(data.test_y)) == set(range(10))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_absent_files_say_what_to_set(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FEDAGENT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatasetError) as caught:
        load_classes(name)
    assert caught.value.path == name
    assert "FEDAGENT_DATA" in caught.value.hint
    assert f"{name}/train-images-idx3-ubyte.gz" in caught.value.hint


def test_damaged_files_are_not_called_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    file.parent.mkdir()
    file.write_bytes(b"no images")
    monkeypatch.setenv("FEDAGENT_DATA", str(tmp_path))
    with pytest.raises(DatasetError, match="IDX header"):
        load_classes("mnist")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(DatasetError, match="digits, mnist, fashion-mnist"):
        load_classes("cifar")


@pytest.mark.usefixtures("real")
def test_the_real_sets_have_their_published_sizes() -> None:
    for name, shape, tests in (
        ("mnist", (60_000, 784), 10_000),
        ("fashion-mnist", (60_000, 784), 10_000),
        ("a9a", (32_561, 123), 16_281),
        ("ml-100k", (90_000, 2), 10_000),
    ):
        found = load_data(name)
        assert (found.x.shape, len(found.test_y)) == (shape, tests)
    ratings = load_data("ml-100k")
    assert {"users": 943, "items": 1682}.items() <= dict(ratings.model).items()
    weather = load_data("weather")
    assert weather.shards is not None
    assert len(weather.shards) == 8
    assert 1.0 < WARMER_C * np.sqrt(np.mean(weather.y**2)) < 2.0, "persistence"


def test_the_sparse_set_is_as_rcv1_is() -> None:
    found = load_data("sparse")
    assert isinstance(found.x, Csr)
    assert found.x.shape == (20_242, 47_236)
    assert 1e-2 * len(found.x.values) / 20_242 / 47_236 == pytest.approx(1.6e-5, rel=0.1)
    norms = np.sqrt(np.bincount(found.x.owners, found.x.values.astype(np.float64) ** 2))
    np.testing.assert_allclose(norms, 1.0, rtol=1e-5)
    assert 0.4 < found.y.mean() < 0.6
    x, y = found.rows(np.array([3, 1]))
    assert len(x) == len(y) == 2


def stations(values: npt.NDArray[np.float64]) -> tuple[StudyData, npt.NDArray[np.int64]]:
    """Return what is made of one station, and its rows by hour."""
    found = stations_of(values)
    assert found.shards is not None
    return found, found.shards[0]


def test_weather_samples_know_nothing_of_the_next_hour() -> None:
    values = np.zeros((1, 60, 3))
    values[0, :, 0] = np.arange(60) ** 2 / 10
    values[0, :, 1] = 1000.0
    before, shard = stations(values)
    row, at = int(shard[10]), LAGS + 10
    assert before.y[row] == pytest.approx((2 * at + 1) / 10 / WARMER_C)
    assert before.dense_x[row, 0] == pytest.approx((2 * at - 1) / 10 / 10)
    values[0, at + 1 :] += 7.0
    after, _ = stations(values)
    np.testing.assert_array_equal(before.dense_x[row], after.dense_x[row])
    assert after.y[row] == pytest.approx(before.y[row] + 7.0 / WARMER_C)


def test_an_hour_that_is_missing_is_left_out_with_all_that_need_it() -> None:
    values = np.random.default_rng(0).normal(size=(1, 100, 3))
    values[0, 50, 0] = np.nan
    found, shard = stations(values)
    hours = np.flatnonzero(shard < 0) + LAGS
    assert hours.tolist() == list(range(49, 75))
    assert np.isfinite(found.dense_x).all()
    assert sorted(shard[shard >= 0]) == list(range(len(found.y) - len(found.test_y)))


def test_a_weather_file_of_another_shape_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sensor").mkdir()
    columns = np.array(["TEMP", "PRES", "WSPM"])
    np.savez(tmp_path / WEATHER, values=np.zeros((2, 100, 3)), columns=columns)
    monkeypatch.setenv("FEDAGENT_DATA", str(tmp_path))
    with pytest.raises(DatasetError, match="has 100 hours of TEMP, PRES, WSPM"):
        load_data("weather")


def test_keys_of_model_and_learner_are_checked() -> None:
    digits = load_data("digits")
    model = make_model(digits, {"l2": 0.5})
    assert (model.spec.features, model.spec.classes, model.spec.l2) == (64, 10, 0.5)
    with pytest.raises(RecipeError, match=r"^model"):
        make_model(digits, {"kind": "oracle"})
    assert learner_spec({}).rate == 0.2
    with pytest.raises(RecipeError, match=r"^learner"):
        learner_spec({"name": "guess"})
