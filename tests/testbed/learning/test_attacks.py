"""Attackers of a study: what they send, and what the default rule leaves of it (E12, E14)."""

import numpy as np
import pytest

from fedagent_task.aggregation.robust import registry
from fedagent_task.models import create
from fedagent_task.recipe.spec import ModelSpec
from fedagent_testbed.learning.aggregating import Updates
from fedagent_testbed.learning.attacks import Attack
from fedagent_testbed.learning.datasets import load_classes
from fedagent_testbed.learning.local_sgd import BatchedModel
from fedagent_testbed.learning.partition import dirichlet, iid
from fedagent_testbed.learning.trainer import FederatedTrainer
from fedagent_testbed.recipe import Attackers, Training

CLIENTS, ROUNDS = 20, 20
KINDS = (
    "sign-flip",
    "times-100",
    "not-finite",
    "label-flip",
    "alie",
    "inner-product",
    "weight-lie",
)


def trainer(kind: str, share: float, rule: str, *, shared: bool = False) -> FederatedTrainer:
    data = load_classes("digits")
    labels = data.y.astype(np.int64)
    parts = (
        iid(labels, CLIENTS, seed=1) if shared else dirichlet(labels, CLIENTS, gamma=1.0, seed=1)
    )
    training = Training(rate=0.3, epochs=2, batch=32, weighting="samples")
    model = BatchedModel(create(ModelSpec(kind="softmax", features=64, classes=10)))
    return FederatedTrainer(
        data,
        parts,
        model,
        training,
        seed=1,
        held_out=0.0,
        robust=registry.create(rule),
        attackers=Attackers(kind=kind, share=share),  # type: ignore[arg-type] # one of KINDS
    )


def reached(kind: str, share: float, rule: str, *, shared: bool = False) -> float:
    playing = trainer(kind, share, rule, shared=shared)
    model, nobody = playing.initial(1), np.zeros(CLIENTS, np.int64)
    for round_ in range(1, ROUNDS + 1):
        model = playing.sums(model, np.arange(CLIENTS), nobody, round_).models(model)[0]
    return playing.accuracy(model[0])


@pytest.mark.parametrize(
    ("kind", "shared"), [*((kind, False) for kind in KINDS), ("alie", True), ("times-100", True)]
)
def test_a_fifth_of_attackers_costs_three_points_at_most_with_the_default(
    kind: str, shared: bool
) -> None:
    clean = reached(kind, 0.0, "none", shared=shared)
    assert clean > 0.88
    assert reached(kind, 0.2, "clipped-mean", shared=shared) > clean - 0.03


@pytest.mark.parametrize("kind", ["times-100", "weight-lie"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_plain_mean_falls_to_them(kind: str) -> None:
    assert reached(kind, 0.2, "none") < 0.6


def updates() -> Updates:
    deltas = np.random.default_rng(0).normal(size=(CLIENTS, 30)).astype(np.float32) + 1.0
    clients = np.arange(CLIENTS)
    return Updates(clients, np.zeros(CLIENTS, np.int64), np.full(CLIENTS, 50), deltas)


def test_what_attackers_send() -> None:
    honest = updates()
    for kind in (*KINDS, "free-rider", "noise", "copy"):
        attack = Attack.of(Attackers(kind=kind, share=0.2), CLIENTS, 3)  # type: ignore[arg-type]
        bad = attack.hostile
        sent = attack.changed(honest, 1)
        if kind == "not-finite":
            assert sent.clients.tolist() == np.flatnonzero(~bad).tolist()
            continue
        assert np.array_equal(sent.deltas[~bad], honest.deltas[~bad])
        mean = honest.deltas[~bad].mean(axis=0)
        mine, own = sent.deltas[bad], honest.deltas[bad]
        match kind:
            case "sign-flip":
                assert np.array_equal(mine, -own)
            case "weight-lie":
                assert (sent.samples[bad] > 1e5).all()
            case "times-100":
                assert np.allclose(mine, -100 * own)
            case "inner-product":
                assert (mine @ mean < 0).all()
            case "alie":
                assert np.abs(mine - mean).max() < honest.deltas[~bad].std(axis=0).max()
            case "free-rider":
                assert not mine.any()
            case "copy":
                assert (mine == honest.deltas[~bad][0]).all()
    assert Attack.of(Attackers(share=0.0), CLIENTS, 3).changed(honest, 1) is honest
