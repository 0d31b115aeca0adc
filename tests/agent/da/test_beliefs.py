"""One node at a time gives the batch's beliefs, whatever the post does."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_agent.core.beliefs import BeliefNode
from fedagent_agent.core.peer_channel import PER_INCARNATION
from fedagent_agent.core.peer_settings import BeliefSettings, Pace, PeerSettingError
from fedagent_coordinator.policies.base import FloatArray
from fedagent_coordinator.policies.beliefs import propagate, wire
from fedagent_coordinator.policies.literal_beliefs import propagate_literal
from fedagent_coordinator.policies.neighbours import Graph
from fedagent_protocol.peers import BeliefNote

from .town import Post, Town, distances, names, near_graph

EXACT = BeliefSettings(
    tolerance=1e-12, max_sweeps=10_000, max_s=100.0, pace=Pace(max_notes=60_000, life_s=1e3)
)
PATIENT = replace(EXACT, pace=replace(EXACT.pace, silence_s=50.0))
Nodes = dict[str, BeliefNode]


def nodes_of(graph: Graph, bounds: BeliefSettings = EXACT) -> Nodes:
    return {name: BeliefNode(around, bounds) for name, around in distances(graph).items()}


def begin(nodes: Nodes, opinion: FloatArray, slot: int = 1, now: float = 0.0) -> None:
    for node, r in zip(nodes.values(), opinion.tolist(), strict=True):
        node.begin(slot, None if math.isnan(r) else r, now)


def all_done(town: Town[BeliefNote], nodes: Nodes) -> bool:
    return all(nodes[name].done(town.now) for name in town.alive)


def town_of(nodes: Nodes, seed: int, post: Post | None = None) -> Town[BeliefNote]:
    return Town(dict(nodes), np.random.default_rng(seed), post or Post())


def settle(nodes: Nodes, town: Town[BeliefNote], limit_s: float = 200.0) -> FloatArray:
    assert town.run(lambda: all_done(town, nodes), limit_s)
    return np.array([node.belief for node in nodes.values()])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    total=st.integers(1, 16),
    loss=st.sampled_from([0.0, 0.3]),
    twice=st.sampled_from([0.0, 0.3]),
)
def test_nodes_end_where_the_batch_does(seed: int, total: int, loss: float, twice: float) -> None:
    rng = np.random.default_rng(seed)
    graph = near_graph(rng, total)
    opinion = np.where(rng.random(total) < 0.1, np.nan, rng.random(total))
    opinion[rng.random(total) < 0.1] = rng.choice([0.0, 1.0])
    nodes = nodes_of(graph, PATIENT)
    begin(nodes, opinion)
    belief = settle(nodes, town_of(nodes, seed, Post(loss, twice, 0.0, 0.2)))
    batch = propagate(wire(graph, local=True), opinion, tolerance=1e-12, max_sweeps=2000)
    assert belief == pytest.approx(batch.belief, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), total=st.integers(1, 12))
def test_on_trees_nodes_hold_the_exact_marginals(data: st.DataObject, total: int) -> None:
    edges = [(data.draw(st.integers(0, n - 1)), n) for n in range(1, total)]
    far = np.array([data.draw(st.floats(0.2, 2.0)) for _ in edges])
    opinion = np.array([data.draw(st.floats(0.01, 0.99)) for _ in range(total)])
    table = np.array(edges, dtype=np.int64).reshape(-1, 2)
    graph = Graph(total, table[:, 0], table[:, 1], far)
    nodes = nodes_of(graph)
    begin(nodes, opinion)
    belief = settle(nodes, town_of(nodes, 1))
    agree = 0.5 * (1 + wire(graph, local=True).coupling)
    order = np.argsort(table[:, 0], kind="stable")
    assert belief == pytest.approx(marginals(table[order], agree, opinion), abs=1e-6)


def marginals(edges: np.ndarray, w: FloatArray, opinion: FloatArray) -> FloatArray:
    states = np.array(list(product([0, 1], repeat=len(opinion))), dtype=np.int64)
    square = opinion**2
    weight = np.where(states == 1, square, 1 - square).prod(axis=1)
    for (i, j), agree in zip(edges, w[: len(edges)], strict=True):
        weight = weight * np.where(states[:, i] == states[:, j], agree, 1 - agree)
    return np.asarray((states * weight[:, np.newaxis]).sum(axis=0) / weight.sum())


def test_the_second_slot_forgets_the_first_and_knows_the_neighbours() -> None:
    rng = np.random.default_rng(3)
    graph = near_graph(rng, 12)
    nodes = nodes_of(graph)
    town = town_of(nodes, 3)
    for slot in (1, 2):
        opinion = rng.random(12)
        begin(nodes, opinion, slot, town.now)
        batch = propagate(wire(graph, local=True), opinion, tolerance=1e-12, max_sweeps=2000)
        assert settle(nodes, town) == pytest.approx(batch.belief, abs=1e-9)


def test_within_the_tolerance_beliefs_are_as_near_as_promised() -> None:
    rng = np.random.default_rng(4)
    graph = near_graph(rng, 20, 4)
    opinion = rng.random(20)
    nodes = nodes_of(graph, BeliefSettings())
    begin(nodes, opinion)
    belief = settle(nodes, town_of(nodes, 4))
    batch = propagate(wire(graph, local=True), opinion, tolerance=1e-12, max_sweeps=2000)
    most = max(len(around) for around in distances(graph).values())
    assert np.abs(belief - batch.belief).max() <= 2.5 * 1e-3 * most
    assert all(node.converged for node in nodes.values())


@pytest.mark.parametrize("seed", range(8))
def test_a_neighbour_that_is_dead_is_left_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = near_graph(rng, 14, 4)
    opinion = rng.random(14)
    nodes = nodes_of(graph)
    begin(nodes, opinion)
    dead = int(rng.integers(14))
    town = town_of(nodes, seed, Post(loss=0.2))
    town.dead = {names(14)[dead]}
    assert town.run(lambda: all_done(town, nodes), 60.0)
    keep = (graph.left != dead) & (graph.right != dead)
    wiring = wire(graph, local=True)
    order = np.argsort(graph.left, kind="stable")
    w = np.empty(len(order))
    w[order] = 0.5 * (1 + wiring.coupling[: len(order)])
    alone = Graph(14, graph.left[keep], graph.right[keep], graph.distance[keep])
    batch = propagate(wire(alone, w[keep]), opinion, tolerance=1e-12, max_sweeps=2000)
    for n, name in enumerate(names(14)):
        if n != dead:
            assert nodes[name].belief == pytest.approx(batch.belief[n], abs=1e-9)
            assert (names(14)[dead] in nodes[name].silent) == (
                names(14)[dead] in nodes[name].distances
            )


def test_a_dead_neighbour_costs_its_silence_once() -> None:
    nodes = {"a": BeliefNode({"b": 1.0}, BeliefSettings()), "b": BeliefNode({"a": 1.0})}
    town = town_of(nodes, 1)
    town.dead = {"b"}
    took = []
    for slot in (1, 2):
        start = town.now
        nodes["a"].begin(slot, 0.7, start)
        assert town.run(lambda: nodes["a"].done(town.now), 10.0)
        took.append(town.now - start)
    assert took[0] >= 2.0
    assert took[1] < 0.3


def test_a_partition_that_heals_in_the_slot_leaves_no_trace() -> None:
    rng = np.random.default_rng(6)
    graph = near_graph(rng, 12, 3)
    opinion = rng.random(12)
    nodes = nodes_of(graph)
    begin(nodes, opinion)
    half = set(names(12)[:6])
    town = town_of(nodes, 6)
    town.post.cut = lambda now, a, b: now < 4.0 and (a in half) != (b in half)
    town.run(lambda: town.now >= 4.0, 4.0)
    assert any(node.silent for node in nodes.values())
    town.run(lambda: town.now >= 10.0, 6.0)
    batch = propagate(wire(graph, local=True), opinion, tolerance=1e-12, max_sweeps=2000)
    belief = np.array([node.belief for node in nodes.values()])
    assert belief == pytest.approx(batch.belief, abs=1e-9)
    assert not any(node.silent for node in nodes.values())


def test_whoever_starts_anew_in_a_slot_hears_everything_again() -> None:
    rng = np.random.default_rng(8)
    graph = near_graph(rng, 8, 3)
    opinion = rng.random(8)
    nodes = nodes_of(graph)
    begin(nodes, opinion)
    town = town_of(nodes, 8)
    settle(nodes, town)
    name = names(8)[3]
    nodes[name] = BeliefNode(distances(graph)[name], EXACT, starts=2)
    town.nodes[name] = nodes[name]
    nodes[name].begin(1, opinion[3], town.now)
    batch = propagate(wire(graph, local=True), opinion, tolerance=1e-12, max_sweeps=2000)
    assert settle(nodes, town) == pytest.approx(batch.belief, abs=1e-9)


def test_without_an_answer_there_is_an_end_to_everything() -> None:
    bounds = BeliefSettings(pace=Pace(max_notes=20, life_s=5.0, silence_s=100.0))
    nodes: Nodes = {"a": BeliefNode({"b": 1.0}, bounds), "b": BeliefNode({"a": 1.0})}
    town = town_of(nodes, 1)
    town.dead = {"b"}
    nodes["a"].begin(1, 0.5, 0.0)
    assert town.run(lambda: nodes["a"].done(town.now), 10.0)
    assert town.now == pytest.approx(bounds.max_s)
    town.run(lambda: False, 60.0)
    assert town.sent["a"] <= 20
    assert not nodes["a"].wants(town.now)


def test_contents_are_bounded_by_the_number_of_sweeps() -> None:
    rng = np.random.default_rng(9)
    graph = near_graph(rng, 16, 4)
    bounds = BeliefSettings(tolerance=1e-15, max_sweeps=7)
    nodes = nodes_of(graph, bounds)
    begin(nodes, rng.random(16))
    town = town_of(nodes, 9)
    assert town.run(lambda: all_done(town, nodes), 10.0)
    assert max(node.sweeps for node in nodes.values()) == 7
    assert town.now <= bounds.max_s + 1e-9


def test_late_duplicate_and_overtaken_notes_change_nothing() -> None:
    node = BeliefNode({"b": 1.0, "c": 1.0})
    node.begin(5, 0.6, 0.0)
    base = PER_INCARNATION
    newest = BeliefNote(slot=5, seq=base + 3, degree=2, ratio=0.5, typical=1.0, distance=1.0)
    node.receive("b", newest, 0.1)
    belief = node.belief
    for slot, seq in ((5, base + 3), (5, base + 2), (4, base + 9), (5, 0)):
        said = BeliefNote(slot=slot, seq=seq, degree=2, ratio=-0.4, typical=1.0, distance=1.0)
        node.receive("b", said, 0.2)
        assert node.belief == belief
    node.receive("x", newest, 0.3)
    assert node.belief == belief
    assert node.counters == {"old": 2, "stale": 1, "stranger": 1}


def test_a_note_of_the_next_slot_waits_for_it() -> None:
    node = BeliefNode({"b": 1.0})
    node.begin(1, 0.6, 0.0)
    note = BeliefNote(
        slot=2, seq=PER_INCARNATION + 1, degree=1, ratio=0.7, typical=1.0, distance=1.0
    )
    node.receive("b", note, 0.1)
    assert node.belief == pytest.approx(0.36)
    node.begin(2, 0.6, 0.2)
    assert node.log_belief == pytest.approx(math.log(0.36 / 0.64) + 0.7)


def test_a_liar_moves_a_belief_no_further_than_an_extreme_opinion() -> None:
    honest, lied = BeliefNode({"b": 1.0}), BeliefNode({"b": 1.0})
    weight = 0.9 * 0.5
    for node, ratio in ((honest, 2 * math.atanh(weight)), (lied, 1e9)):
        node.begin(1, 0.6, 0.0)
        said = BeliefNote(
            slot=1, seq=PER_INCARNATION + 1, degree=1, ratio=ratio, typical=1.0, distance=1.0
        )
        node.receive("b", said, 0.1)
    assert lied.belief == pytest.approx(honest.belief)


def test_as_printed_nodes_end_like_the_batch_on_a_tree() -> None:
    table = np.array([(0, 1), (1, 2), (1, 3), (3, 4)])
    graph = Graph(5, table[:, 0], table[:, 1], np.array([0.3, 0.6, 0.2, 0.9]))
    opinion = np.array([0.9, 0.1, 0.5, 0.7, 0.3])
    nodes = nodes_of(graph, BeliefSettings(tolerance=1e-12, literal=True))
    begin(nodes, opinion)
    settle(nodes, town_of(nodes, 1))
    total = np.array([node.log_belief for node in nodes.values()])
    share = np.exp(total - total.max())
    assert share / share.sum() == pytest.approx(propagate_literal(graph, opinion).belief)


def test_as_printed_a_loop_ends_at_the_bound() -> None:
    graph = Graph(3, np.array([0, 0, 1]), np.array([1, 2, 2]), np.ones(3))
    nodes = nodes_of(graph, BeliefSettings(literal=True, max_sweeps=20))
    begin(nodes, np.array([0.9, 0.8, 0.7]))
    town = town_of(nodes, 1)
    assert town.run(lambda: all_done(town, nodes), 10.0)
    assert town.now >= BeliefSettings().max_s
    assert not all(node.converged for node in nodes.values())


@pytest.mark.parametrize(
    ("setting", "value"),
    [("tolerance", 0.0), ("max_s", math.inf), ("max_sweeps", 0), ("quiet_s", -1.0)],
)
def test_bounds_that_bound_nothing_are_refused(setting: str, value: float) -> None:
    with pytest.raises(PeerSettingError, match=setting):
        BeliefSettings(**{setting: value})  # type: ignore[arg-type]  # any of them
    with pytest.raises(PeerSettingError, match="silence_s is nan"):
        Pace(silence_s=math.nan)
