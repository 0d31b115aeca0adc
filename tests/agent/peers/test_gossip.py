"""The K best are agreed on, in spite of loss, deaths and ties."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.experiments.agreement import played
from fedagent_agent.peers.core.channel import PER_INCARNATION, SlotSettings
from fedagent_agent.peers.core.gossip import Gossip, Rank, hash_of
from fedagent_agent.peers.core.node import BpUcbNode, SlotPhase
from fedagent_protocol.peers import BeliefMessage, Envelope, GossipMessage
from tests.fakes.peer_network import (
    RUN,
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


USUAL = SlotSettings()


@pytest.mark.parametrize("loss", [0.2])
def test_two_indices_nearer_than_the_tolerance_are_told_apart(loss: float) -> None:
    sets = played(95, loss)
    assert (sets["margin_least"] or 1.0) < 4e-5
    assert sets["wrong_sets"] == 0
    assert sets["staged"] == 1, "only where they are near"


def ring(total: int) -> dict[str, dict[str, float]]:
    ids = names(total)
    return {a: {ids[n - 1]: 1.0, ids[(n + 1) % total]: 1.0} for n, a in enumerate(ids)}


@pytest.mark.parametrize("loss", [0.2])
@pytest.mark.parametrize(("opinion", "stages"), [(0.7, USUAL.stages), (1.0, 0)])
def test_a_tie_ends_and_all_choose_the_same(opinion: float, stages: int, loss: float) -> None:
    """Agents on a ring that think the same have equal indices, to rounding or to the last bit."""
    network = PeerNetwork(nodes_of(ring(8)), 3, Faults(loss=loss))
    starts = np.random.default_rng(3).uniform(0, 0.3, 8)
    for slot in (2, 3):
        network.begin_in_turn(slot, np.full(8, opinion), starts)
        chosen = network.decide(USUAL.beliefs_s)
        assert len(chosen) == USUAL.keep
        assert {tuple(node.best) for node in network.living} == {tuple(network.living[0].best)}
        assert max(node.gossip.stage for node in network.living) <= stages
        network.run(5.0)


def of_two(**bounds: float) -> Gossip:
    gossip = Gossip("a", ["b"], replace(USUAL, keep=1, **bounds))  # type: ignore[arg-type]
    gossip.begin(1, ceiling=2.0)
    gossip.rest(still=True)
    gossip.speak(0.5, 0.0)
    return gossip


BOTH = (hash_of(1, "a"), hash_of(1, "b"))


def test_a_runner_up_that_nobody_can_be_is_not_believed() -> None:
    gossip = of_two()
    gossip.receive("b", GossipMessage(best=((0.6, "b"),), spoken=BOTH, next=9.0))
    news = gossip.message("b", 7)
    assert news is not None
    assert news.next == 0.5, "its own, which is second"


def test_who_has_volunteered_stays_with_it_and_takes_part() -> None:
    node = nodes_of({"a": {"b": 1.0}}, replace(USUAL, keep=1))["a"]
    rng = np.random.default_rng(1)
    node.begin(1, 0.1, 0.0, trained=False)
    later = USUAL.beliefs_s + USUAL.gossip_s
    for now in (USUAL.beliefs_s, later):
        node.tick(now, rng)
    assert (node.phase, node.chosen) == (SlotPhase.DECIDED, True)
    belief = BeliefMessage(degree=1, ratio=0.1, typical=1.0, distance=1.0)
    gossip = GossipMessage(best=((2.9, "b"),), spoken=(hash_of(1, "b"),))
    news = Envelope(run=RUN, slot=1, seq=PER_INCARNATION + 1, belief=belief, gossip=gossip, stage=9)
    node.receive("b", news, later)
    assert node.gossip.stage == USUAL.stages, "no more than its own"
    node.tick(later + 1, rng)
    assert (node.best, node.chosen, node.arm.chosen) == (["b"], True, 1)
