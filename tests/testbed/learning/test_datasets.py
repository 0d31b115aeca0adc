"""Datasets are there, scaled and split; a made-up sparse one; weather whose zeros persist."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fedagent_task.errors import DatasetError
from fedagent_testbed.learning.datasets import (
    LAGS,
    WARMER_C,
    StudyData,
    load_classes,
    load_data,
    stations_of,
)


@pytest.fixture(autouse=True)
def read_anew() -> None:
    load_data.cache_clear()


def test_absent_files_say_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDAGENT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatasetError) as caught:
        load_classes("mnist")
    assert caught.value.path == "mnist"
    assert "FEDAGENT_DATA" in caught.value.hint
    assert "mnist/train-images-idx3-ubyte.gz" in caught.value.hint


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
