"""The graphs of democratized analytics: connected, bounded, the same in both directions."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedagent_edge.core import neighbours
from fedagent_edge.core.neighbours import BLOCK, Graph, near, within
from fedagent_protocol.messages import MAX_NEIGHBOURS

_place = st.tuples(st.floats(-1e8, 1e8), st.floats(-1e8, 1e8))
_grid = st.tuples(st.integers(0, 3).map(float), st.integers(0, 3).map(float))


def _reach(graph: Graph) -> int:
    """Return how many agents can be reached from the first."""
    ahead = sorted(graph)[:1]
    seen = set(ahead)
    while ahead:
        fresh = [other for other in graph[ahead.pop()] if other not in seen]
        seen.update(fresh)
        ahead += fresh
    return len(seen)


def _check(graph: Graph, ids: set[str]) -> None:
    assert set(graph) == ids
    for one, peers in graph.items():
        assert one not in peers
        assert len(peers) <= MAX_NEIGHBOURS
        for other, far in peers.items():
            assert 0 <= far <= 1e9
            assert graph[other][one] == far


@settings(max_examples=200, deadline=None)
@given(places=st.lists(st.one_of(_place, _grid), max_size=60), k=st.integers(1, 6))
@example(places=[(0.0, 0.0)] * 20, k=1)
def test_near_is_connected_and_nobody_has_more_than_twice_k(
    places: list[tuple[float, float]], k: int
) -> None:
    graph = near({f"a{i}": place for i, place in enumerate(places)}, k)
    _check(graph, {f"a{i}" for i in range(len(places))})
    assert _reach(graph) == len(places)
    assert all(len(peers) <= 2 * k for peers in graph.values())


def test_near_is_the_nearest_where_they_are_in_one_piece() -> None:
    rng = np.random.default_rng(4)
    places = {f"a{i}": (float(x), float(y)) for i, (x, y) in enumerate(rng.random((30, 2)))}
    graph = near(places, 4)
    for one, at in places.items():
        nearest = sorted((math.dist(at, places[b]), b) for b in places if b != one)
        for far, other in nearest[:4]:
            full = len(graph[one]) == 8 or len(graph[other]) == 8
            assert full or graph[one][other] == pytest.approx(far)


def test_without_places_it_is_a_ring_in_the_order_of_ids() -> None:
    graph = near({f"a{i}": None for i in range(6)}, 4)
    assert graph["a0"] == {"a1": 1.0, "a2": 1.0, "a4": 1.0, "a5": 1.0}
    assert near({"a": None}, 4) == {"a": {}}
    assert near({}, 4) == {}


@settings(max_examples=100, deadline=None)
@given(places=st.lists(st.one_of(st.none(), _grid), max_size=40), radius=st.floats(0.1, 3))
def test_radius_has_all_within_and_no_other(
    places: list[tuple[float, float] | None], radius: float
) -> None:
    named = {f"a{i}": place for i, place in enumerate(places)}
    graph = within(named, radius)
    _check(graph, set(named))
    for one, at in named.items():
        for other, there in named.items():
            close = at is not None and there is not None and math.dist(at, there) <= radius
            assert (other in graph[one]) == (close and one != other)


def test_many_agents_are_one_piece_and_distances_of_all_pairs_are_not_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def counted(*given: np.ndarray) -> np.ndarray:
        far = distances(*given)
        computed.append(far.size)
        return far

    distances, computed = neighbours._distances, list[int]()
    monkeypatch.setattr(neighbours, "_distances", counted)
    rng = np.random.default_rng(1)
    count = 3 * BLOCK
    places = {f"a{i}": (float(x), float(y)) for i, (x, y) in enumerate(rng.random((count, 2)))}
    graph = near(places, 4)
    _check(graph, set(places))
    assert _reach(graph) == count
    assert max(map(len, graph.values())) <= 8
    assert max(computed) <= (BLOCK + 1) ** 2


def test_a_crowd_within_the_radius_is_cut_to_what_a_message_holds() -> None:
    graph = within({f"a{i:03}": (i / 1000, 0.0) for i in range(200)}, 1.0)
    _check(graph, set(graph))
    assert max(map(len, graph.values())) == MAX_NEIGHBOURS
