"""Where the next index is as near the K best as beliefs can tell, they go on; elsewhere not."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.experiments.agreement import played
from fedagent_agent.peers.core.beliefs import Beliefs
from fedagent_agent.peers.core.channel import PER_INCARNATION, SlotSettings
from fedagent_agent.peers.core.gossip import Gossip, hash_of
from fedagent_agent.peers.core.node import SlotPhase
from fedagent_protocol.peers import BeliefMessage, Envelope, GossipMessage
from tests.fakes.peer_network import (
    RUN,
    Faults,
    PeerNetwork,
    diameter,
    distances,
    names,
    near_graph,
    nodes_of,
)

USUAL = SlotSettings()


@pytest.mark.parametrize("loss", [0.05, 0.2])
def test_two_indices_nearer_than_the_tolerance_are_told_apart(loss: float) -> None:
    sets = played(95, loss)
    assert (sets["margin_least"] or 1.0) < 4e-5
    assert sets["wrong_sets"] == 0
    assert sets["staged"] == 1, "only where they are near"


def ring(total: int) -> dict[str, dict[str, float]]:
    ids = names(total)
    return {a: {ids[n - 1]: 1.0, ids[(n + 1) % total]: 1.0} for n, a in enumerate(ids)}


@pytest.mark.parametrize("loss", [0.0, 0.2])
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


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), total=st.integers(2, 30), keep=st.integers(1, 8))
def test_all_that_know_everybody_s_index_are_in_doubt_or_nobody(
    seed: int, total: int, keep: int
) -> None:
    rng = np.random.default_rng(seed)
    around = distances(near_graph(rng, total))
    index = dict(zip(names(total), rng.integers(0, 30, total) / 10, strict=True))
    bounds = SlotSettings(keep=keep, close=1.0)
    nodes = {name: Gossip(name, near, bounds) for name, near in around.items()}
    for name, node in nodes.items():
        node.begin(1)
        node.speak(float(index[name]), 0.0)
    for exchange in range(1, diameter(around) + 3):
        sent = [(a, b, nodes[a].message(b, exchange)) for a in nodes for b in around[a]]
        for sender, receiver, message in sent:
            if message is not None:
                nodes[receiver].receive(sender, message)
                nodes[sender].confirm(receiver, exchange)
    order = sorted(index.values(), reverse=True)
    gap = order[keep - 1] - order[keep] if total > keep else np.inf
    for within in (0.05, 0.15, 0.55):
        expected = 0 < gap <= within
        assert {node.in_doubt(within * total) for node in nodes.values()} == {expected}


def of_two(**bounds: float) -> Gossip:
    gossip = Gossip("a", ["b"], replace(USUAL, keep=1, **bounds))  # type: ignore[arg-type]
    gossip.begin(1, ceiling=2.0)
    gossip.rest(still=True)
    gossip.speak(0.5, 0.0)
    return gossip


BOTH = (hash_of(1, "a"), hash_of(1, "b"))


@pytest.mark.parametrize("index", [None, 0.5])
def test_a_runner_up_of_nobody_is_no_doubt(index: float | None) -> None:
    gossip = Gossip("a", ["b"], replace(USUAL, keep=2, close=100.0))
    gossip.begin(1, ceiling=2.0)
    gossip.rest(still=True)
    gossip.speak(index, 0.0)
    gossip.receive("b", GossipMessage(spoken=BOTH, next=0.499))
    assert not gossip.in_doubt(0.01)


def test_before_everybody_has_spoken_there_is_no_doubt() -> None:
    gossip = of_two(close=100.0)
    early = GossipMessage(best=((0.5001, "b"),))
    gossip.receive("b", early)
    before = gossip.in_doubt(0.01)
    gossip.receive("b", GossipMessage(spoken=BOTH))
    assert (before, gossip.in_doubt(0.01)) == (False, True)


def test_a_runner_up_that_nobody_can_be_is_not_believed() -> None:
    gossip = of_two()
    gossip.receive("b", GossipMessage(best=((0.6, "b"),), spoken=BOTH, next=9.0))
    news = gossip.message("b", 7)
    assert news is not None
    assert news.next == 0.5, "its own, which is second"


def test_what_comes_of_the_stage_before_says_only_who_takes_part() -> None:
    gossip = of_two()
    gossip.go_on(1)
    gossip.speak(0.55, 1.0)
    late = GossipMessage(best=((0.9, "c"),), known=(7,), spoken=(*BOTH, 8))
    gossip.receive("b", late, 0)
    assert gossip.best == [(0.55, "a")]
    assert gossip.agents == 4
    assert gossip.done_at > 1.0


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


def test_whatever_went_along_counts_as_what_the_neighbour_may_hold() -> None:
    beliefs = Beliefs({"b": 1.0, "c": 1.0}, USUAL)
    beliefs.begin(0.6, 0.0)
    for peer in ("b", "c"):
        beliefs.receive(peer, BeliefMessage(degree=2, typical=1.0, distance=1.0), 0.1)
        beliefs.message(peer, 1)
    step = 0.9 * USUAL.tolerance / 0.45  # messages go on with at most half of it

    def goes_on(ratio: float) -> None:
        message = BeliefMessage(degree=2, ratio=ratio, typical=1.0, distance=1.0)
        beliefs.receive("c", message, 0.2)

    goes_on(step)
    assert not beliefs.unsent("b")
    beliefs.message("b", 2, refine=True)
    goes_on(-step / 4)
    assert beliefs.unsent("b"), "it may hold the one that went along"
