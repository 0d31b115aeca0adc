"""Attackers of a study: what they send, and what the default rule leaves of it (E12, E14)."""

import numpy as np
import pytest

from bench.experiments.robust import CLIENTS, KINDS, accuracy
from fedagent_testbed.learning.aggregating import Updates
from fedagent_testbed.learning.attacks import Attack
from fedagent_testbed.recipe import Attackers


@pytest.mark.parametrize(
    ("kind", "world"),
    [*((kind, "dirichlet") for kind in KINDS), ("alie", "iid"), ("times-100", "iid")],
)
def test_a_fifth_of_attackers_costs_three_points_at_most_with_the_default(
    kind: str, world: str
) -> None:
    clean = accuracy("digits", world, "none", "clean", 0.0, 1)
    assert clean > 0.88
    assert accuracy("digits", world, "clipped-mean", kind, 0.2, 1) > clean - 0.03


@pytest.mark.parametrize("kind", ["times-100", "weight-lie"])
def test_the_plain_mean_falls_to_them(kind: str) -> None:
    assert accuracy("digits", "dirichlet", "none", kind, 0.2, 1) < 0.6


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
