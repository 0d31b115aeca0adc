"""LinUCB: rank-one updates and plain inversion say the same, one edge at a time."""

import math
from typing import Any

import numpy as np
import pytest

from fedagent_coordinator.policies import linucb
from fedagent_coordinator.policies.linucb import LinearArms, LinUcbPolicy
from tests.fakes.rounds import column_view, ended

RIDGE = 0.7


def direct(
    arms: int, size: int, arm: np.ndarray, x: np.ndarray, y: np.ndarray, alpha: float
) -> np.ndarray:
    """Every arm's bound at every row, by solving the normal equations."""
    bounds = np.empty(len(arm))
    for p in range(len(arm)):
        mine = arm == arm[p]
        matrix = RIDGE * np.eye(size) + x[mine].T @ x[mine]
        theta = np.linalg.solve(matrix, x[mine].T @ y[mine])
        width = x[p] @ np.linalg.solve(matrix, x[p])
        bounds[p] = x[p] @ theta + alpha * np.sqrt(width)
    return bounds


@pytest.mark.parametrize("seed", range(4))
def test_rank_one_updates_are_inversion(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    arms, size, rows = int(rng.integers(1, 6)), int(rng.integers(1, 6)), int(rng.integers(1, 40))
    arm = rng.integers(0, arms, rows)
    x, y = rng.normal(size=(rows, size)), rng.random(rows)
    made = LinearArms(size, RIDGE).grown(arms)
    for part in np.array_split(np.arange(rows), 3):
        made.learn(arm[part], x[part], y[part])
    want = direct(arms, size, arm, x, y, 0.3)
    for block in (linucb.BLOCK, 7):
        monkeypatch.setattr(linucb, "BLOCK", block)
        np.testing.assert_allclose(made.upper(arm, x, 0.3), want, rtol=1e-9)


RATES: dict[str, Any] = {
    "download_bps": [1e5, 1e5, 1e6, 1e6, 1e7, 1e7],
    "compute": [2.0, 2.0, 3.0, 3.0, 4.0, 4.0],
}


VIEW = column_view(edges_seen=2, **RATES)


def features(rate: float, compute: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    one, two = (math.log10(rate) - 4.5) / 2.5, (compute - 2.0) / 2.0
    return np.array([1.0, one, two, one * one, one * two])


@pytest.mark.parametrize("alpha", [0.0, 0.1, 2.0])
def test_scores_are_the_upper_bounds_of_the_edges_own_ridge(alpha: float) -> None:
    policy = LinUcbPolicy(alpha=alpha, ridge=0.5)
    h, moment = np.stack([0.5 * np.eye(5)] * 2), np.zeros((2, 5))
    rounds = [([0, 3, 4], [True, False, True]), ([1, 2], [False, True]), ([5], [True])]
    for pairs, x in rounds:
        policy.learn(ended(VIEW, pairs, x=x))
        for pair, success in zip(pairs, x, strict=True):
            row = features(RATES["download_bps"][pair], RATES["compute"][pair])
            h[pair % 2] += np.outer(row, row)
            moment[pair % 2] += row * success
    scores = policy.select(VIEW, np.random.default_rng(0)).scores
    for pair in range(6):
        row = features(RATES["download_bps"][pair], RATES["compute"][pair])
        inverse = np.linalg.inv(h[pair % 2])
        upper = row @ inverse @ moment[pair % 2] + alpha * math.sqrt(row @ inverse @ row)
        assert scores[pair] == pytest.approx(upper, abs=1e-9)


def test_bounds_follow_all_pairs_that_were_seen() -> None:
    policy = LinUcbPolicy()
    wide = column_view(download_bps=[1e6, 1e2, 1e9], compute=[3.0, 9.0, 0.5])
    policy.learn(ended(wide, [0]))
    state = policy.state()
    assert state["low"] == pytest.approx([2.0, 0.5], rel=1e-6)
    assert state["high"] == pytest.approx([9.0, 9.0], rel=1e-6)
