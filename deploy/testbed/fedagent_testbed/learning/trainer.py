"""Federated training of many virtual clients, exactly and fast: the learning side of a study.

Linear models and mlps train all clients of a round at once (`local_sgd`), a cnn one by one
(`networks`).
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies import Feedback
from fedagent_coordinator.policies.base import FloatArray
from fedagent_task.aggregation import Strategy
from fedagent_task.models import create
from fedagent_task.recipe.spec import ModelSpec
from fedagent_testbed.recipe import Attackers, TestbedRecipe, Training
from fedagent_testbed.worlds.base import spawned_rng

from .aggregating import FEDAVG, EdgeModels, Updates, mu_of, rule_of, strategy_of
from .attacks import Attack
from .datasets import StudyData, load_classes
from .local_sgd import BatchedModel, Floats, Indices, Shards, descend, split
from .networks import Network
from .partition import Partition, dirichlet, few_labels, iid, iid_for

Ints = npt.NDArray[np.integer]

HIDDEN = 32
"""Units of the mlp's one hidden layer."""

_ROUND, _SHARES, _RATES = 1, 2, 3
"""First words of spawn keys: of a client's batches, of the shares of the test set, of the rates at
which samples come; 0 is a client's split (`local_sgd`)."""
AT_ONCE, AT_ONCE_BYTES = 64, 32 << 20
"""Clients that train at a time, and bytes of their models; it bounds memory, and changes no bit."""
_BLOCK = 4096
NOBODY = Attackers()


class FederatedTrainer:
    """Mini-batch SGD at chosen clients, averaged at their edges.

    Deterministic: a client's update is a function of the seed, the round, the client and its
    starting model, whatever clients train beside it and however memory is bounded. Bits depend on
    the number of BLAS threads: see `play.one_blas_thread`.

    `held_out` is the share of each client's samples that only `opinions` uses.
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
        strategy: Strategy = FEDAVG,
        attackers: Attackers = NOBODY,
    ) -> None:
        self.model = model
        tested = slice(training.test_samples or None)
        self._test = data.dense_test_x[tested], data.test_y[tested]
        self._seed = seed
        self._train, self._held = split(data, partition, held_out=held_out, seed=seed)
        self.training = training
        spread = spawned_rng(seed, _RATES).standard_normal(len(partition)) * training.skew
        self._rates = training.arrivals * np.exp(spread - training.skew**2 / 2)
        self.strategy = strategy
        self._attack = Attack.of(attackers, len(partition), seed)
        self._train = self._attack.flipped(self._train, data.classes)
        self._controls: dict[int, Floats] = {}  # SCAFFOLD's c_i of clients that have trained

    @property
    def clients(self) -> int:
        """N."""
        return len(self._rates)

    def samples(self, round_: int) -> Indices:
        """Return how many samples each client trains on, int64[N]."""
        return self._shards(round_).counts

    def initial(self, edges: int) -> Floats:
        """Return the same seeded starting model for every edge, float32[M, d]."""
        return np.tile(self.model.init(self._seed), (edges, 1))

    def train(
        self,
        start: Floats,
        clients: Ints,
        edges: Ints,
        round_: int,
        controls: Floats | None = None,
    ) -> Iterator[Updates]:
        """Train clients int[S] at edges int[S] from float32[M, d]; yield their updates in parts.

        `controls` are the edges' control variates, float32[M, d].
        """
        most = max(1, min(AT_ONCE, AT_ONCE_BYTES // (4 * self.model.size)))
        for first in range(0, len(clients), most):
            part = slice(first, first + most)
            who, where = clients[part].astype(np.int64), edges[part].astype(np.int64)
            yield self._trained(start, who, where, round_, controls)

    def loss_rms(self, start: Floats, clients: Ints, edges: Ints, round_: int) -> FloatArray:
        """Return the root mean square of what each client's samples lose before it trains.

        float64[S], by float32[M, d]; NaN without samples.
        """
        told = np.full(len(clients), np.nan)
        for row, lost in self._losses(start, self._shards(round_), clients, edges):
            told[row] = np.sqrt(np.mean(lost**2))
        return told

    def accuracy(self, theta: Floats) -> float:
        """Return the share of the common test set that float32[d] gets right."""
        return float(self._right(theta, *self._test).mean())

    def opinions(self, theta: Floats) -> FloatArray:
        """Return each client's accuracy on its held-out part, float64[N]; NaN without one."""
        held = self._held
        return _means(self._right(theta, held.x, held.y), np.append(held.first, len(held.y)))

    def opinions_on_test(self, theta: Floats) -> FloatArray:
        """Return each client's accuracy on its own seeded share of the test set, float64[N]."""
        correct = self._right(theta, *self._test)
        order = spawned_rng(self._seed, _SHARES).permutation(len(correct))
        ends = np.arange(self.clients + 1) * len(correct) // self.clients
        return _means(correct[order], ends)

    def _trained(
        self,
        start: Floats,
        clients: Indices,
        edges: Indices,
        round_: int,
        controls: Floats | None,
    ) -> Updates:
        shards = self._shards(round_)
        epochs, batch = self.training.epochs, self.training.batch
        steps = np.asarray(-(-shards.counts[clients] // batch) * epochs, np.int64)
        order = np.argsort(-steps, kind="stable")
        sorted_ = clients[order]
        rngs = [spawned_rng(self._seed, _ROUND, round_, n) for n in sorted_.tolist()]
        before, beside = start[edges[order]], None if controls is None else controls[edges]
        shift = None if beside is None else beside[order] - self._own(sorted_)
        deltas = np.empty_like(before)
        deltas[order] = self._learnt(before, shards, sorted_, steps[order], rngs, shift) - before
        base_loss = np.zeros(len(clients)) if "base_loss" in self.strategy.needs else None
        if base_loss is not None:
            for row, lost in self._losses(start, shards, clients, edges):
                base_loss[row] = lost.mean()
        return self._attack.changed(
            Updates(
                clients,
                edges,
                shards.counts[clients],
                deltas,
                steps,
                base_loss,
                None if beside is None else self._turned(clients, deltas, steps, beside),
            ),
            round_,
        )

    def _turned(self, clients: Indices, deltas: Floats, steps: Indices, controls: Floats) -> Floats:
        """Return the changes of the clients' control variates (option II), and keep the new."""
        by = np.float32(self.training.rate) * np.maximum(steps, 1).astype(np.float32)[:, None]
        change = np.where(steps[:, None] > 0, -controls - deltas / by, np.float32(0.0))
        fresh = self._own(clients) + change
        self._controls |= {client: fresh[row] for row, client in enumerate(clients.tolist())}
        return change

    def _own(self, clients: Indices) -> Floats:
        none = np.zeros(self.model.size, np.float32)
        return np.stack([self._controls.get(client, none) for client in clients.tolist()])

    def _shards(self, round_: int) -> Shards:
        if not self.training.arrivals:
            return self._train
        come = np.ceil(self._rates * round_).astype(np.int64)
        return self._train.newest(come, self.training.buffer)

    def _losses(
        self, start: Floats, shards: Shards, clients: Ints, edges: Ints
    ) -> Iterator[tuple[int, FloatArray]]:
        """Yield each client that has samples by its place, and what they lose before it trains."""
        for row, (client, edge) in enumerate(zip(clients.tolist(), edges.tolist(), strict=True)):
            part = shards.of(client)
            if part.stop > part.start:
                lost = self.model.losses(start[edge], shards.x[part], shards.y[part])
                yield row, lost.astype(np.float64)

    def _learnt(
        self,
        before: Floats,
        shards: Shards,
        clients: Indices,
        steps: Indices,
        rngs: list[np.random.Generator],
        shift: Floats | None,
    ) -> Floats:
        """Return what clients, those with the most steps first, make of float32[S, d]."""
        model = self.model
        if isinstance(model, BatchedModel):
            return descend(
                model,
                shards,
                before,
                clients=clients,
                steps=steps,
                rngs=rngs,
                batch=self.training.batch,
                rate=self.training.rate,
                mu=mu_of(self.strategy),
                shift=shift,
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
        training, strategy = recipe.world.training, strategy_of(recipe)
        data = load_classes(training.dataset)
        self._recipe = recipe
        self._trainer = FederatedTrainer(
            data,
            _partition(training, data.y.astype(np.int64), recipe.world.clients, seed),
            _model(training, data),
            training,
            held_out=0.2 if training.opinions else 0.0,
            seed=seed,
            strategy=strategy,
            attackers=recipe.world.attackers,
        )
        self._first = self._trainer.initial(recipe.world.edges)
        self._edges = EdgeModels(
            self._first,
            strategy,
            training.weighting,
            clients=recipe.world.clients,
            rate=training.rate,
            rule=rule_of(recipe),
        )

    def advance(self, feedback: Feedback) -> None:
        """Train the clients whose updates are used, and merge when it is time."""
        view, recipe = feedback.view, self._recipe
        held = self._edges
        if self._begins(view.round):
            held.begin(self._first)
        pairs = feedback.pairs[feedback.used]
        # Newcomers hold another client's data: there are no more to deal.
        clients = view.pair_client[pairs] % recipe.world.clients
        edges = view.pair_edge[pairs]
        held.take(self._trainer.train(held.models, clients, edges, view.round, held.controls))
        merges = recipe.world.edges > 1 or self._trainer.strategy.acts
        if view.round % recipe.rounds.merge_every == 0 and merges:
            held.merge()

    def told(self, feedback: Feedback) -> Feedback:
        """Return the feedback with what the round's devices tell of their samples, before it."""
        view, valid = feedback.view, ~feedback.unpaid
        pairs = feedback.pairs[valid]
        clients = view.pair_client[pairs] % self._recipe.world.clients
        samples = np.zeros(len(valid), dtype=np.int64)
        rms = np.full(len(valid), np.nan)
        samples[valid] = self._trainer.samples(view.round)[clients]
        start = self._first if self._begins(view.round) else self._edges.models
        rms[valid] = self._trainer.loss_rms(start, clients, view.pair_edge[pairs], view.round)
        return replace(feedback, num_samples=samples, loss_rms=rms)

    def _begins(self, round_: int) -> bool:
        training = self._recipe.world.training
        return training.reset and (round_ - 1) % training.slot_rounds == 0

    @property
    def model(self) -> Floats:
        """What a merge now would make of the edges' models, float32[d]."""
        return np.asarray(self._edges.merged()[0][""], dtype=np.float32)

    def accuracy(self) -> float:
        """Return the accuracy of the mean model on the common test set."""
        return self._trainer.accuracy(self.model)

    def opinions(self) -> FloatArray:
        """Return every client's score of the mean model, float64[N]."""
        if self._recipe.world.training.evaluated_on == "test":
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
