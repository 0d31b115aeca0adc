"""A dataset that arrives as a stream, for ever: at random times, or at those it recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta, structs

from fedagent_protocol.option import Option
from fedagent_task.errors import DatasetError

from .base import ResumableStream, Samples, StreamOpenError, StreamSchema, StreamSpecError, np
from .spec import Buffer, Faster, Pace, Start, StreamSpec

if TYPE_CHECKING:
    import numpy.typing as npt

    from fedagent_task.readers import Dataset, SparseDataset

DIGITS = "digits-train"
_ORDER, _ARRIVALS = 0, 1
_MAX_MEAN = 1e9
_DIGITS_PARTS = 100
"""The bundled digits have more samples of each label than that."""
_Index = Annotated[int, Meta(ge=1, le=10**6)]


class Digits(StreamSpec, frozen=True, kw_only=True):
    """The bundled training digits, arriving at random times again and again."""

    form: ClassVar[str] = "digits"
    labels: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=10**6)], ...],
        Option("Only samples with these labels.", example="3+7"),
    ] = ()
    rate: Pace = 20.0
    start: Start = 50
    part: Annotated[
        tuple[_Index, _Index],
        Option("Only one of several equal parts (INDEX/COUNT), counted from 1.", example="1/4"),
    ] = (1, 1)
    buffer: Buffer = 4096
    accelerate: Faster = 1.0

    def __post_init__(self) -> None:
        index, count = self.part
        if index > count:
            raise StreamSpecError("part", f"there is no part {index} of {count}", "write part=1/4")

    @property
    def opened_at_start(self) -> bool:
        """Whether a file may be missing, or a filter fit nothing."""
        fits = set(range(10)).issuperset(self.labels) and self.part[1] <= _DIGITS_PARTS
        return super().opened_at_start or not fits

    def create(self, *, seed: int, offset: int = 0, labels: Sequence[str] = ()) -> ReplayStream:
        """Return a replay of the digits; they have no names for labels."""
        spec = Replay(path=DIGITS, **structs.asdict(self))
        return spec.create(seed=seed, offset=offset, labels=labels)


class Replay(Digits, frozen=True, kw_only=True):
    """A dataset file in the same way.

    `.npz` with `x` and `y`, `.csv`, IDX, LIBSVM, `u.data` (features: user and item, numbered
    from 1; label: the rating), CIFAR-10 (`data_batch_1.bin`), all but npz also as `.gz`; no
    comma in the path.
    """

    form: ClassVar[str] = "replay:PATH"
    path: str
    order: Annotated[
        Literal["seed", "time"],
        Option(
            "Replay in recorded order and at the recorded times, for datasets with times "
            "(`u.data`); without `rate`.",
            example="time",
        ),
    ] = "seed"
    sparse: Annotated[
        bool,
        Option(
            "A LIBSVM file as sparse rows, for linear, logistic, softmax and svm with "
            "`data.offset = 0`.",
            example="1",
        ),
    ] = False
    width: Annotated[
        int,
        Meta(ge=0, le=10**8),
        Option(
            "Number of features of a LIBSVM file, if its largest index is smaller.", example="123"
        ),
    ] = 0

    @classmethod
    def check_options(cls, given: dict[str, str]) -> None:
        """Refuse a rate beside recorded times."""
        if given.get("order") == "time" and "rate" in given:
            reason = "the recorded times say when samples arrive"
            raise StreamSpecError("rate", reason, "write accelerate=60 instead")

    def create(self, *, seed: int, offset: int = 0, labels: Sequence[str] = ()) -> ReplayStream:
        """Return the replay; a dataset's labels are numbers."""
        del labels
        return ReplayStream(self, seed=seed, offset=offset)


class ReplayStream(ResumableStream):
    """Replay a dataset.

    The order depends on the seed and the position alone, so that a resumed stream
    goes on as if it had never stopped; only the arrival times are drawn anew.
    """

    def __init__(self, spec: Replay, *, seed: int, offset: int = 0) -> None:
        super().__init__(offset)
        self._spec = spec
        self._seed = seed
        self._arrivals = np.random.default_rng(
            np.random.SeedSequence(seed, spawn_key=(_ARRIVALS, offset))
        )
        self._last = 0.0
        self._due = 0
        self._data: Dataset | SparseDataset | None = None
        self._recorded: _Recorded | None = None
        self._lap = -1
        self._order: npt.NDArray[np.intp] = np.empty(0, np.intp)

    def open(self, now: float) -> StreamSchema:
        """Read the dataset; `spec.start` samples are there at once."""
        from fedagent_task.readers import Dataset, SparseDataset  # noqa: PLC0415 - numpy

        try:
            data = self._read()
        except DatasetError as error:
            raise StreamOpenError("stream", f"{error.path}: {error.reason}", error.hint) from error
        if not len(data):
            raise StreamOpenError(
                "labels",
                f"{self._spec.path} has no sample with these labels",
                "choose other labels",
            )
        self._due = self._spec.start if self._offset == 0 else 0
        if self._spec.order == "time":
            if not isinstance(data, Dataset) or data.times is None:
                raise StreamOpenError(
                    "order", f"{self._spec.path} has recorded no times", "leave out order=time"
                )
            self._order, self._lap = np.argsort(data.times, kind="stable"), 0
            self._recorded = _Recorded(data.times[self._order], self._spec.accelerate)
            self._recorded.begin(self._offset + self._due, now)
        self._data, self._last = data, now
        known = data.y.dtype == np.int64
        labels = tuple(int(label) for label in np.unique(data.y)) if known else None
        return StreamSchema(
            data.x.shape[1], str(data.x.dtype), labels, sparse=isinstance(data, SparseDataset)
        )

    def take(self, now: float) -> Samples:
        """Return what arrived; beyond the buffer the oldest are dropped and counted."""
        assert self._data is not None, "open comes first"
        if self._recorded is not None:
            arrived = max(self._due, self._recorded.arrived(now) - self._offset)
        else:
            pace = self._spec.rate * self._spec.accelerate
            mean = min(pace * max(0.0, now - self._last), _MAX_MEAN)
            arrived = self._due + int(self._arrivals.poisson(mean))
        self._due, self._last = 0, max(now, self._last)
        dropped = max(0, arrived - self._spec.buffer)
        self._counters["dropped"] += dropped
        first, self._offset = self._offset + dropped, self._offset + arrived
        rows = self._rows(first, self._offset)
        return Samples(self._data.x[rows], self._data.y[rows])

    def close(self) -> None:
        """Let the dataset go."""
        self._data = None

    def _read(self) -> Dataset | SparseDataset:
        """Return this device's part of the dataset."""
        from fedagent_task.readers import (  # noqa: PLC0415 - numpy
            load,
            load_sparse,
            part_of,
            with_labels,
        )

        spec = self._spec
        index, count = spec.part
        if spec.sparse:
            sparse = load_sparse(spec.path, features=spec.width or None)
            self._expect_samples(len(sparse))
            sparse = with_labels(sparse, spec.labels) if spec.labels else sparse
            return part_of(sparse, index - 1, count)
        data = load(spec.path, features=spec.width or None)
        self._expect_samples(len(data))
        data = with_labels(data, spec.labels) if spec.labels else data
        return part_of(data, index - 1, count)

    def _expect_samples(self, count: int) -> None:
        """Refuse a file of nothing, before labels and part choose from it."""
        if not count:
            raise StreamOpenError(
                "stream", f"{self._spec.path} is empty", "put samples into it, or name another"
            )

    def _rows(self, first: int, last: int) -> npt.NDArray[np.intp]:
        """Return the rows at these positions; each lap has an order of its own."""
        assert self._data is not None
        size = len(self._data)
        parts = [np.empty(0, np.intp)]
        while first < last:
            lap, start = divmod(first, size)
            stop = min(size, start + last - first)
            parts.append(self._lap_order(lap)[start:stop])
            first += stop - start
        return np.concatenate(parts)

    def _lap_order(self, lap: int) -> npt.NDArray[np.intp]:
        assert self._data is not None
        if self._recorded is None and lap != self._lap:
            key = np.random.SeedSequence(self._seed, spawn_key=(_ORDER, lap))
            self._order = np.random.default_rng(key).permutation(len(self._data))
            self._lap = lap
        return self._order


class _Recorded:
    """When samples arrive that have recorded times, ascending seconds [n]; lap after lap."""

    def __init__(self, times: npt.NDArray[np.float64], accelerate: float) -> None:
        self._times = times - times[0]
        span = float(self._times[-1])
        # The next lap follows the last sample as samples follow each other on average.
        self._lap_s = span * len(times) / (len(times) - 1) if span > 0 else 1.0
        self._accelerate = accelerate
        self._shift = 0.0

    def begin(self, position: int, now: float) -> None:
        """Let the sample at a position arrive now."""
        lap, row = divmod(position, len(self._times))
        self._shift = lap * self._lap_s + float(self._times[row]) - now * self._accelerate

    def arrived(self, now: float) -> int:
        """Return how many samples have arrived, over all laps."""
        seconds = max(0.0, now * self._accelerate + self._shift)
        lap, rest = divmod(seconds, self._lap_s)
        return int(lap) * len(self._times) + int(np.searchsorted(self._times, rest, side="right"))
