"""A concept that changes: features change places, so that a model must be learnt anew."""

import numpy as np

from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_task.models import Floats
from fedagent_task.models.samples import Csr
from fedagent_testbed.recipe import Streaming
from fedagent_testbed.worlds.base import spawned_rng
from fedagent_testbed.worlds.episodes import starts

from .datasets import StudyData

_STREAM = (1 << 22) + 64


class Drift:
    """The data of every round: as they are, until the concept changes.

    At a change a share of the columns, chosen anew, change places by a cycle; labels stay. What can
    be learnt at all remains the same. Of ratings the films change places.
    """

    def __init__(self, data: StudyData, settings: Streaming, *, rounds: int, seed: int) -> None:
        self.data, self._share = data, settings.drift
        self._rng = spawned_rng(seed, _STREAM)
        self._changes = starts(self._rng, rounds=rounds, every=settings.drift_every)
        self._films = data.model["kind"] == "mf"
        self._tests: dict[int, tuple[Floats, FloatArray]] = {}
        width = int(str(data.model["items"])) if self._films else data.features
        self._place = np.arange(width)
        self._moved = False

    def begin(self, round_: int) -> None:
        """Take the next round, from 1, in order."""
        if not self._changes[round_ - 1]:
            return
        size = len(self._place)
        cycle = self._rng.permutation(size)[: max(2, round(self._share * size))]
        self._place[cycle] = self._place[np.roll(cycle, 1)]
        self._moved = True
        self._tests.clear()

    def rows(self, index: IntArray) -> tuple[Floats, FloatArray]:
        """Return some samples as they are this round."""
        x, y = self.data.rows(index)
        return self._now(x), y

    def tests(self, count: int) -> tuple[Floats, FloatArray]:
        """Return the first test samples as they are this round; 0 for all."""
        if count not in self._tests:
            x, y = self.data.tests(count)
            self._tests[count] = self._now(x), y
        return self._tests[count]

    def _now(self, x: Floats | Csr) -> Floats:
        if not self._moved:
            return x  # type: ignore[return-value] # Csr where the model takes it
        if isinstance(x, Csr):
            places = self._place[x.indices].astype(np.int32)
            return Csr(x.indptr, places, x.values, x.width)  # type: ignore[return-value] # as above
        after = np.empty_like(x)
        if self._films:
            after[:, 0] = x[:, 0]
            after[:, 1] = self._place[x[:, 1].astype(np.int64)]
        else:
            after[:, self._place] = x
        return after
