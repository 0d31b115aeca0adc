"""One node at a time gives the batch's beliefs, whatever the network does."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedagent_agent.peers.core.beliefs import Beliefs
from fedagent_agent.peers.core.channel import SlotSettings
from fedagent_coordinator.policies.base import FloatArray
from fedagent_coordinator.policies.sets.beliefs import Graph, propagate, wire
from fedagent_protocol.peers import BeliefMessage
from tests.fakes.peer_network import (
    EXACT,
    Faults,
    PeerNetwork,
    distances,
    near_graph,
    nodes_of,
)

PATIENT = replace(EXACT, silence_s=50.0)


def network_of(
    graph: Graph, bounds: SlotSettings = EXACT, seed: int = 1, faults: Faults | None = None
) -> PeerNetwork:
    return PeerNetwork(nodes_of(distances(graph), bounds), seed, faults or Faults())


def beliefs_of(network: PeerNetwork) -> FloatArray:
    return np.array([node.beliefs.belief for node in network.nodes.values()])


def batch(graph: Graph, opinion: FloatArray) -> FloatArray:
    return propagate(wire(graph, local=True), opinion, tolerance=1e-12, max_sweeps=2000).belief


@settings(max_examples=4, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    total=st.integers(1, 16),
    loss=st.sampled_from([0.0, 0.3]),
    twice=st.sampled_from([0.0, 0.3]),
)
@example(seed=29, total=3, loss=0.0, twice=0.3)  # a neighbour's answer was still under way
@example(seed=29, total=3, loss=0.3, twice=0.3)
def test_nodes_end_where_the_batch_does(seed: int, total: int, loss: float, twice: float) -> None:
    rng = np.random.default_rng(seed)
    graph = near_graph(rng, total)
    opinion = np.where(rng.random(total) < 0.1, np.nan, rng.random(total))
    opinion[rng.random(total) < 0.1] = rng.choice([0.0, 1.0])
    network = network_of(graph, PATIENT, seed, Faults(loss, twice, 0.0, 0.2))
    network.play(1, opinion, 200.0)
    assert beliefs_of(network) == pytest.approx(batch(graph, opinion), abs=1e-9)


@settings(max_examples=8, deadline=None)
@given(data=st.data(), total=st.integers(1, 12))
def test_on_trees_nodes_hold_the_exact_marginals(data: st.DataObject, total: int) -> None:
    edges = [(data.draw(st.integers(0, n - 1)), n) for n in range(1, total)]
    far = np.array([data.draw(st.floats(0.2, 2.0)) for _ in edges])
    opinion = np.array([data.draw(st.floats(0.01, 0.99)) for _ in range(total)])
    table = np.array(edges, dtype=np.int64).reshape(-1, 2)
    graph = Graph(total, table[:, 0], table[:, 1], far)
    network = network_of(graph)
    network.play(1, opinion)
    agree = 0.5 * (1 + wire(graph, local=True).coupling)
    order = np.argsort(table[:, 0], kind="stable")
    assert beliefs_of(network) == pytest.approx(marginals(table[order], agree, opinion), abs=1e-6)


def marginals(edges: np.ndarray, w: FloatArray, opinion: FloatArray) -> FloatArray:
    states = np.array(list(product([0, 1], repeat=len(opinion))), dtype=np.int64)
    square = opinion**2
    weight = np.where(states == 1, square, 1 - square).prod(axis=1)
    for (i, j), agree in zip(edges, w[: len(edges)], strict=True):
        weight = weight * np.where(states[:, i] == states[:, j], agree, 1 - agree)
    return np.asarray((states * weight[:, np.newaxis]).sum(axis=0) / weight.sum())


def test_within_the_tolerance_beliefs_are_as_near_as_promised() -> None:
    rng = np.random.default_rng(4)
    graph = near_graph(rng, 20, 4)
    opinion = rng.random(20)
    network = network_of(graph, SlotSettings(), seed=4)
    network.play(1, opinion)
    most = max(len(around) for around in distances(graph).values())
    assert np.abs(beliefs_of(network) - batch(graph, opinion)).max() <= 2.5 * 1e-3 * most
    assert all(node.beliefs.converged for node in network.living)


def test_messages_are_bounded_by_the_number_of_sweeps() -> None:
    rng = np.random.default_rng(9)
    bounds = SlotSettings(tolerance=1e-15, max_sweeps=7)
    network = network_of(near_graph(rng, 16, 4), bounds, seed=9)
    network.begin(1, rng.random(16))
    assert network.run(10.0, lambda: not any(node.is_early for node in network.living))
    assert max(a.sweeps for node in network.living for a in node.beliefs._around.values()) == 7
    assert network.now <= bounds.beliefs_s + 1e-9


def test_a_liar_moves_a_belief_no_further_than_an_extreme_opinion() -> None:
    honest, lied = Beliefs({"b": 1.0}, EXACT), Beliefs({"b": 1.0}, EXACT)
    for beliefs, ratio in ((honest, 2 * math.atanh(0.9 * 0.5)), (lied, 1e9)):
        beliefs.begin(0.6, 0.0)
        message = BeliefMessage(degree=1, ratio=ratio, typical=1.0, distance=1.0)
        beliefs.receive("b", message, 0.1)
    assert lied.belief == pytest.approx(honest.belief)
