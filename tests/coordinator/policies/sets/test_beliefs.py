"""Messages give exact marginals on trees and stand still on loops."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_coordinator.policies.sets.beliefs import (
    Graph,
    Wiring,
    k_nearest,
    propagate,
    propagate_literal,
    wire,
)


def graph_of(edges: list[tuple[int, int]], nodes: int) -> Graph:
    table: IntArray = np.array(edges, dtype=np.int64).reshape(-1, 2)
    return Graph(nodes, table[:, 0], table[:, 1], np.ones(len(table)))


def marginals(edges: list[tuple[int, int]], w: FloatArray, opinion: FloatArray) -> FloatArray:
    """All 2^N states, one by one in numpy."""
    states = np.array(list(product([0, 1], repeat=len(opinion))), dtype=np.int64)
    square = opinion**2
    weight = np.where(states == 1, square, 1 - square).prod(axis=1)
    for (i, j), agree in zip(edges, w, strict=True):
        weight = weight * np.where(states[:, i] == states[:, j], agree, 1 - agree)
    return np.asarray((states * weight[:, np.newaxis]).sum(axis=0) / weight.sum())


def settled(wiring: Wiring, opinion: FloatArray) -> FloatArray:
    result = propagate(wiring, opinion, tolerance=1e-12, max_sweeps=2000)
    assert result.residual <= 1e-12
    return result.belief


@settings(max_examples=80)
@given(data=st.data(), nodes=st.integers(1, 12))
def test_on_trees_beliefs_are_the_exact_marginals(data: st.DataObject, nodes: int) -> None:
    edges = [(data.draw(st.integers(0, n - 1)), n) for n in range(1, nodes)]
    w = np.array([data.draw(st.floats(0.02, 0.98)) for _ in edges])
    opinion = np.array([data.draw(st.floats(0.01, 0.99)) for _ in range(nodes)])
    belief = settled(wire(graph_of(edges, nodes), w), opinion)
    assert belief == pytest.approx(marginals(edges, w, opinion), abs=1e-6)


def test_opinions_at_the_ends_and_missing_ones_stay_finite() -> None:
    wiring = wire(graph_of([(0, 1), (1, 2)], 3))
    belief = settled(wiring, np.array([1.0, np.nan, 0.0]))
    assert belief == pytest.approx([1.0, 0.5, 0.0])


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), nodes=st.integers(3, 60), k=st.integers(1, 8))
def test_on_loops_messages_converge_to_one_fixed_point(seed: int, nodes: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    wiring = wire(k_nearest("test", rng.random((nodes, 2)), k))
    assert wiring.contraction < 1
    opinion = rng.random(nodes)
    slow = propagate(wiring, opinion, tolerance=1e-12, max_sweeps=5000, damping=0.9)
    assert slow.residual <= 1e-12
    assert settled(wiring, opinion) == pytest.approx(slow.belief, abs=1e-9)


def test_coupling_falls_with_distance_and_with_the_highest_degree() -> None:
    star = Graph(5, np.zeros(4, dtype=np.int64), np.arange(1, 5), np.array([1.0, 2, 2, 4]))
    expected = 0.9 / 3 * 2.0 ** -(np.array([0.5, 1, 1, 2]) ** 3.7)
    assert wire(star).coupling == pytest.approx(np.tile(expected, 2))


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 80), k=st.integers(1, 12))
def test_weights_that_neighbours_agree_on_alone_contract_at_every_client(
    seed: int, nodes: int, k: int
) -> None:
    rng = np.random.default_rng(seed)
    graph = k_nearest("test", rng.random((nodes, 2)), k)
    wiring = wire(graph, local=True)
    assert wiring.contraction <= 0.9 + 1e-12
    degree = np.bincount(wiring.source, minlength=nodes)
    outward = wiring.coupling * (degree[wiring.source] - 1)
    assert outward.max(initial=0.0) <= 0.9 + 1e-12, "rows contract too: asynchrony may come"
    opinion = rng.random(nodes)
    undamped = propagate(wiring, opinion, tolerance=1e-12, max_sweeps=2000, damping=0.0)
    assert settled(wiring, opinion) == pytest.approx(undamped.belief, abs=1e-9)


def test_as_printed_a_tree_gives_every_client_the_same_belief() -> None:
    graph = graph_of([(0, 1), (1, 2), (1, 3), (3, 4)], 5)
    result = propagate_literal(graph, np.array([0.9, 0.1, 0.5, 0.7, 0.3]))
    assert result.residual <= 1e-9
    assert result.belief == pytest.approx(np.full(5, 0.2))


def test_as_printed_a_loop_never_settles() -> None:
    graph = graph_of([(0, 1), (1, 2), (0, 2), (2, 3), (1, 3)], 4)
    result = propagate_literal(graph, np.array([0.9, 0.2, 0.4, 0.8]), max_sweeps=200)
    assert result.residual > 1
    assert result.sweeps < 200, "it stops where numbers have lost their meaning"
    assert result.belief.sum() == pytest.approx(1)


def test_sweeps_are_bounded_and_the_residual_says_so() -> None:
    wiring = wire(graph_of([(0, 1), (1, 2), (0, 2)], 3))
    result = propagate(wiring, np.array([0.9, 0.2, 0.4]), max_sweeps=2)
    assert result.sweeps == 2
    assert result.residual > 1e-9
