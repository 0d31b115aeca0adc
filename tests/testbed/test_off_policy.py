"""Estimates hold the truth where a log has support, and are refused where it has none."""

from dataclasses import replace

import numpy as np
import pytest

from fedagent_coordinator.policies.base import IntArray
from fedagent_testbed.off_policy import Choices, NoSupportError, estimated
from tests.fakes.rounds import random_view

RUNS = 60
CLIENTS = 10


def field(seed: int, rounds: int, *, share: float = 0.5) -> tuple[list[Choices], float]:
    """A log that swaps its one choice, and what always choosing another earns in truth."""
    rng = np.random.default_rng(seed)
    chance = np.linspace(0.2, 0.9, CLIENTS)
    found, truth = [], 0.0
    views = [random_view(rng, t, clients=CLIENTS, edges=1, seen=1.0) for t in range(1, 31)]
    for t in range(1, rounds + 1):
        view = replace(views[t % len(views)], round=t)
        arrives = rng.random(CLIENTS) < chance[view.pair_client]
        propensity = np.full(CLIENTS, share / (CLIENTS - 1))
        propensity[0] = 1 - share
        ordered = np.array([rng.choice(CLIENTS, p=propensity)], dtype=np.int64)
        wanted: IntArray = np.array([7 if t % 2 else 2], dtype=np.int64)
        truth += float(arrives[wanted].sum()) / rounds
        found.append(
            Choices(
                view=view,
                pairs=wanted,
                chance=propensity[wanted],
                ordered=ordered,
                in_time=arrives[ordered].astype(np.float64),
            )
        )
    return found, truth


def test_intervals_hold_the_truth() -> None:
    held = {"ips": 0, "doubly_robust": 0}
    bias = dict.fromkeys(held, 0.0)
    for seed in range(RUNS):
        log, truth = field(seed, 900)
        found = estimated(log)
        for name in held:
            value = getattr(found, name)
            held[name] += value.low <= truth <= value.high
            bias[name] += (value.mean - truth) / RUNS
    assert min(held.values()) >= 0.9 * RUNS
    assert max(map(abs, bias.values())) < 0.05


def test_choices_that_the_log_never_makes_widen_the_interval() -> None:
    log, _ = field(1, 900)
    plain = estimated(log).doubly_robust
    some = [
        replace(one, chance=np.zeros(1) if n % 20 == 0 else one.chance) for n, one in enumerate(log)
    ]
    found = estimated(some)
    assert found.without_support == pytest.approx(0.05)
    wide = found.doubly_robust
    assert wide.high - wide.low > plain.high - plain.low + 0.04


def test_a_log_without_support_is_refused() -> None:
    log, _ = field(1, 900, share=0.0)
    with pytest.raises(NoSupportError, match=r"never have made 100.0% of this policy's choices"):
        estimated(log)
    short, _ = field(1, 12)
    with pytest.raises(NoSupportError, match="12 rounds were settled, at least 20 are needed"):
        estimated(short)
    few, _ = field(1, 60, share=0.2)
    with pytest.raises(NoSupportError, match="effective sample size"):
        estimated(few)
