"""Federated training of many virtual clients, exactly and fast."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .averaging import Updates, Weighting, aggregate
from .blas import one_blas_thread
from .datasets import LearningData
from .errors import SettingError, ShapeError
from .local_sgd import Floats, Indices, descend, work_bytes
from .models import Model
from .partition import Partition
from .schedule import draw, steps_of
from .scoring import mean_by_client, right
from .shards import split

DEFAULT_MEMORY_BYTES = 64 * 1024**2
_ROUND = 1
"""First word of the spawn key of a client's batches; 0 is its split (`shards`)."""
_SHARES = 2
"""First word of the spawn key of the shares of the test set."""


class FederatedTrainer:
    """Mini-batch SGD at chosen clients, averaged at their edges.

    Deterministic: a client's update is a function of the seed, the round, the client
    and its starting model, whoever trains beside it and however memory is bounded.

    Args:
        data: Samples, classes and the common test set.
        partition: Who holds which rows of it.
        model: Shapes must fit the data.
        learning_rate: Step of SGD.
        batch_size: B; the last batch of an epoch may be smaller.
        epochs: Passes over the client's training samples per round, or
        local_steps: steps per round; exactly one of the two.
        seed: Of held-out parts and batches.
        held_out: Share of each client's samples that only `opinions` uses.
        memory_bytes: Most that work arrays take; one client at a time if they must.
            The result is the same for any value.

    Raises:
        SettingError: A setting is out of range, or does not fit another.
    """

    def __init__(
        self,
        data: LearningData,
        partition: Partition,
        model: Model,
        *,
        learning_rate: float,
        batch_size: int,
        seed: int,
        epochs: int | None = None,
        local_steps: int | None = None,
        held_out: float = 0.2,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        _require(0 < learning_rate < float("inf"), "learning_rate", learning_rate, "be above 0")
        _require(batch_size >= 1, "batch_size", batch_size, "be at least 1")
        _require(0 <= held_out < 1, "held_out", held_out, "be from 0 to below 1")
        _require(memory_bytes >= 1, "memory_bytes", memory_bytes, "be at least 1")
        _require(
            (epochs is None) != (local_steps is None),
            "epochs",
            epochs,
            "be given, or else local_steps, not both",
        )
        _require(epochs is None or epochs >= 1, "epochs", epochs, "be at least 1")
        _require(
            local_steps is None or local_steps >= 1, "local_steps", local_steps, "be at least 1"
        )
        shape = (data.features, data.classes)
        if (model.features, model.classes) != shape:
            wanted = f"make it for {shape[0]} features and {shape[1]} classes"
            raise SettingError("model", "does not fit the data", wanted)
        self.model = model
        self._test = data.test_x, data.test_y
        self._seed = seed
        self._train, self._held = split(data, partition, held_out=held_out, seed=seed)
        self._batch_size = batch_size
        self._steps = steps_of(
            self._train.counts, batch_size=batch_size, epochs=epochs, local_steps=local_steps
        )
        self._learning_rate = learning_rate
        work = work_bytes(model, int(self._steps.max(initial=0)), batch_size)
        self._chunk = max(1, memory_bytes // work)

    @property
    def clients(self) -> int:
        """N."""
        return len(self._steps)

    @property
    def samples(self) -> Indices:
        """int64[N], samples that each client trains on."""
        return self._train.counts

    def initial(self, edges: int) -> Floats:
        """Return the same seeded starting model for every edge, float32[M, d]."""
        return np.tile(self.model.init(self._seed), (edges, 1))

    def train(
        self,
        start: Floats,
        clients: npt.NDArray[np.integer],
        edges: npt.NDArray[np.integer],
        round_: int,
    ) -> Iterator[Updates]:
        """Train these clients, and yield their updates in order, in parts.

        Args:
            start: float32[M, d], the edges' models.
            clients: int[S].
            edges: int[S], where each of them trains.
            round_: From 0 on; every round has batches of its own.

        Raises:
            ShapeError: Arrays do not fit each other, or name what does not exist.
        """
        self._check(start, clients, edges)
        return self._stream(start, clients.astype(np.int64), edges.astype(np.int64), round_)

    def aggregate(
        self,
        start: Floats,
        clients: npt.NDArray[np.integer],
        edges: npt.NDArray[np.integer],
        round_: int,
        weighting: Weighting = "uniform",
    ) -> Floats:
        """Train these clients and return the edges' new models, float32[M, d].

        Raises:
            ShapeError: As `train`.
        """
        return aggregate(start, self.train(start, clients, edges, round_), weighting)

    def accuracy(self, theta: Floats) -> float:
        """Return the share of the common test set that float32[d] gets right."""
        self._check_one(theta)
        return float(right(self.model, theta, *self._test).mean())

    def opinions(self, theta: Floats) -> npt.NDArray[np.float64]:
        """Return each client's score of a model float32[d], float64[N] in [0, 1].

        The score is the accuracy on the client's held-out part; NaN without one.
        """
        self._check_one(theta)
        held = self._held
        return mean_by_client(right(self.model, theta, held.x, held.y), held.offsets)

    def opinions_on_test(self, theta: Floats) -> npt.NDArray[np.float64]:
        """Return each client's score on its share of the common test set, float64[N].

        Shares are seeded, disjoint and differ by a sample at most; NaN without one.
        """
        self._check_one(theta)
        correct = right(self.model, theta, *self._test)
        key = np.random.SeedSequence(self._seed, spawn_key=(_SHARES,))
        order = np.random.default_rng(key).permutation(len(correct))
        ends = np.arange(self.clients + 1) * len(correct) // self.clients
        return mean_by_client(correct[order], ends)

    def _stream(
        self, start: Floats, clients: Indices, edges: Indices, round_: int
    ) -> Iterator[Updates]:
        """Yield the updates of as many clients at a time as memory allows."""
        for first in range(0, len(clients), self._chunk):
            part = slice(first, first + self._chunk)
            # Not around the yield: the caller's own products keep their threads.
            with one_blas_thread():
                updates = self._chunk_of(start, clients[part], edges[part], round_)
            yield updates

    def _chunk_of(self, start: Floats, clients: Indices, edges: Indices, round_: int) -> Updates:
        """Train some clients at once."""
        order = np.argsort(-self._steps[clients], kind="stable")
        sorted_ = clients[order]
        rngs = [
            np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(_ROUND, round_, n)))
            for n in sorted_.tolist()
        ]
        counts = self._train.counts[sorted_]
        schedule = draw(counts, self._steps[sorted_], rngs, self._batch_size)
        before = start[edges[order]]
        deltas = np.empty_like(before)
        after = descend(
            self.model,
            self._train,
            start=before,
            clients=sorted_,
            schedule=schedule,
            learning_rate=self._learning_rate,
        )
        deltas[order] = after - before
        return Updates(clients, edges, self._train.counts[clients], deltas)

    def _check(
        self, start: Floats, clients: npt.NDArray[np.integer], edges: npt.NDArray[np.integer]
    ) -> None:
        """Refuse arrays that do not fit."""
        if start.dtype != np.float32 or start.ndim != 2 or start.shape[1] != self.model.size:
            expected = f"float32[M, {self.model.size}]"
            raise ShapeError("start", expected, f"{start.dtype}{list(start.shape)}")
        if clients.shape != edges.shape or clients.ndim != 1:
            raise ShapeError("edges", f"shape {clients.shape}", f"{edges.shape}")
        for name, index, end in (("clients", clients, self.clients), ("edges", edges, len(start))):
            if len(index) and not 0 <= index.min() <= index.max() < end:
                raise ShapeError(name, f"indices below {end}", f"{index.min()} to {index.max()}")

    def _check_one(self, theta: Floats) -> None:
        """Refuse what is not one model."""
        if theta.dtype != np.float32 or theta.shape != (self.model.size,):
            expected = f"float32[{self.model.size}]"
            raise ShapeError("theta", expected, f"{theta.dtype}{list(theta.shape)}")


def _require(holds: bool, setting: str, value: object, rule: str) -> None:
    """Refuse a setting that breaks its rule."""
    if not holds:
        raise SettingError(setting, f"is {value!r}", f"it must {rule}")
