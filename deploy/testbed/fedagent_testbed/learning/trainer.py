"""Federated training of many virtual clients, exactly and fast: the learning side of a study.

Linear models and mlps train all clients of a round at once (`local_sgd`), a cnn one by one
(`networks`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies import Feedback
from fedagent_coordinator.policies.base import FloatArray
from fedagent_task.aggregation import RunningMean, edge_weight
from fedagent_task.models import create
from fedagent_task.spec import ModelSpec
from fedagent_testbed.recipe import TestbedRecipe, Training, Weighting
from fedagent_testbed.worlds.base import spawned_rng

from .datasets import StudyData, load_classes
from .local_sgd import BatchedModel, Floats, Indices, descend, draw, split, work_bytes
from .networks import Network
from .partition import Partition, dirichlet, few_labels, iid, iid_for

Ints = npt.NDArray[np.integer]

HIDDEN = 32
"""Units of the mlp's one hidden layer."""

_ROUND = 1
"""First word of the spawn key of a client's batches; 0 is its split (`local_sgd`)."""
_SHARES = 2
"""First word of the spawn key of the shares of the test set."""
_BLOCK = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """What some of a round's clients have learnt; a round is a stream of these."""

    clients: Indices
    edges: Indices  # int64[C], the edge whose model each client started from
    samples: Indices  # int64[C], samples that each client trains on
    deltas: Floats  # float32[C, d], trained minus starting parameters


def aggregate(start: Floats, updates: Iterable[Updates], weighting: Weighting) -> Floats:
    """Return the edge models after a round (ALGORITHMS section 1), float32[M, d].

    `start` are those that the clients started from, which an edge without updates keeps; clients
    count alike (``uniform``, COCS eq. 3/6) or by their samples (``samples``, GDA eq. 2).
    """
    means = [RunningMean() for _ in start]
    for part in updates:
        share = part.samples if weighting == "samples" else np.ones(len(part.samples))
        # One by one: the order of summation must not depend on how the stream is cut.
        for edge, weight, delta in zip(part.edges, share, part.deltas, strict=True):
            means[edge].add({"": delta}, float(weight))
    models = start.copy()
    for edge, mean in enumerate(means):
        if mean.weight:
            models[edge] = mean.apply({"": start[edge]})[""]
    return models


def merged(
    models: Floats, learnt: FloatArray | None = None, weighting: Weighting = "uniform"
) -> Floats:
    """Return the mean over the M edge models, once per edge, float32[M, d].

    It is that of the coordinator: with ``samples`` an edge counts as much as the updates in its
    model since the last merge, `learnt` float64[M]; where nobody has learnt nothing changes.
    """
    mean, uniform = RunningMean(), weighting == "uniform"
    for edge, model in enumerate(models):
        weight = edge_weight(0.0 if learnt is None else float(learnt[edge]), uniform=uniform)
        if weight > 0:
            mean.add({"": model}, weight)
    if not mean.weight:
        return models
    return np.tile(mean.apply({"": np.zeros_like(models[0])})[""], (len(models), 1))


class FederatedTrainer:
    """Mini-batch SGD at chosen clients, averaged at their edges.

    Deterministic: a client's update is a function of the seed, the round, the client and its
    starting model, whatever clients train beside it and however memory is bounded. Bits depend on
    the number of BLAS threads: see `play.one_blas_thread`.

    `held_out` is the share of each client's samples that only `opinions` uses; work arrays take
    `memory_bytes` at most, but one client at a time if they must.
    """

    def __init__(
        self,
        data: StudyData,
        partition: Partition,
        model: BatchedModel | Network,
        training: Training,
        *,
        seed: int,
        held_out: float = 0.2,
        memory_bytes: int = 64 * 1024**2,
    ) -> None:
        self.model = model
        tested = slice(training.test_samples or None)
        self._test = data.dense_test_x[tested], data.test_y[tested]
        self._seed = seed
        self._train, self._held = split(data, partition, held_out=held_out, seed=seed)
        self._batch, self._rate, self._weighting = training.batch, training.rate, training.weighting
        counts = self._train.counts
        self._steps = -(-counts // training.batch) * (training.epochs or 0)
        if training.local_steps is not None:
            self._steps = np.where(counts > 0, training.local_steps, 0).astype(np.int64)
        longest = int(self._steps.max(initial=0))
        work = 12 * model.size
        if isinstance(model, BatchedModel):
            work = work_bytes(model, longest, training.batch)
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

    def train(self, start: Floats, clients: Ints, edges: Ints, round_: int) -> Iterator[Updates]:
        """Train clients int[S] at edges int[S] from float32[M, d]; yield their updates in parts."""
        for first in range(0, len(clients), self._chunk):
            part = slice(first, first + self._chunk)
            who, where = clients[part].astype(np.int64), edges[part].astype(np.int64)
            yield self._trained(start, who, where, round_)

    def aggregate(self, start: Floats, clients: Ints, edges: Ints, round_: int) -> Floats:
        """Train these clients and return the edges' new models, float32[M, d]."""
        return aggregate(start, self.train(start, clients, edges, round_), self._weighting)

    def loss_rms(self, start: Floats, clients: Ints, edges: Ints) -> FloatArray:
        """Return the root mean square of what each client's samples lose before it trains.

        float64[S], by float32[M, d]; NaN without samples.
        """
        told = np.full(len(clients), np.nan)
        for row, (client, edge) in enumerate(zip(clients.tolist(), edges.tolist(), strict=True)):
            part = self._train.of(client)
            if part.stop > part.start:
                lost = self.model.losses(start[edge], self._train.x[part], self._train.y[part])
                told[row] = np.sqrt(np.mean(lost.astype(np.float64) ** 2))
        return told

    def accuracy(self, theta: Floats) -> float:
        """Return the share of the common test set that float32[d] gets right."""
        return float(self._right(theta, *self._test).mean())

    def opinions(self, theta: Floats) -> FloatArray:
        """Return each client's accuracy on its held-out part, float64[N]; NaN without one."""
        held = self._held
        return _means(self._right(theta, held.x, held.y), held.offsets)

    def opinions_on_test(self, theta: Floats) -> FloatArray:
        """Return each client's accuracy on its own seeded share of the test set, float64[N]."""
        correct = self._right(theta, *self._test)
        order = spawned_rng(self._seed, _SHARES).permutation(len(correct))
        ends = np.arange(self.clients + 1) * len(correct) // self.clients
        return _means(correct[order], ends)

    def _trained(self, start: Floats, clients: Indices, edges: Indices, round_: int) -> Updates:
        order = np.argsort(-self._steps[clients], kind="stable")
        sorted_ = clients[order]
        rngs = [spawned_rng(self._seed, _ROUND, round_, n) for n in sorted_.tolist()]
        before = start[edges[order]]
        deltas = np.empty_like(before)
        deltas[order] = self._learnt(before, sorted_, rngs) - before
        return Updates(clients, edges, self._train.counts[clients], deltas)

    def _learnt(self, before: Floats, clients: Indices, rngs: list[np.random.Generator]) -> Floats:
        """Return what clients, the longest schedule first, make of float32[S, d]."""
        shards, model = self._train, self.model
        if isinstance(model, BatchedModel):
            schedule = draw(shards.counts[clients], self._steps[clients], rngs, self._batch)
            return descend(
                model, shards, before, clients=clients, schedule=schedule, rate=self._rate
            )
        parts = [shards.of(n) for n in clients.tolist()]
        each = zip(before, parts, rngs, strict=True)
        return np.stack([model.trained(b, shards.x[p], shards.y[p], rng) for b, p, rng in each])

    def _right(self, theta: Floats, x: Floats, y: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
        result = np.empty(len(y), np.bool_)
        for first in range(0, len(y), _BLOCK):
            part = slice(first, first + _BLOCK)
            result[part] = self.model.predicted(theta, x[part]) == y[part]
        return result


def _means(values: npt.NDArray[np.bool_], offsets: Indices) -> FloatArray:
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    counts = np.diff(offsets)
    means = np.full(len(counts), np.nan)
    np.divide(np.diff(sums[offsets]), counts, out=means, where=counts > 0)
    return means


class FederatedLearner:
    """Federated training by a recipe: one model per edge, merged every T_ES rounds."""

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        training = recipe.training
        data = load_classes(training.dataset)
        self._recipe = recipe
        self._trainer = FederatedTrainer(
            data,
            _partition(training, data.y.astype(np.int64), recipe.clients, seed),
            _model(training, data),
            training,
            held_out=0.2 if training.opinions else 0.0,
            seed=seed,
        )
        self._first = self._trainer.initial(recipe.edges)
        self._models = self._first
        self._learnt = np.zeros(recipe.edges)
        """Weight of the updates in each edge's model since the last merge."""

    def advance(self, feedback: Feedback) -> None:
        """Train the clients whose updates are used, and merge when it is time."""
        view, recipe = feedback.view, self._recipe
        training = recipe.training
        start = self._start(view.round)
        if start is self._first:
            self._learnt = np.zeros(recipe.edges)
        pairs = feedback.pairs[feedback.used]
        # Newcomers hold another client's data: there are no more to deal.
        clients = view.pair_client[pairs] % recipe.clients
        edges = view.pair_edge[pairs]
        self._models = self._trainer.aggregate(start, clients, edges, view.round)
        each = self._trainer.samples[clients].astype(np.float64)
        share = each if training.weighting == "samples" else np.ones(len(clients))
        self._learnt += np.bincount(edges, share, minlength=recipe.edges)
        if view.round % recipe.rounds.merge_every == 0 and recipe.edges > 1:
            self._models = self._merged()
            self._learnt = np.zeros(recipe.edges)

    def told(self, feedback: Feedback) -> Feedback:
        """Return the feedback with what the round's devices tell of their samples, before it."""
        view, valid = feedback.view, ~feedback.void
        pairs = feedback.pairs[valid]
        clients = view.pair_client[pairs] % self._recipe.clients
        samples = np.zeros(len(valid), dtype=np.int64)
        rms = np.full(len(valid), np.nan)
        samples[valid] = self._trainer.samples[clients]
        start = self._start(view.round)
        rms[valid] = self._trainer.loss_rms(start, clients, view.pair_edge[pairs])
        return replace(feedback, num_samples=samples, loss_rms=rms)

    def _start(self, round_: int) -> Floats:
        training = self._recipe.training
        begins = (round_ - 1) % training.slot_rounds == 0
        return self._first if training.reset and begins else self._models

    @property
    def model(self) -> Floats:
        """What a merge now would make of the edges' models, float32[d]."""
        return np.asarray(self._merged()[0], dtype=np.float32)

    def _merged(self) -> Floats:
        return merged(self._models, self._learnt, self._recipe.training.weighting)

    def accuracy(self) -> float:
        """Return the accuracy of the mean model on the common test set."""
        return self._trainer.accuracy(self.model)

    def opinions(self) -> FloatArray:
        """Return every client's score of the mean model, float64[N]."""
        if self._recipe.training.evaluated_on == "test":
            return self._trainer.opinions_on_test(self.model)
        return self._trainer.opinions(self.model)


def _model(training: Training, data: StudyData) -> BatchedModel | Network:
    features, classes = data.features, data.classes
    if training.model == "cnn":
        return Network(training, features=features, classes=classes)
    hidden = (HIDDEN,) if training.model == "mlp" else ()
    spec = ModelSpec(kind=training.model, features=features, classes=classes, hidden=hidden)
    return BatchedModel(create(spec))


def _partition(training: Training, labels: Indices, clients: int, seed: int) -> Partition:
    size = training.samples_per_client
    match training.partition:
        case "two-labels":
            return few_labels(labels, clients, seed=seed, samples_per_client=size)
        case "iid":
            return iid(labels, clients, seed=seed, samples_per_client=size)
        case "dirichlet":
            gamma = training.gamma
            return dirichlet(labels, clients, gamma=gamma, seed=seed, samples_per_client=size)
        case "iid-for":
            first = training.iid_clients
            return iid_for(labels, clients, iid_clients=first, seed=seed, samples_per_client=size)
