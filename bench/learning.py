"""Seconds per round of the testbed's federated training, on one core.

The COCS setting (MNIST, 50 clients, 3 edges, 15 per round, 2 epochs, batch 32) and
the GDA setting (20 clients, 5 per round, 10 epochs, batch 100, 15 rounds per slot).
The papers do not say how many samples a GDA client has: 600 lets N rise to 100.

    FEDAGENT_DATA=... python -m bench.learning
    FEDAGENT_DATA=... python -m bench.learning --case gda-600
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fedagent_task.models import create
from fedagent_task.spec import ModelSpec
from fedagent_testbed.learning.datasets import StudyData, load_classes
from fedagent_testbed.learning.local_sgd import BatchedModel
from fedagent_testbed.learning.partition import Partition, few_labels, iid_for
from fedagent_testbed.learning.trainer import FederatedTrainer
from fedagent_testbed.recipe import Training
from fedagent_testbed.study.play import one_blas_thread

from .rows import show

ROUNDS = 15
GDA_SLOTS, GDA_ROUNDS = 200, 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row: a setting and its bar in seconds per round, where there is one."""

    partition: Callable[[StudyData], Partition]
    edges: int
    selected: int
    training: Training
    bar: float | None = None


def _cocs(data: StudyData) -> Partition:
    return few_labels(data.y.astype(np.int64), 50, seed=1)


def _gda(samples: int) -> Callable[[StudyData], Partition]:
    def made(data: StudyData) -> Partition:
        labels = data.y.astype(np.int64)
        return iid_for(labels, 20, iid_clients=5, seed=1, samples_per_client=samples)

    return made


def _gda_case(samples: int, bar: float | None = None) -> Case:
    return Case(
        partition=_gda(samples),
        edges=1,
        selected=5,
        training=Training(model="svm", epochs=10, batch=100, rate=0.0065),
        bar=bar,
    )


CASES = {
    "cocs": Case(
        partition=_cocs,
        edges=3,
        selected=15,
        training=Training(model="softmax", epochs=2, batch=32, rate=0.005),
        bar=0.05,
    ),
    "gda-600": _gda_case(600, bar=120 / (GDA_SLOTS * GDA_ROUNDS)),
    "gda-2000": _gda_case(2000),
}


def measure(name: str, data: StudyData) -> dict[str, object]:
    """Run one case and return its figures."""
    case = CASES[name]
    spec = ModelSpec(kind=case.training.model, features=data.features, classes=data.classes)
    model = BatchedModel(create(spec))
    began = time.perf_counter()
    trainer = FederatedTrainer(data, case.partition(data), model, case.training, seed=1)
    setup = time.perf_counter() - began
    rng = np.random.default_rng(1)
    models = trainer.initial(case.edges)
    seconds, busy, scoring = [], [], []
    for round_ in range(ROUNDS + 1):
        clients = rng.permutation(trainer.clients)[: case.selected]
        edges = np.arange(case.selected) % case.edges
        began, cpu = time.perf_counter(), time.process_time()
        models = trainer.aggregate(models, clients, edges, round_)
        seconds.append(time.perf_counter() - began)
        busy.append(time.process_time() - cpu)
        began = time.perf_counter()
        trainer.opinions(models[0])
        trainer.accuracy(models[0])
        scoring.append(time.perf_counter() - began)
    median = statistics.median(seconds[1:])
    row: dict[str, object] = {
        "bench": "learning",
        "case": name,
        "samples_per_client": round(float(trainer.samples(1).mean()), 1),
        "ms_per_round": round(1000 * median, 2),
        "cpu_ms_per_round": round(1000 * statistics.median(busy[1:]), 2),
        "ms_opinions_and_accuracy": round(1000 * statistics.median(scoring), 2),
        "setup_s": round(setup, 2),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "bar": case.bar,
        "met": case.bar is None or median <= case.bar,
    }
    if name.startswith("gda"):
        slot = GDA_ROUNDS * median + statistics.median(scoring)
        row["estimated_s_200_slots"] = round(GDA_SLOTS * slot, 1)
    return row


def rows() -> Iterator[dict[str, object]]:
    data = load_classes("mnist")
    with one_blas_thread():
        yield from (measure(name, data) for name in CASES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=list(CASES))
    chosen = parser.parse_args().case
    with one_blas_thread():
        show([measure(chosen, load_classes("mnist"))] if chosen else rows())


if __name__ == "__main__":
    main()
