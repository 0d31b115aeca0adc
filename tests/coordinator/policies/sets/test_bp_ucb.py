"""BP-UCB: index, pulls, beliefs of the last slot, positions."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.errors import InvalidViewError, PolicyError
from fedagent_coordinator.policies import Purpose, round_rng
from fedagent_coordinator.policies.sets.beliefs import (
    declared,
    k_nearest,
    propagate,
    propagate_literal,
    wire,
)
from fedagent_coordinator.policies.sets.bp_ucb import BpUcbPolicy
from tests.fakes.rounds import SEED, chosen, ended, town

NAN = math.nan


def spots(clients: int, seed: int = 0) -> list[tuple[float, float]]:
    points = np.random.default_rng(seed).random((clients, 2)).astype(np.float32).astype(float)
    return [(x, y) for x, y in points.tolist()]


def test_the_index_is_the_one_of_the_paper() -> None:
    policy = BpUcbPolicy(clients_per_round=2, mu=0.3, neighbours=2, cold_start=False)
    clients, where = 7, spots(7)
    rng = np.random.default_rng(3)
    initial = rng.random(clients)
    mean, count = initial.copy(), np.ones(clients)
    wiring = wire(k_nearest("test", np.array(where), 2))
    belief = propagate(wiring, initial).belief
    for t in range(1, 60):
        opinions = initial if t == 1 else None
        view = town(t, clients, places=where, opinions=opinions)  # type: ignore[arg-type]
        selection = policy.select(view, round_rng(SEED, t, Purpose.SELECT))
        index = mean + belief / clients + 0.3 * np.sqrt(math.log(t + 1) / count)
        assert selection.scores == pytest.approx(index, abs=1e-9)
        best = np.argsort(-selection.scores, kind="stable")[:2].tolist()
        assert selection.pairs.tolist() == best
        now = rng.random(clients)
        policy.learn(ended(view, best, opinions=now.tolist()))
        mean[best] = (mean[best] * count[best] + now[best]) / (count[best] + 1)
        count[best] += 1
        belief = propagate(wiring, now).belief
    assert count.min() < count.max()


@pytest.mark.parametrize("how", ["plain", "local_weights", "literal"])
def test_beliefs_are_of_the_kind_asked_for(how: str) -> None:
    where, opinions = spots(20), np.random.default_rng(1).uniform(0.6, 0.9, 20)
    policy = BpUcbPolicy(literal=how == "literal", local_weights=how == "local_weights")
    policy.learn(ended(town(1, 20, places=where), [0], opinions=opinions.tolist()))
    graph = k_nearest("test", np.array(where), 4)
    belief = policy.state()["belief"]
    if how == "literal":
        assert belief == pytest.approx(propagate_literal(graph, opinions).belief)
        assert belief.sum() == pytest.approx(1.0)
        assert belief.max() > 0.99, "the beliefs of the paper's constants saturate"
    else:
        wiring = wire(graph, local=how == "local_weights")
        assert belief == pytest.approx(propagate(wiring, opinions).belief, abs=1e-12)
        assert belief.max() < 0.95


def test_positions_are_needed_unless_neighbours_are_declared() -> None:
    assert BpUcbPolicy().needs == {"opinions", "x_km", "y_km"}
    assert BpUcbPolicy(graph="declared").needs == {"opinions"}
    with pytest.raises(InvalidViewError):
        chosen(BpUcbPolicy(), town(1, 3))


OPINION = st.one_of(st.sampled_from([0.0, 0.5, 1.0, NAN]), st.floats(0, 1, allow_subnormal=True))


@dataclass
class Written:
    """BP-UCB with its cold start as section 9 of ALGORITHMS has it, client by client."""

    size: int
    mu: float
    t: int = 1
    first: dict[int, float] = field(default_factory=dict)
    trained: dict[int, list[float]] = field(default_factory=dict)
    chosen: dict[int, int] = field(default_factory=dict)
    last: dict[int, float] = field(default_factory=dict)

    def hear(self, opinions: list[float]) -> None:
        for client, opinion in enumerate(opinions):
            if not math.isnan(opinion):
                self.first.setdefault(client, opinion)

    def is_cold(self, client: int) -> bool:
        return client not in self.trained and self.chosen.get(client, 0) < 2

    def ranks(self, clients: int) -> list[tuple[bool, float]]:
        """Whether each client comes first, and its index."""
        mean = {
            c: sum(self.trained[c]) / len(self.trained[c]) if c in self.trained else self.first[c]
            for c in self.first
        }
        opinions = self.last or self.first
        near = declared("test", [(0, 1), (1, 2)], clients)
        heard = np.array([opinions.get(c, NAN) for c in range(clients)])
        belief = propagate(wire(near), heard).belief
        unknown = sum(mean.values()) / len(mean)
        return [
            (
                self.is_cold(c),
                mean.get(c, unknown)
                + float(belief[c]) / clients
                + self.mu * math.sqrt(math.log(self.t + 1) / max(1, self.chosen.get(c, 0))),
            )
            for c in range(clients)
        ]

    def learn(self, played: list[int], used: list[bool], opinions: list[float]) -> None:
        self.t += 1
        for client, arrived in zip(played, used, strict=True):
            self.chosen[client] = self.chosen.get(client, 0) + 1
            if arrived and not math.isnan(opinions[client]):
                self.trained.setdefault(client, []).append(opinions[client])
        self.hear(opinions)
        self.last |= {c: o for c, o in enumerate(opinions) if not math.isnan(o)}


@settings(max_examples=40, deadline=None)
@given(data=st.data(), size=st.integers(1, 5), mu=st.sampled_from([0.0, 0.01, 1.0]))
def test_by_default_who_never_trained_comes_first_and_then_the_index_decides(
    data: st.DataObject, size: int, mu: float
) -> None:
    def new() -> BpUcbPolicy:
        return BpUcbPolicy(clients_per_round=size, mu=mu, graph="declared", edges=[(0, 1), (1, 2)])

    policy, written, known = new(), Written(size, mu), 3
    for t in range(1, data.draw(st.integers(2, 25))):
        known += data.draw(st.sampled_from([0, 0, 0, 2]))
        there = data.draw(st.lists(st.booleans(), min_size=known, max_size=known))
        initial = data.draw(st.lists(OPINION, min_size=known, max_size=known))
        view = town(t, known, there=there, opinions=initial)
        written.hear(initial)
        here = [client for client in range(known) if there[client]]
        played = chosen(policy, view)
        if written.first:
            ranks = written.ranks(known)
            best = sorted((ranks[c] for c in here), reverse=True)[:size]
            got = sorted((ranks[c] for c in played), reverse=True)
            assert [cold for cold, _ in got] == [cold for cold, _ in best]
            assert [rank for _, rank in got] == pytest.approx([rank for _, rank in best], abs=1e-9)
        used = data.draw(st.lists(st.booleans(), min_size=len(played), max_size=len(played)))
        after = data.draw(st.lists(OPINION, min_size=known, max_size=known))
        policy.learn(ended(view, played, x=used, opinions=after))
        if played:
            written.learn(played, used, after)
        else:
            written.hear(after)
        if data.draw(st.booleans()):
            state, policy = policy.state(), new()
            policy.restore(state)


@pytest.mark.parametrize("opinion", [NAN, 0.4])
@pytest.mark.parametrize("cold_start", [True, False])
def test_of_clients_that_are_equal_no_number_is_ahead(opinion: float, cold_start: bool) -> None:
    """The seed decides: numbers are the order of enrolment, or the paper's good clients first."""
    view = town(1, 20, opinions=[opinion] * 20)
    counts = np.zeros(20)
    for seed in range(400):
        new = BpUcbPolicy(clients_per_round=5, graph="declared", cold_start=cold_start)
        played = chosen(new, view, seed)
        assert played == chosen(new, view, seed)
        counts[played] += 1
    # 100 each, with a deviation of 8.7.
    assert counts.sum() == 2000
    assert np.abs(counts - 100).max() < 45


def test_a_state_of_the_cold_start_is_none_of_the_printed_policy() -> None:
    """Whoever was not yet pulled would never be credited."""
    cold = BpUcbPolicy(clients_per_round=1, graph="declared")
    cold.learn(ended(town(1, 3), [0], opinions=[0.9, 0.5, 0.4]))
    with pytest.raises(PolicyError, match="is of a policy with a cold start"):
        BpUcbPolicy(clients_per_round=1, graph="declared", cold_start=False).restore(cold.state())
    printed = BpUcbPolicy(clients_per_round=1, graph="declared", cold_start=False)
    printed.learn(ended(town(1, 3), [0], opinions=[0.9, 0.5, 0.4]))
    BpUcbPolicy(clients_per_round=1, graph="declared").restore(printed.state())
