"""Grids find the neighbours that N^2 distances find."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.policies.base import FloatArray
from fedagent_coordinator.policies.sets.beliefs import Graph, declared, k_nearest, within_radius
from fedagent_protocol.errors import ParameterError

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
