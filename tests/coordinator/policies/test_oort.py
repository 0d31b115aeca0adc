"""Oort against its Algorithm 1 written down a second time, client by client."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.policies import Ending, Feedback, RoundView, Selection
from fedagent_coordinator.policies.oort import OortPolicy, statistical_utility
from fedagent_coordinator.policies.selection import check_selection, spent_per_edge
from tests.fakes.rounds import choice, column_view, ended


class Algorithm1:
    """U, L, D and T of the paper, in dictionaries and lists."""

    def __init__(self, k: int, window: int, delta_s: float) -> None:
        self.k, self.w, self.delta, self.t = k, window, delta_s, delta_s
        self.u: dict[int, float] = {}
        self.last: dict[int, int] = {}
        self.d: dict[int, float] = {}
        self.achieved: list[float] = []

    def util(self, i: int, r: int) -> float:
        ranked = sorted(self.u.values())
        clip = ranked[min(int(len(ranked) * 0.95), len(ranked) - 1)]
        low = 0.999 * min(min(one, clip) for one in ranked)
        high = max(min(one, clip) for one in ranked)
        scaled = (min(self.u[i], clip) - low) / max(high - low, 1e-4)
        util = scaled + math.sqrt(0.1 * math.log(r) / self.last[i])
        return util * (self.t / self.d[i]) ** 2 if self.t < self.d[i] else util

    def sizes(self, r: int, known: int, new: int) -> tuple[int, int]:
        epsilon = 0.9
        for _ in range(r - 1):
            epsilon = max(0.2, epsilon * 0.98)
        explored = min(self.k - math.floor((1 - epsilon) * self.k + 1e-9), new)
        return min(self.k - explored, known), explored

    def learn(self, r: int, told: list[tuple[int, float | None, float]]) -> None:
        known = [u for _, u, _ in told if u is not None]
        for i, u, seconds in told:
            mean = sum(known) / len(known) if known else self.u.get(i, 0.0)
            self.u[i], self.last[i], self.d[i] = mean if u is None else u, r, seconds
        if told:
            self.achieved.append(sum(known))
        n, w = len(self.achieved), self.w
        if (
            told
            and n >= 2 * w
            and n % w == 0
            and sum(self.achieved[-2 * w : -w]) > sum(self.achieved[-w:])
        ):
            self.t += self.delta


def told_of(rng: np.random.Generator, view: RoundView, selection: Selection) -> Feedback:
    """Updates of random sizes and losses; some are late, missed, or of a silent edge."""
    s = len(selection.pairs)
    how = rng.choice([0, 0, 0, 1, 2, 6], s).astype(np.int8)
    x, valid = how == Ending.IN_TIME, how <= Ending.LATE
    base = ended(view, selection.pairs.tolist(), x=x.tolist(), tau_s=(9 * rng.random(s)).tolist())
    return replace(
        base,
        ending=how,
        unpaid=~valid,
        num_samples=rng.integers(1, 60, s),
        loss_rms=np.where(valid, 3 * rng.random(s) + 0.01, np.nan),
    )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(1, 40),
    k=st.integers(1, 12),
    window=st.integers(1, 4),
)
def test_it_decides_and_learns_as_algorithm_1(seed: int, clients: int, k: int, window: int) -> None:
    rng = np.random.default_rng(seed)
    policy = OortPolicy(clients_per_round=k, window=window, delta_s=2.0)
    book = Algorithm1(k, window, 2.0)
    for r in range(1, 25):
        free = [bool(rng.random() < 0.8) for _ in range(clients)]
        view = column_view(r, clients=clients, available=free, deadline_s=5.0)
        selection = policy.select(view, rng)
        check_selection(view, selection.pairs)
        util = {i: book.util(i, r) for i in book.u}
        expected = [util.get(i, math.nan) for i in range(clients)]
        assert selection.scores == pytest.approx(expected, rel=1e-9, nan_ok=True)
        known = [i for i in util if free[i]]
        new = [i for i in range(clients) if free[i] and i not in util]
        exploits, explores = book.sizes(r, len(known), len(new))
        picked = selection.pairs.tolist()
        assert len(picked) == min(k, len(known) + len(new))
        assert selection.notes["explore"] == explores
        if exploits:
            cut = 0.95 * sorted((util[i] for i in known), reverse=True)[exploits - 1]
            assert selection.notes["cut_off"] == pytest.approx(cut, rel=1e-9)
            assert all(util[i] >= cut * (1 - 1e-9) for i in picked[:exploits])
        assert set(picked[exploits : exploits + explores]) <= set(new)
        assert selection.notes["preferred_s"] == pytest.approx(book.t)
        feedback = told_of(rng, view, selection)
        policy.learn(feedback)
        told = []
        for row, i in enumerate(picked):
            ending, tau = feedback.endings[row], float(feedback.tau_s[row])
            if ending != Ending.EDGE:
                valid = ending in (Ending.IN_TIME, Ending.LATE)
                n, rms = int(feedback.num_samples[row]), float(feedback.loss_rms[row])  # type: ignore[index] # it is not None
                told.append((i, n * rms if valid else None, tau if valid else max(tau, 5.0)))
        book.learn(r, told)


def test_utility_is_size_times_the_root_of_the_mean_square() -> None:
    """Samples with losses 3 and 4: 2 sqrt((9 + 16) / 2), as printed."""
    feedback = replace(
        ended(column_view(clients=3), [0, 1, 2]),
        num_samples=np.array([2, 10, 5]),
        loss_rms=np.array([math.sqrt(12.5), np.nan, np.nan]),
        loss=np.array([3.5, 0.5, np.nan]),
    )
    assert statistical_utility(feedback) == pytest.approx([50**0.5, 5.0, np.nan], nan_ok=True)


def played(policy: OortPolicy, r: int, utility: list[float], tau_s: list[float]) -> None:
    view = column_view(r, clients=len(utility))
    feedback = ended(view, list(range(len(utility))), tau_s=tau_s)
    n = np.ones(len(utility), dtype=np.int64)
    policy.learn(replace(feedback, num_samples=n, loss_rms=np.array(utility)))


def test_the_draw_is_by_utility_among_those_above_the_cut_off() -> None:
    policy = OortPolicy(clients_per_round=1, epsilon=0.0, least_epsilon=0.0, cut_off=0.4, clip=1.0)
    played(policy, 1, [0.0, 1.0, 2.0, 4.0], [1.0] * 4)
    view = column_view(1, clients=4)
    drawn = Counter(choice(policy, view, seed=seed)[0] for seed in range(3000))
    assert set(drawn) == {2, 3}
    assert drawn[3] / drawn[2] == pytest.approx(2.0, rel=0.12)


def test_new_clients_are_explored_by_speed() -> None:
    policy = OortPolicy(clients_per_round=1, epsilon=1.0)
    view = column_view(compute=[1.0, 1.0, 1.0], upload_bps=[3e6, 1e6, np.nan])
    drawn = Counter(choice(policy, view, seed=seed)[0] for seed in range(3000))
    # Upload beside the usual computation and the download that nobody reports.
    weight = 1 / (2 + np.array([2e6 / 3e6, 2.0, 1.0]))
    shares = [drawn[i] / 3000 for i in range(3)]
    assert shares == pytest.approx((weight / weight.sum()).tolist(), abs=0.03)


def test_the_preferred_duration_is_a_percentile_where_no_seconds_are_given() -> None:
    policy = OortPolicy(percentile=50, percentile_step=30, window=1)
    assert policy.preferred_s == math.inf
    played(policy, 1, [9.0] * 4, [4.0, 1.0, 3.0, 2.0])
    assert policy.preferred_s == 3.0
    for r, value in ((2, 5.0), (3, 4.0)):
        played(policy, r, [value] * 4, [4.0, 1.0, 3.0, 2.0])
    assert policy.preferred_s == math.inf


def test_what_does_not_fit_the_budget_gives_way_to_others() -> None:
    policy = OortPolicy(clients_per_round=3, epsilon=0.0, least_epsilon=0.0)
    played(policy, 1, [9.0, 8.0, 7.0, 1.0, 1.0, 1.0], [1.0] * 6)
    view = column_view(2, price=[5, 5, 5, 1, 1, 1], budget=6)
    assert len(choice(policy, view, 2)) == 2
    assert spent_per_edge(view, policy.select(view, np.random.default_rng(2)).pairs) == [6]


def test_a_client_goes_to_the_edge_that_it_reaches_fastest() -> None:
    view = column_view(edges_seen=2, upload_bps=[1e6, 5e6, 4e6, 2e6])
    assert choice(OortPolicy(), view) == [1, 2]


def test_without_a_number_a_round_takes_what_the_budgets_pay() -> None:
    assert len(choice(OortPolicy(), column_view(clients=30, budget=12))) == 12


def test_claims_beyond_all_bounds_stay_finite() -> None:
    policy = OortPolicy()
    view = column_view(1, clients=2)
    huge = np.array([2**62, 1])
    feedback = replace(ended(view, [0, 1]), num_samples=huge, loss_rms=np.array([1e300, 1.0]))
    for _ in range(50):
        policy.learn(feedback)
    other = OortPolicy()
    other.restore(policy.state())
    assert np.isfinite(policy.select(view, np.random.default_rng(0)).scores).all()
