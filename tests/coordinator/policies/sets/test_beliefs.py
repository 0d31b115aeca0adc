"""Grids find all neighbours; messages give exact marginals on trees and stand still on loops."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_coordinator.policies.sets.beliefs import (
    Graph,
    Wiring,
    declared,
    k_nearest,
    propagate,
    propagate_literal,
    wire,
    within_radius,
)
from fedagent_protocol.errors import ParameterError


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


places = st.lists(
    st.tuples(st.integers(-40, 40), st.integers(-40, 40)), min_size=0, max_size=40
).map(lambda rows: np.array(rows, dtype=np.float64).reshape(-1, 2) / 8)


def distances(points: FloatArray) -> FloatArray:
    offset = points[:, np.newaxis] - points[np.newaxis]
    return np.hypot(offset[..., 0], offset[..., 1])


def edges_of(graph: Graph) -> set[tuple[int, int]]:
    edges = list(zip(graph.left.tolist(), graph.right.tolist(), strict=True))
    assert len(set(edges)) == len(edges)
    assert all(a < b for a, b in edges)
    return set(edges)


@given(points=places, radius=st.sampled_from([0.1, 0.5, 1.3, 20.0]))
def test_within_radius(points: FloatArray, radius: float) -> None:
    near = distances(points) <= radius
    n = len(points)
    expected = {(a, b) for a in range(n) for b in range(a + 1, n) if near[a, b]}
    graph = within_radius("test", points, radius)
    assert edges_of(graph) == expected
    assert graph.distance == pytest.approx(distances(points)[graph.left, graph.right])


@given(points=places, k=st.integers(1, 6))
def test_k_nearest(points: FloatArray, k: int) -> None:
    far = distances(points)
    expected = set()
    for a in range(len(points)):
        others = sorted((far[a, b], b) for b in range(len(points)) if b != a)
        expected |= {(min(a, b), max(a, b)) for _, b in others[:k]}
    assert edges_of(k_nearest("test", points, k)) == expected


def test_who_is_nowhere_has_no_neighbours() -> None:
    points = np.array([[0, 0], [np.nan, 0], [0, 1], [0, np.nan], [0, 2.0]])
    assert edges_of(k_nearest("test", points, 1)) == {(0, 2), (2, 4)}
    assert edges_of(within_radius("test", points, 5.0)) == {(0, 2), (0, 4), (2, 4)}
    assert edges_of(k_nearest("test", points[:1], 3)) == set()


def test_declared_edges_count_once_and_wait_for_their_clients() -> None:
    graph = declared("test", [(2, 0, 0.5), (0, 2), (1, 2)], 3)
    assert edges_of(graph) == {(0, 2), (1, 2)}
    assert graph.distance.tolist() == [0.5, 1.0]
    assert edges_of(declared("test", [(2, 0), (0, 1)], 2)) == {(0, 1)}
    assert edges_of(declared("test", [], 2)) == set()


@pytest.mark.parametrize("edge", [(1, 1), (0, -1), (0, 1.5), (0,), (0, 1, -2.0), (0, 1, np.nan)])
def test_a_declared_edge_that_is_none_is_refused(edge: tuple[float, ...]) -> None:
    with pytest.raises(ParameterError):
        declared("test", [edge], 5)


def test_a_crowd_at_one_place_is_a_typed_error_not_a_full_memory() -> None:
    with pytest.raises(ParameterError):
        k_nearest("test", np.zeros((20_000, 2)), 3)
