"""A dataset that arrives as a stream: Poisson arrivals in seeded order, for ever."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedagent_task.errors import DatasetError
from fedagent_task.readers import Dataset, load, part_of, with_labels

from .base import Samples, StreamSchema
from .spec import ReplaySpec, StreamOpenError

_ORDER, _ARRIVALS = 0, 1
_MAX_MEAN = 1e9


class ReplayStream:
    """Replay a dataset.

    The order depends on the seed and the position alone, so that a resumed stream
    goes on as if it had never stopped; only the arrival times are drawn anew.

    Args:
        spec: Dataset, filter and rate.
        seed: Of the order and of the arrivals.
        offset: Samples that were taken before.
    """

    def __init__(self, spec: ReplaySpec, *, seed: int, offset: int = 0) -> None:
        self._spec = spec
        self._seed = seed
        self._offset = offset
        self._counters: Counter[str] = Counter()
        self._arrivals = np.random.default_rng(
            np.random.SeedSequence(seed, spawn_key=(_ARRIVALS, offset))
        )
        self._last = 0.0
        self._due = 0
        self._data: Dataset | None = None
        self._lap = -1
        self._order: npt.NDArray[np.intp] = np.empty(0, np.intp)

    def open(self, now: float) -> StreamSchema:
        """Read the dataset; `spec.start` samples are there at once."""
        try:
            data = load(self._spec.dataset)
        except DatasetError as error:
            raise StreamOpenError("stream", f"{error.path}: {error.reason}", error.mend) from error
        if self._spec.labels:
            data = with_labels(data, self._spec.labels)
        index, count = self._spec.part
        data = part_of(data, index - 1, count)
        if not len(data):
            raise StreamOpenError(
                "labels", f"{self._spec.dataset} has no such sample", "choose other labels"
            )
        self._data, self._last = data, now
        self._due = self._spec.start if self._offset == 0 else 0
        known = data.y.dtype == np.int64
        labels = tuple(int(label) for label in np.unique(data.y)) if known else None
        return StreamSchema(data.x.shape[1], str(data.x.dtype), labels)

    def take(self, now: float) -> Samples:
        """Return what arrived; beyond the buffer the oldest are dropped and counted."""
        assert self._data is not None, "open comes first"
        mean = min(self._spec.rate * max(0.0, now - self._last), _MAX_MEAN)
        arrived = self._due + int(self._arrivals.poisson(mean))
        self._due, self._last = 0, max(now, self._last)
        dropped = max(0, arrived - self._spec.buffer)
        self._counters["dropped"] += dropped
        first, self._offset = self._offset + dropped, self._offset + arrived
        rows = self._rows(first, self._offset)
        return Samples(self._data.x[rows], self._data.y[rows])

    @property
    def offset(self) -> int:
        """Samples that arrived so far."""
        return self._offset

    @property
    def counters(self) -> Mapping[str, int]:
        """``dropped``."""
        return self._counters

    def close(self) -> None:
        """Let the dataset go."""
        self._data = None

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
        if lap != self._lap:
            key = np.random.SeedSequence(self._seed, spawn_key=(_ORDER, lap))
            self._order = np.random.default_rng(key).permutation(len(self._data))
            self._lap = lap
        return self._order
