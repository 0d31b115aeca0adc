"""Quick-Init UCB makes the choices of the enumerated algorithm; `ucb` over subsets."""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.policies.sets.quick_init import QuickInitUcbPolicy, UcbPolicy
from tests.fakes.rounds import SEED, chosen, ended, play, town

NAN = math.nan
REWARDS = st.one_of(
    st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, NAN]), st.floats(0, 1, allow_subnormal=True)
)
Arm = tuple[int, ...]


@dataclass
class Enumerated:
    """The algorithm as written: every arm is listed, every round."""

    size: int
    mu: float
    t: int = 1
    groups: list[tuple[Arm, float]] = field(default_factory=list)
    covered: set[int] = field(default_factory=set)
    retry: set[int] = field(default_factory=set)
    warm: bool = False
    mean: dict[Arm, float] = field(default_factory=dict)
    count: dict[Arm, int] = field(default_factory=dict)

    def cold(self, there: set[int]) -> bool:
        return not self.warm and bool(there & self.retry or there - self.covered)

    def scores(self, clients: int) -> list[Fraction]:
        its = [[Fraction(r) for group, r in self.groups if c in group] for c in range(clients)]
        known = [sum(rewards) / Fraction(len(rewards)) for rewards in its if rewards]
        other = sum(known) / Fraction(len(known)) if known else Fraction(0)
        return [sum(rewards) / Fraction(len(rewards)) if rewards else other for rewards in its]

    def best(self, there: set[int], clients: int) -> Arm:
        if len(there) <= self.size:
            return tuple(sorted(there))
        score = self.scores(clients)

        scale = math.lcm(*(s.denominator for s in score))
        whole = [int(s * scale) for s in score]

        def key(arm: Arm) -> tuple[float, int, Arm]:
            total = sum(map(whole.__getitem__, arm))
            mean = self.mean.get(arm, total / (self.size * scale))
            index = mean + self.mu * math.sqrt(math.log(self.t) / self.count.get(arm, 1))
            return -index, -total, arm

        return min(map(key, combinations(sorted(there), self.size)))[2]

    def learn(self, arm: Arm, reward: float, there: set[int], clients: int) -> None:
        prior = None
        retried = not self.warm and bool(self.retry) and set(arm) <= self.retry
        if self.warm or (set(arm) <= self.covered and not retried):
            self.warm, self.retry = True, set()
            total = sum((self.scores(clients)[c] for c in arm), Fraction(0))
            prior = float(total / self.size)
        elif math.isnan(reward) and not retried:
            self.retry = set(arm)
        else:
            if not math.isnan(reward):
                self.groups.append((arm, reward))
            self.retry -= self.retry if retried else set()
            self.covered |= set(arm)
            self.warm = not self.retry and there <= self.covered
        self.t += 1
        if math.isnan(reward) or len(arm) != self.size:
            return
        if arm in self.mean:
            count = self.count[arm]
            self.mean[arm] = (self.mean[arm] * count + reward) / (count + 1)
            self.count[arm] += 1
        elif prior is None:
            self.mean[arm], self.count[arm] = reward, 1
        else:
            self.mean[arm], self.count[arm] = (prior + reward) / 2, 2


def follow(
    policy: QuickInitUcbPolicy,
    model: Enumerated,
    rounds: list[tuple[list[bool], float]],
    seed: int = SEED,
) -> list[Arm]:
    """Play both; every choice after the cold start must be the same."""
    arms = []
    for t, (there, reward) in enumerate(rounds, start=1):
        view = town(t, len(there), there=there)
        here = {c for c, is_there in enumerate(there) if is_there}
        got = tuple(chosen(policy, view, seed))
        if not model.cold(here):
            assert got == model.best(here, len(there))
        elif model.retry & here:
            assert set(got) == model.retry & here
        else:
            fresh = here - model.covered
            assert len(got) == min(model.size, len(here))
            assert set(got) <= fresh if len(fresh) >= model.size else fresh <= set(got)
        policy.learn(ended(view, got, opinions=reward))
        if got:
            model.learn(got, reward, here, len(there))
        arms.append(got)
    return arms


@settings(max_examples=80)
@given(
    data=st.data(),
    known=st.integers(1, 8),
    mu=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    stay=st.booleans(),
)
def test_choices_are_those_of_the_enumerated_algorithm(
    *, data: st.DataObject, known: int, mu: float, stay: bool
) -> None:
    """Of a fleet that stays as it is, and while clients come and go."""
    size, rounds = data.draw(st.integers(1, known + 1)), []
    for _ in range(data.draw(st.integers(1, 35))):
        known += 0 if stay else data.draw(st.sampled_from([0, 0, 0, 1]))
        free = st.just(True) if stay else st.booleans()
        there = data.draw(st.lists(free, min_size=known, max_size=known))
        rounds.append((there, data.draw(REWARDS)))
    follow(QuickInitUcbPolicy(clients_per_round=size, mu=mu), Enumerated(size, mu), rounds)


@pytest.mark.parametrize(("clients", "size", "digits", "mu"), [(20, 5, 1, 0.01), (190, 2, 17, 1.0)])
def test_thousands_of_arms(clients: int, size: int, mu: float, digits: int) -> None:
    rng = np.random.default_rng(3)
    rewards = np.round(rng.random(clients // size + 25), digits).tolist()
    policy = QuickInitUcbPolicy(clients_per_round=size, mu=mu)
    follow(policy, Enumerated(size, mu), [([True] * clients, r) for r in rewards])


def test_a_slot_keeps_its_set_and_credits_who_played_last() -> None:
    policy = QuickInitUcbPolicy(clients_per_round=2, slot_rounds=3, mu=0.0)
    rounds = [play(policy, town(t, 4), 0.1 * t) for t in range(1, 7)]
    assert rounds[0] == rounds[1] == rounds[2] != rounds[3] == rounds[4] == rounds[5]
    assert policy.state()["group_rewards"].tolist() == [0.1 * 3, 0.1 * 6]
    best = play(policy, town(7, 4), NAN)
    away = [c != best[0] for c in range(4)]
    assert play(policy, town(8, 4, there=away), NAN) == best[1:]
    assert chosen(policy, town(9, 4)) == best
    before = policy.state()
    policy.learn(ended(town(9, 4, there=away), best[1:], opinions=0.9))
    after = policy.state()
    assert np.array_equal(before["arm_mean"], after["arm_mean"])  # another set: no arm of K
    assert after["slot"].tolist() == [3, 0]


def test_ucb_pulls_every_arm_once_first_in_a_seeded_order() -> None:
    def order(seed: int) -> list[tuple[int, ...]]:
        policy = UcbPolicy(clients_per_round=3)
        return [tuple(play(policy, town(t, 6), 0.5, seed=seed)) for t in range(1, 21)]

    assert sorted(order(SEED)) == sorted(combinations(range(6), 3))
    assert order(SEED) == order(SEED) != order(SEED + 1)


def test_ucb_starts_where_arms_cannot_be_counted() -> None:
    assert len(play(UcbPolicy(clients_per_round=50), town(1, 100_000), 0.5)) == 50


def test_ucb_then_takes_the_largest_index() -> None:
    policy = UcbPolicy(clients_per_round=2, mu=0.4)
    rng = np.random.default_rng(2)
    pulls: dict[tuple[int, ...], list[float]] = {arm: [] for arm in combinations(range(4), 2)}
    for t in range(1, 60):
        arm = tuple(chosen(policy, town(t, 4)))
        if t > len(pulls):

            def key(arm: tuple[int, ...], t: int = t) -> tuple[float, tuple[int, ...]]:
                got = pulls[arm]
                return -(sum(got) / len(got) + 0.4 * math.sqrt(math.log(t) / len(got))), arm

            assert arm == min(pulls, key=key)
        reward = round(float(rng.random()), 3)
        pulls[arm].append(reward)
        assert tuple(play(policy, town(t, 4), reward)) == arm
    assert min(map(len, pulls.values())) < max(map(len, pulls.values()))


def test_ucb_pulls_only_arms_of_who_is_there() -> None:
    policy = UcbPolicy(clients_per_round=2)
    away = [True, True, False, True]
    arms = [tuple(play(policy, town(t, 4, there=away), 0.5)) for t in (1, 2, 3)]
    assert sorted(arms) == [(0, 1), (0, 3), (1, 3)]
    assert play(policy, town(4, 4, there=[False, True, False, False]), 0.5) == [1]
