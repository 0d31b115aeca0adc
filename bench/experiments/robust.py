"""Accuracy under attack for each robust rule: 20 devices at one edge, 30 rounds, all in time.

Digits with an mlp at rate 0.1, Fashion-MNIST (200 samples a device) with a softmax at rate 0.3;
two epochs in batches of 32, weights by samples. A run's accuracy is the mean of its last three
rounds. A row has every attack; `more_` is beside the plain mean that nobody attacks.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np

from fedagent_task.aggregation.robust import registry
from fedagent_testbed.learning.aggregating import EdgeModels
from fedagent_testbed.learning.datasets import StudyData, load_classes
from fedagent_testbed.learning.trainer import FederatedTrainer, _model, _partition
from fedagent_testbed.recipe import Attackers, Training

from .measures import Figures
from .table import Line, line

CLIENTS, ROUNDS, LAST = 20, 30, 3
WORLDS = ("iid", "dirichlet", "two-labels")
RULES = (
    *("none", "clipped-mean", "trimmed-mean", "median"),
    *("multi-krum", "geometric-median", "centered-clipping"),
)
KINDS = (
    *("sign-flip", "times-100", "not-finite", "label-flip"),
    *("alie", "inner-product", "weight-lie"),
)


@cache
def samples(data: str) -> StudyData:
    return load_classes({"fashion": "fashion-mnist"}.get(data, data))


def lines(name: str, seeds: int, only: str) -> Iterator[Line]:
    """A fifth of attackers everywhere, other shares where labels are Dirichlet(1)."""
    data = name.rpartition("-")[2]
    for world in WORLDS:
        clean = [accuracy(data, world, "none", "clean", 0.0, seed) for seed in range(seeds)]
        for rule, share in product(RULES, (0.1, 0.2, 0.3, 0.4) if world == "dirichlet" else (0.2,)):
            if only not in (case := f"{world}, {rule}, {share:g}"):
                continue
            runs = list[Figures]()
            for seed in range(seeds):
                run: Figures = {
                    kind: accuracy(data, world, rule, kind, share, seed) for kind in KINDS
                }
                run["clean"] = accuracy(data, world, rule, "clean", 0.0, seed)
                runs.append(run)
            yield line(name, case, runs, [dict.fromkeys(runs[0], one) for one in clean])


@cache
def accuracy(data: str, world: str, rule: str, kind: str, share: float, seed: int) -> float:
    """Play a rule under an attack; without a share nobody attacks."""
    trainer = trainer_of(data, world, kind, share, seed)
    held, everybody, told = edges_of(trainer, rule), np.arange(CLIENTS), list[float]()
    with np.errstate(all="ignore"):
        for round_ in range(1, ROUNDS + 1):
            held.take(trainer.train(held.models, everybody, np.zeros_like(everybody), round_))
            if round_ > ROUNDS - LAST:
                told.append(trainer.accuracy(held.models[0]))
    return float(np.mean(told))


def edges_of(trainer: FederatedTrainer, rule: str, edges: int = 1) -> EdgeModels:
    """Return the edges' models, with a robust rule of that name."""
    first, rate = trainer.initial(edges), trainer.training.rate
    return EdgeModels(first, weighting="samples", rate=rate, rule=registry.create(rule))


def trainer_of(data: str, world: str, kind: str, share: float, seed: int) -> FederatedTrainer:
    """Return who trains."""
    found, digits = samples(data), data == "digits"
    training = Training(
        partition=world,  # type: ignore[arg-type] # one of three
        model="mlp" if digits else "softmax",
        rate=0.1 if digits else 0.3,
        samples_per_client=None if digits else 200,
        epochs=2,
        weighting="samples",
        test_samples=2000,
    )
    attack = "sign-flip" if kind == "clean" else kind
    return FederatedTrainer(
        found,
        _partition(training, found.y.astype(np.int64), CLIENTS, seed),
        _model(training, found),
        training,
        seed=seed,
        held_out=0.0,
        attackers=Attackers(share=share, kind=attack),  # type: ignore[arg-type]
    )
