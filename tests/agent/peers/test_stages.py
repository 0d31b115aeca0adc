"""Where the next index is as near the K best as beliefs can tell, they go on; elsewhere not."""

from dataclasses import replace

import numpy as np
import pytest

from bench.experiments.agreement import played
from fedagent_agent.peers.core.channel import PER_INCARNATION, SlotSettings
from fedagent_agent.peers.core.gossip import Gossip, hash_of
from fedagent_agent.peers.core.node import SlotPhase
from fedagent_protocol.peers import BeliefMessage, Envelope, GossipMessage
from tests.fakes.peer_network import (
    RUN,
    Faults,
    PeerNetwork,
    names,
    nodes_of,
)

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
