"""The K best are agreed on: quickly without loss, and in spite of loss, cuts and deaths."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_agent.peers.core.channel import SlotSettings
from fedagent_agent.peers.core.gossip import Gossip, Rank, hash_of
from fedagent_agent.peers.core.node import BpUcbNode, SlotPhase
from fedagent_protocol.peers import GossipMessage
from tests.fakes.peer_network import (
    Distances,
    Faults,
    PeerNetwork,
    distances,
    names,
    near_graph,
    nodes_of,
)

PATIENT = SlotSettings(gossip_s=20.0, life_s=60.0, max_envelopes=10_000)
SURE = replace(PATIENT, beliefs_s=50.0, gossip_s=50.0, silence_s=50.0)
INDEX: dict[str, float | None] = {}


class GivenIndex(BpUcbNode):
    """A node whose index is given by the test."""

    @property
    def index(self) -> float | None:
        return INDEX[self.me]


def network_of(
    around: Distances,
    index: dict[str, float],
    bounds: SlotSettings = PATIENT,
    seed: int = 1,
    faults: Faults | None = None,
) -> PeerNetwork:
    INDEX.clear()
    INDEX.update(index)
    return PeerNetwork(nodes_of(around, bounds, of=GivenIndex), seed, faults or Faults())


def begin(network: PeerNetwork, slot: int = 1) -> None:
    network.begin(slot, np.full(len(network.nodes), 0.5))


def indices(rng: np.random.Generator, total: int) -> dict[str, float]:
    """Few values, so that many tie."""
    return dict(zip(names(total), np.round(rng.random(total), 1).tolist(), strict=True))


def best_of(index: dict[str, float], among: set[str], keep: int = 5) -> list[Rank]:
    return sorted((Rank(index[a], a) for a in among), key=lambda e: (-e.psi, e.agent))[:keep]


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6), total=st.integers(1, 25), loss=st.sampled_from([0.0, 0.3]))
def test_everybody_done_means_everybody_agrees(seed: int, total: int, loss: float) -> None:
    rng = np.random.default_rng(seed)
    around, index = distances(near_graph(rng, total)), indices(rng, total)
    network = network_of(around, index, SURE, seed, Faults(loss, loss, 0.0, 0.2))
    ended: dict[str, list[Rank]] = {}

    def watch() -> bool:
        for name, node in network.nodes.items():
            if name not in ended and node.phase is SlotPhase.DECIDED:
                ended[name] = node.gossip.best
        return len(ended) == total

    begin(network)
    assert network.run(60.0, watch)
    expected = best_of(index, set(index))
    assert all(best == expected for best in ended.values()), "at the moment when each was done"
    assert {node.gossip.agents for node in network.living} == {total}


def test_a_dead_neighbour_is_waited_for_in_one_slot_only() -> None:
    around = {"a": {"b": 1.0, "c": 1.0}, "b": {"a": 1.0}, "c": {"a": 1.0}}
    network = network_of(around, {"a": 0.5, "b": 0.5, "c": 0.9}, SlotSettings(keep=1))
    network.dead = {"c"}
    took, known = [], []
    for slot in (1, 2):
        begun = network.now
        begin(network, slot)
        network.decide()
        took.append(network.now - begun)
        known.append(network.nodes["b"].gossip.agents)
    assert took[0] >= 2.0 + 3.0, "its silence, and then its index"
    assert took[1] < 0.6
    assert known == [3, 2]
    network.dead = set()
    begin(network, 3)
    network.decide()
    assert network.nodes["b"].best == ["c"], "it takes part again as soon as it answers"


def started(me: str, *, ceiling: float = math.inf) -> Gossip:
    gossip = Gossip(me, ["b"], SlotSettings(keep=2))
    gossip.begin(1, ceiling=ceiling)
    return gossip


def test_an_index_that_nobody_can_have_is_not_believed() -> None:
    gossip = started("a", ceiling=2.5)
    gossip.receive("b", GossipMessage(best=((1e9, "b"), (2.0, "c"))))
    assert gossip.best == [(2.0, "c")]


@pytest.mark.parametrize("own", [None, 0.4])
def test_nobody_else_says_that_an_agent_stands_for_election(own: float | None) -> None:
    gossip = started("a")
    gossip.speak(own, 0.0)
    lie = GossipMessage(best=((1.9, "a"), (0.5, "b")))
    echo = GossipMessage(best=((0.5, "b"), *(((own, "a"),) if own else ())))
    for message in (lie, echo):
        gossip.receive("b", message)
    assert gossip.best == [(0.5, "b")] + [(index, "a") for index in (own,) if index is not None]


@pytest.mark.parametrize("total", [10, 60, 1000])
def test_many_agents_are_counted_from_a_sample(total: int) -> None:
    gossip = started("a")
    hashes = sorted(hash_of(total, name) for name in names(total))[:64]
    gossip.receive("b", GossipMessage(known=tuple(hashes)))
    error = 3 / math.sqrt(62) * total if total > 62 else 2
    assert abs(gossip.agents - total) <= error


def test_a_neighbour_without_end_costs_no_memory() -> None:
    gossip = started("a")
    for n in range(2000):
        gossip.receive("b", GossipMessage(best=((n / 1000, f"x{n}"),), spoken=(n,)))
    assert len(gossip._around["b"].has) <= 2 + 64
