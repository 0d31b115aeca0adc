"""A dataset that arrives as a stream, for ever, at random times."""

import numpy as np
import numpy.typing as npt

from fedagent_task.errors import DatasetError
from fedagent_task.models.base import Csr
from fedagent_task.readers import load, load_sparse
from fedagent_task.recipe.spec import DataSpec

from .base import Samples, Stream, StreamSchema
from .kinds import Digits, Replay
from .spec import StreamError

_ORDER, _ARRIVALS = 0, 1
_MAX_MEAN = 1e9


class ReplayStream(Stream):
    """Replay a dataset.

    The order depends on the seed and the position alone, so that a resumed stream
    goes on as if it had never stopped; only the arrival times are drawn anew.
    """

    def __init__(self, spec: Digits, *, seed: int, offset: int, mark: str, data: DataSpec) -> None:
        del mark
        super().__init__(offset)
        self._spec, self._named = spec, data
        self._path = spec.path if isinstance(spec, Replay) else "digits-train"
        self._seed = seed
        self._arrivals = np.random.default_rng(
            np.random.SeedSequence(seed, spawn_key=(_ARRIVALS, offset))
        )
        self._last = 0.0
        self._due = 0
        self._data: Samples | None = None

    def open(self, now: float) -> StreamSchema:
        """Read the dataset; `spec.start` samples are there at once."""
        try:
            whole, names = self._loaded()
        except DatasetError as error:
            raise StreamError("stream", error.reason, error.hint, error.path) from error
        if not len(whole):
            hint = "put samples into it, or name another"
            raise StreamError("stream", "is empty", hint, self._path)
        if self._spec.labels:
            whole = whole.rows(np.flatnonzero(np.isin(whole.y, self._spec.labels)))
        data = whole.rows(slice(self._spec.part[0] - 1, None, self._spec.part[1]))
        if not len(data):
            index, count = self._spec.part
            reason, where = f"has too few samples for part {index} of {count}", self._path
            if self._spec.labels:
                reason = "has no sample with these labels"
                raise StreamError("labels", reason, "choose other labels", where)
            raise StreamError("part", reason, "deal it into fewer parts", where)
        self._due = self._spec.start if self._offset == 0 else 0
        self._data, self._last = data, now
        known = data.y.dtype == np.int64
        labels = tuple(int(label) for label in np.unique(data.y)) if known else None
        return StreamSchema(data.x.shape[1], labels, isinstance(data.x, Csr), names)

    def take(self, now: float) -> Samples:
        """Return what arrived; beyond the buffer the oldest are dropped and counted."""
        assert self._data is not None, "open comes first"
        mean = min(self._spec.rate * max(0.0, now - self._last), _MAX_MEAN)
        arrived = self._due + int(self._arrivals.poisson(mean))
        self._due, self._last = 0, max(now, self._last)
        dropped = max(0, arrived - self._spec.buffer)
        self._counters["dropped"] += dropped
        first, self._offset = self._offset + dropped, self._offset + arrived
        return self._data.rows(self._rows(first, self._offset))

    def close(self) -> None:
        """Let the dataset go."""
        self._data = None

    def _rows(self, first: int, last: int) -> npt.NDArray[np.intp]:
        """Return the rows at these positions; each lap has an order of its own."""
        assert self._data is not None
        size, orders = len(self._data), [np.empty(0, np.intp)]
        begun = first // size
        for lap in range(begun, -(-last // size) if last > first else begun):
            key = np.random.SeedSequence(self._seed, spawn_key=(_ORDER, lap))
            orders.append(np.random.default_rng(key).permutation(size))
        return np.concatenate(orders)[first - begun * size : last - begun * size]

    def _loaded(self) -> tuple[Samples, tuple[str, ...]]:
        """Return all samples, and what the file calls their features."""
        width = self._spec.width or None if isinstance(self._spec, Replay) else None
        if isinstance(self._spec, Replay) and self._spec.sparse:
            return Samples(*load_sparse(self._path, features=width)), ()
        data = load(self._path, features=width).ordered([one.name for one in self._named.features])
        return Samples(data.x, data.y), data.names
