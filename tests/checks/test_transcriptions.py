"""What decides, against the same rules transcribed from ALGORITHMS one line at a time.

Here are those that no module's own tests have: COCS (section 3), iteration control (7), eq. 6 (1).
"""

import math
from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.iterations.primal_dual import PrimalDualControl
from fedagent_coordinator.policies import Feedback, RoundView, create
from fedagent_task.aggregation import RoundRule
from tests.fakes.rounds import random_feedback, random_view, trained

# ------------------------------------------------------------- COCS, section 3

FEATURES = ("download_bps", "compute")


class Cocs:
    """Cells, K(t) and what a choice is worth."""

    def __init__(self, *, pooled: bool, k_scale: float, floor: bool) -> None:
        self.pooled, self.k_scale, self.floor = pooled, k_scale, floor
        self.seen: dict[tuple[int, ...], list[bool]] = {}
        self.low, self.high = [math.inf] * 2, [-math.inf] * 2

    def context(self, view: RoundView, pair: int) -> list[float]:
        columns = [view.feature_names.index(name) for name in FEATURES]
        raw = [float(view.pair_features[pair, column]) for column in columns]
        # Rates are far apart: the tuned policy takes their logarithm, as the reference does.
        return [math.log10(max(raw[0], 1.0)) if self.pooled else raw[0], raw[1]]

    def cell(self, view: RoundView, pair: int) -> tuple[int, ...]:
        h = math.ceil(1000 ** (1 / 5))
        cell = []
        for value, low, high in zip(self.context(view, pair), self.low, self.high, strict=True):
            phi = (value - low) / (high - low) if low < high else 0.0
            cell.append(min(max(math.floor(phi * h), 0), h - 1))
        owner = () if self.pooled else (int(view.pair_client[pair]), int(view.pair_edge[pair]))
        return (*owner, *cell)

    def counter(self, view: RoundView, pair: int) -> int:
        return len(self.seen.get(self.cell(view, pair), []))

    def p(self, view: RoundView, pair: int) -> float:
        seen = self.seen.get(self.cell(view, pair), [])
        mean = sum(seen) / len(seen) if seen else 0.0
        return max(mean, 1 / (len(seen) + 2)) if self.floor else mean

    def explores(self, view: RoundView, pair: int) -> bool:
        k = self.k_scale * view.round ** (2 / 5) * math.log(view.round)
        return bool(self.counter(view, pair) <= k)

    def learn(self, feedback: Feedback) -> None:
        view = feedback.view
        cells = [self.cell(view, int(pair)) for pair in feedback.pairs]
        for cell, x in zip(cells, feedback.X.tolist(), strict=True):
            self.seen.setdefault(cell, []).append(x)
        for pair in range(len(view.pair_client)):
            context = self.context(view, pair)
            self.low = [min(a, b) for a, b in zip(self.low, context, strict=True)]
            self.high = [max(a, b) for a, b in zip(self.high, context, strict=True)]


def feasible(view: RoundView, pairs: tuple[int, ...]) -> bool:
    clients = [int(view.pair_client[pair]) for pair in pairs]
    spent = [0] * len(view.edge_budget)
    for pair in pairs:
        spent[view.pair_edge[pair]] += int(view.client_price[view.pair_client[pair]])
    within = all(cost <= left for cost, left in zip(spent, view.edge_budget, strict=True))
    return len(set(clients)) == len(clients) and within


def largest(
    view: RoundView, pairs: list[int], value: dict[int, float], taken: tuple[int, ...]
) -> float:
    """Return the most that pairs can be worth beside those that are taken, by trying all."""
    every = chain.from_iterable(combinations(pairs, n) for n in range(len(pairs) + 1))
    worth = (sum(value[p] for p in some) for some in every if feasible(view, (*taken, *some)))
    return max(worth)


def small_view(rng: np.random.Generator, t: int) -> RoundView:
    view = random_view(rng, t, clients=4, edges=2, budget=2_000_000)
    return replace(view, client_available=np.ones(4, dtype=np.bool_), volunteers=None)


@pytest.mark.parametrize("name", ["cocs", "cocs-paper"])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), first=st.integers(1, 900))
def test_cocs_explores_and_exploits_as_it_is_written(name: str, seed: int, first: int) -> None:
    rng = np.random.default_rng(seed)
    tuned = name == "cocs"
    literal = {"scope": "pair", "k_scale": 1.0, "logs": False, "floor": False}
    policy = create("cocs", solver="exact", **({} if tuned else literal))
    book = Cocs(pooled=tuned, k_scale=0.005 if tuned else 1.0, floor=tuned)
    for t in range(first, first + 12):
        view = small_view(rng, t)
        selection = policy.select(view, rng)
        pairs = list(range(len(view.pair_client)))
        chosen = tuple(int(pair) for pair in selection.pairs)
        assert feasible(view, chosen)
        new = [pair for pair in pairs if book.explores(view, pair)]
        old = [pair for pair in pairs if pair not in new]
        value = {pair: book.p(view, pair) for pair in pairs}
        explored = tuple(pair for pair in chosen if pair in new)
        assert selection.notes["under_explored"] == len(new)
        assert len(explored) == largest(view, new, dict.fromkeys(new, 1.0), ())
        rest = sum(value[pair] for pair in chosen if pair in old)
        assert rest == pytest.approx(largest(view, old, value, explored), abs=1e-6)
        feedback = random_feedback(rng, view, selection)
        policy.learn(feedback)
        book.learn(feedback)


# ------------------------------------------------- iteration control, section 7


class Rho:
    """P1 as printed: multipliers by what was revealed, then eq. 11, on one side of the root."""

    def __init__(self, limit_s: float, horizon: float) -> None:
        self.rho, self.quality, self.limit_s = 5.0, 0.0, limit_s
        self.load: dict[int, float] = {}
        self.gamma = horizon ** (-1 / 3)

    def learn(self, h: dict[int, float], arrivals: dict[int, float], steps: int) -> None:
        alpha, epsilon, xi = 0.75, 0.005, 0.3
        m = list(arrivals)
        bound = (max(1.0, (2 * arrivals[i] / steps) ** alpha) * 0.001 for i in m)
        omega = sum(bound) / len(m)
        for i, seconds in h.items():
            g1 = self.rho * seconds - self.limit_s
            self.load[i] = max(0.0, self.load.get(i, 0.0) + self.gamma * g1)
        g2 = omega * self.rho**-alpha / epsilon - xi
        self.quality = max(0.0, self.quality + self.gamma * g2)

        def derivative(rho: float) -> float:
            fixed = sum(h.values()) + sum(self.load[i] * h[i] for i in h)
            falling = self.quality * alpha * omega * rho ** (-alpha - 1) / epsilon
            return float(fixed - falling + (rho - self.rho) / self.gamma)

        low, high = 1.0, 30.0
        if derivative(low) >= 0:
            self.rho = low
        elif derivative(high) <= 0:
            self.rho = high
        else:
            for _ in range(200):
                middle = 0.5 * (low + high)
                low, high = (low, middle) if derivative(middle) >= 0 else (middle, high)
            self.rho = low


@settings(max_examples=40, deadline=None)
@given(
    rounds=st.lists(
        st.lists(st.tuples(st.floats(1e-4, 0.5), st.integers(0, 200)), min_size=3, max_size=3),
        min_size=1,
        max_size=25,
    ),
    limit_s=st.floats(0.01, 3.0),
    steps=st.integers(1, 50),
)
def test_iterations_follow_the_printed_problem(
    rounds: list[list[tuple[float, int]]], limit_s: float, steps: int
) -> None:
    control = PrimalDualControl(load_limit_s=limit_s, normalise=False)
    book = Rho(limit_s, horizon=200)
    for devices in rounds:
        per_iteration = np.array([seconds for seconds, _ in devices])
        arrivals = np.array([count for _, count in devices])
        feedback = trained(per_iteration, arrivals=arrivals, steps=steps)
        control.learn(feedback, horizon=200, steps=steps)
        h = dict(enumerate((per_iteration * steps).tolist()))
        book.learn(h, dict(enumerate(arrivals.tolist())), steps)
        assert control.rho == pytest.approx(book.rho, rel=1e-6)
        assert control.notes()["lambda_quality"] == pytest.approx(book.quality, rel=1e-6)


# ------------------------------------------------------------ eq. (6), section 1


@given(
    taus=st.lists(st.integers(0, 60).map(lambda n: n / 10) | st.just(math.inf), max_size=9),
    deadline=st.integers(1, 40).map(lambda n: n / 10),
    longer=st.integers(-5, 30).map(lambda n: n / 10),
    z=st.integers(1, 12),
)
def test_a_round_ends_as_eq_6_says(
    taus: list[float], deadline: float, longer: float, z: int
) -> None:
    max_wait = max(deadline, deadline + longer)
    z_eff = min(z, len(taus))
    in_time = [tau <= deadline for tau in taus]
    if sum(in_time) >= z_eff:
        waited, used = deadline, in_time
    else:
        order = sorted(range(len(taus)), key=lambda n: taus[n])[:z_eff]
        slowest = taus[order[-1]]
        waited = min(slowest, max_wait)
        used = [n in order and slowest <= max_wait for n in range(len(taus))]
    settled = RoundRule(deadline, deadline + longer, z).settle(np.array(taus, dtype=np.float64))
    assert settled.in_time.tolist() == in_time
    assert settled.used.tolist() == used
    assert settled.known.tolist() == [tau <= waited for tau in taus]
    assert settled.wait_s == waited


def test_the_deadline_itself_is_in_time_and_so_is_the_end_of_waiting() -> None:
    rule = RoundRule(3.0, 5.0, 2)
    assert rule.counts(3.0, used=2, ordered=3)
    assert not rule.counts(3.001, used=2, ordered=3)
    assert rule.counts(5.0, used=1, ordered=3)
    assert not rule.counts(5.001, used=1, ordered=3)
