"""Datasets of studies by name, scaled and split as their publishers split them."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_task.errors import DatasetError
from fedagent_task.models import Floats
from fedagent_task.models.base import Csr
from fedagent_task.readers import DATA_VARIABLE, Dataset, load
from fedagent_testbed.traces import recorded

CLASSES = ("digits", "mnist", "fashion-mnist", "a9a")
"""Those with classes, which federated training takes."""
RATINGS_TESTED = 10_000
LAGS = 24
WARMER_C = 2.0
"""Degrees that 1 of a label of the weather stands for."""

_WEATHER = "sensor/beijing_weather_hourly.npz"
_COLUMNS = ("TEMP_C", "PRES_hPa", "DEWP_C")
_HOURS = 24
_SPLIT_SEED = 1998
_SPARSE_ROWS, _SPARSE_TESTS, _SPARSE_WIDTH, _SPARSE_DRAWN = 20_242, 5_000, 47_236, 81


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudyData:
    """Samples to learn from, and others for tests.

    Attributes:
        shards: Indices of each device's samples by time, -1 where nothing came; None deals
            all samples to the devices at random.
    """

    name: str
    x: npt.NDArray[np.float32] | Csr  # float32[n, features] or sparse rows
    y: FloatArray
    test_x: npt.NDArray[np.float32] | Csr
    test_y: FloatArray
    model: Mapping[str, object]
    shards: tuple[IntArray, ...] | None = None
    unit: float = 1.0  # what 1 of `y` is, for errors of a regression

    @property
    def features(self) -> int:
        """Numbers per sample."""
        return int(self.x.shape[1])

    @property
    def classes(self) -> int:
        """How many classes there are; 0 of a regression."""
        return int(str(self.model.get("classes", 0)))

    @property
    def dense_x(self) -> npt.NDArray[np.float32]:
        """The samples of a dataset that is not sparse."""
        assert not isinstance(self.x, Csr), "only streams carry sparse rows"
        return self.x

    @property
    def dense_test_x(self) -> npt.NDArray[np.float32]:
        """The test samples of a dataset that is not sparse."""
        assert not isinstance(self.test_x, Csr), "only streams carry sparse rows"
        return self.test_x

    def rows(self, index: IntArray) -> tuple[Floats, FloatArray]:
        """Return some samples as a learner takes them."""
        # Learners of models that cannot take sparse rows refuse them by themselves.
        return self.x[index], self.y[index]  # type: ignore[return-value] # Csr where the model takes it

    def tests(self, count: int) -> tuple[Floats, FloatArray]:
        """Return the first samples for the loss; 0 for all."""
        stop = count or len(self.test_y)
        return self.test_x[:stop], self.test_y[:stop]  # type: ignore[return-value] # as in rows


@functools.lru_cache(maxsize=2)
def load_data(name: str) -> StudyData:
    """Read a dataset; all but ``digits`` and ``sparse`` lie below FEDAGENT_DATA.

    Raises:
        DatasetError: There is none of that name, its files are missing or damaged.
    """
    return _LOADERS[name]()


def load_classes(name: str) -> StudyData:
    """Read a dataset as `load_data`, one of those with classes."""
    if name not in CLASSES:
        raise DatasetError(name[:64], "no such dataset", f"take one of {', '.join(CLASSES)}")
    data = load_data(name)
    if name == "a9a":  # two classes as a softmax has them
        return replace(data, model={"kind": "softmax", "features": 123, "classes": 2})
    return data


def _files(
    name: str, train: str, test: str, model: dict[str, object], *, largest: float = 1.0
) -> StudyData:
    """Return what publishers split; numbers up to `largest` are scaled to 1."""
    scale = np.float32(1.0 / largest)
    arriving, held = (_part(name, file, int(str(model["features"]))) for file in (train, test))
    return StudyData(
        name=name,
        x=arriving.x.astype(np.float32) * scale,
        y=arriving.y.astype(np.float64),
        test_x=held.x.astype(np.float32) * scale,
        test_y=held.y.astype(np.float64),
        model=model,
    )


def _idx(folder: str) -> StudyData:
    file = "images-idx3-ubyte.gz"
    model: dict[str, object] = {"kind": "softmax", "features": 784, "classes": 10}
    return _files(folder, f"{folder}/train-{file}", f"{folder}/t10k-{file}", model, largest=255.0)


def _movielens() -> StudyData:
    ratings = _part("ml-100k", "movielens-100k/u.data.gz")
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(ratings))
    x, y = ratings.x[order].astype(np.float32) - 1, ratings.y[order].astype(np.float64)
    users, items = (int(top) + 1 for top in x.max(axis=0))
    return StudyData(
        name="ml-100k",
        x=x[RATINGS_TESTED:],
        y=y[RATINGS_TESTED:],
        test_x=x[:RATINGS_TESTED],
        test_y=y[:RATINGS_TESTED],
        model={"kind": "mf", "features": 2, "users": users, "items": items, "rank": 10},
    )


def _sparse() -> StudyData:
    """Return a made-up sparse set of rcv1's size: 20 242 x 47 236, 0.16 % dense."""
    rng = np.random.default_rng(_SPLIT_SEED)
    count = _SPARSE_ROWS + _SPARSE_TESTS
    x = _words(rng, count)
    weight = rng.standard_normal(_SPARSE_WIDTH)[None, :] * (rng.random(_SPARSE_WIDTH) < 0.2)
    score = x.dot(weight)[:, 0]
    score = 3 * (score - np.median(score)) / score.std()
    y = (rng.random(count) < 1 / (1 + np.exp(-score))).astype(np.float64)
    return StudyData(
        name="sparse",
        x=x[:_SPARSE_ROWS],
        y=y[:_SPARSE_ROWS],
        test_x=x[_SPARSE_ROWS:],
        test_y=y[_SPARSE_ROWS:],
        model={"kind": "logistic", "features": _SPARSE_WIDTH},
    )


def _words(rng: np.random.Generator, count: int) -> Csr:
    """Return rows of norm 1 whose columns are drawn by Zipf's law, as words of a text are."""
    chance = 1 / np.arange(10, _SPARSE_WIDTH + 10)
    edges = np.cumsum(chance / chance.sum())
    place = rng.permutation(_SPARSE_WIDTH)
    # A word that is drawn twice counts once, which leaves about 76 a row.
    drawn = np.searchsorted(edges, rng.random((count, _SPARSE_DRAWN)))
    drawn = np.sort(np.minimum(drawn, _SPARSE_WIDTH - 1), axis=1)
    first = np.ones(drawn.shape, dtype=np.bool_)
    first[:, 1:] = drawn[:, 1:] > drawn[:, :-1]
    size = first.sum(axis=1)
    indptr = np.concatenate(([0], np.cumsum(size))).astype(np.int64)
    columns = place[drawn[first]].astype(np.int32)
    values = rng.exponential(size=len(columns)) + 0.1
    norm = np.sqrt(np.add.reduceat(values**2, indptr[:-1]))
    return Csr(indptr, columns, (values / np.repeat(norm, size)).astype(np.float32), _SPARSE_WIDTH)


def _weather() -> StudyData:
    values, columns = recorded(_series, _WEATHER)
    if columns != _COLUMNS or values.shape[1] <= LAGS + 2:
        raise DatasetError(_WEATHER, f"is no series of {', '.join(_COLUMNS)}", "fetch it again")
    return stations_of(values.astype(np.float64))


def _series(path: Path) -> tuple[FloatArray, tuple[str, ...]]:
    with np.load(path, allow_pickle=False) as arrays:
        return arrays["values"], tuple(arrays["columns"].tolist())


def stations_of(values: FloatArray) -> StudyData:
    """Return a stream a station of float64[station, hour, 3]; the last tenth of hours is for tests.

    A sample is what a station knows in an hour that has all its numbers: temperature now less
    that of 1 to 24 hours ago, dew point below temperature, change of pressure in 3 hours, time of
    day. Its label is how much warmer the next hour is; so the model of zeros is persistence.
    All scales are constants, not taken from the data: a stream has no mean before it has ended.
    """
    hours = np.arange(LAGS, values.shape[1] - 1)
    last = len(hours) - len(hours) // 10
    tables, labels, shards, tested = [], [], [], []
    rows = 0
    for station in values:
        x, y = _samples(station, hours)
        known = np.isfinite(x).all(axis=1) & np.isfinite(y)
        index = np.where(known, rows + np.cumsum(known) - 1, -1)
        rows += int(known.sum())
        tables.append(x[known])
        labels.append(y[known])
        shards.append(index[:last].astype(np.int64))
        tested.append(index[last:][known[last:]])
    features, label = np.concatenate(tables).astype(np.float32), np.concatenate(labels)
    kept = np.concatenate(tested).astype(np.int64)
    return StudyData(
        name="weather",
        x=features,
        y=label,
        test_x=features[kept],
        test_y=label[kept],
        model={"kind": "linear", "features": features.shape[1]},
        shards=tuple(shards),
        unit=WARMER_C,
    )


def _samples(station: FloatArray, hours: IntArray) -> tuple[FloatArray, FloatArray]:
    warm, pressure, dew = station.T
    now = warm[hours]
    angle = 2 * np.pi * (hours % _HOURS) / _HOURS
    lags = np.stack([(now - warm[hours - k]) / 10.0 for k in range(1, LAGS + 1)], axis=1)
    others = np.stack(
        [
            (now - dew[hours]) / 10.0,
            (pressure[hours] - pressure[hours - 3]) / 3.0,
            np.sin(angle),
            np.cos(angle),
        ],
        axis=1,
    )
    return np.hstack([lags, others]), (warm[hours + 1] - now) / WARMER_C


def _part(name: str, file: str, features: int | None = None) -> Dataset:
    try:
        return load(file, features=features)
    except DatasetError as error:
        if error.reason != "no such file":
            raise
        hint = f"set {DATA_VARIABLE} to the folder that holds {file}"
        raise DatasetError(name, f"{file} is not here", hint) from error


_DIGITS: dict[str, object] = {"kind": "softmax", "features": 64, "classes": 10}
_A9A: dict[str, object] = {"kind": "logistic", "features": 123}
_LOADERS: dict[str, Callable[[], StudyData]] = {
    "digits": lambda: _files("digits", "digits-train", "digits-test", _DIGITS, largest=16.0),
    "mnist": lambda: _idx("mnist"),
    "fashion-mnist": lambda: _idx("fashion-mnist"),
    "a9a": lambda: _files("a9a", "libsvm/a9a.gz", "libsvm/a9a.t.gz", _A9A),
    "ml-100k": _movielens,
    "sparse": _sparse,
    "weather": _weather,
}
