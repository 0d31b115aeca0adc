"""A node gives the batch's beliefs and choice, within its bytes, whatever the network does."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedagent_agent.peers.core.beliefs import Beliefs
from fedagent_agent.peers.core.channel import SlotSettings, settings_for
from fedagent_agent.peers.core.node import SlotPhase
from fedagent_agent.peers.core.records import ArmStats
from fedagent_agent.peers.seal import sealed_bytes
from fedagent_coordinator.policies.base import FloatArray
from fedagent_coordinator.policies.sets.beliefs import Graph, propagate, wire
from fedagent_protocol.peers import (
    BeliefMessage,
    Envelope,
    decode_envelope,
    encode_envelope,
)
from fedagent_task.recipe.spec import PeersSpec
from tests.fakes.peer_network import (
    EXACT,
    Faults,
    PeerNetwork,
    distances,
    names,
    near_graph,
    nodes_of,
    pieces,
)

USUAL = SlotSettings()


def test_twenty_agents_need_less_than_a_second_and_20_kb_each() -> None:
    """And half a second and 10 kB more where the K best are in doubt."""
    rng = np.random.default_rng(0)
    network = PeerNetwork(nodes_of(distances(near_graph(rng, 20, 4))), 0)
    sent: Counter[str] = Counter()

    def watch(sender: str, envelope: Envelope) -> None:
        payload = encode_envelope(envelope)
        assert decode_envelope(payload) == envelope
        sent[sender] += sealed_bytes(len(payload))

    network.watch = watch
    for t in range(2, 4):
        sent.clear()
        begun = network.now
        volunteers = network.play(t, np.clip(rng.normal(0.7, 0.1, 20), 0, 1))
        staged = network.living[0].gossip.stage
        assert network.now - begun <= 1.0 + 0.5 * staged
        network.run(5.0)
        assert len(volunteers) == 5
        assert max(sent.values()) <= 20_000 + 10_000 * staged


def test_both_sides_of_a_partition_decide_and_one_set_is_left_after_it() -> None:
    rng = np.random.default_rng(5)
    around = distances(near_graph(rng, 20, 4))
    half = set(names(20)[:10])
    network = PeerNetwork(nodes_of(around), 5)
    network.faults.cut = lambda now, a, b: now < 8.0 and (a in half) != (b in half)
    apart = network.play(2, rng.random(20))
    assert network.now < 8.0
    inside = {a: {b: d for b, d in near.items() if (a in half) == (b in half)}
              for a, near in around.items()}  # fmt: skip
    parts = pieces(inside, around)
    assert len(parts) >= 2
    assert all(len(apart & part) == min(5, len(part)) for part in parts)
    assert len(apart) > 5, "the coordinator sees too many and has to stay inside its budget"
    network.run(8.0 - network.now)
    network.play(3, rng.random(20))
    assert len(network.play(4, rng.random(20))) == 5


def test_without_an_answer_there_is_an_end_to_everything() -> None:
    bounds = replace(USUAL, max_envelopes=20, life_s=5.0, silence_s=100.0)
    network = PeerNetwork(nodes_of({"a": {"b": 1.0}, "b": {"a": 1.0}}, bounds), dead={"b"})
    network.begin(1, np.array([0.5, 0.5]))
    node = network.nodes["a"]
    assert network.run(10.0, lambda: not node.is_early)
    assert network.now == pytest.approx(bounds.beliefs_s)
    network.run(120.0)
    assert node.phase is SlotPhase.DECIDED
    assert network.sent["a"] <= 20
    assert node.due == math.inf


def test_an_agent_without_an_opinion_stands_aside() -> None:
    around = {"a": {"b": 1.0}, "b": {"a": 1.0, "c": 1.0}, "c": {"b": 1.0}}
    network = PeerNetwork(nodes_of(around))
    assert network.play(2, np.array([0.4, np.nan, 0.6])) == {"a", "c"}
    assert [node.best for node in network.living] == [["c", "a"]] * 3, "it passes on"
    assert network.play(3, np.array([np.nan, 0.5, np.inf])) == {"a", "b", "c"}
    assert network.nodes["a"].arm.mean == 0.4
    assert network.nodes["c"].arm.mean == 0.6


@settings(max_examples=50, deadline=None)
@given(
    slots=st.lists(
        st.tuples(
            st.one_of(st.none(), st.floats(0, 1)), st.booleans(), st.booleans(), st.booleans()
        ),
        max_size=12,
    ),
    cold_start=st.booleans(),
)
def test_an_arm_is_what_section_9_says_of_one_client(
    slots: list[tuple[float | None, bool, bool, bool]], cold_start: bool
) -> None:
    """Opinions, whether it trained, whether it was chosen, and whether a slot came twice."""
    arm = ArmStats()
    first: float | None = None
    rewards: list[float] = []
    tries = 0
    for slot, (opinion, trained, chosen, again) in enumerate(slots, start=2):
        for _ in range(1 + again):
            arm = arm.after(slot, opinion, trained=trained, cold_start=cold_start)
            arm = arm.decided(slot, chosen=chosen)
        if opinion is not None:
            if trained or (first is None and not cold_start):
                rewards.append(opinion)
            first = opinion if first is None else first
        tries += chosen
        assert arm.mean == (pytest.approx(np.mean(rewards)) if rewards else first)
        assert (arm.pulls, arm.chosen) == (len(rewards), tries)
        assert arm.comes_first == (not rewards and tries < 2)


@settings(max_examples=4, deadline=None)
@given(total=st.integers(2, 8), keep=st.integers(1, 5), seed=st.integers(0, 99))
def test_sets_of_k_cover_all_agents_once_before_the_index_decides(
    total: int, keep: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    graph = distances(near_graph(rng, total, 4))
    network = PeerNetwork(nodes_of(graph, SlotSettings(keep=keep)), seed)
    cold = -(-total // keep)
    slots = [network.play(t, rng.random(total)) for t in range(2, 2 + cold)]
    assert [len(slot) for slot in slots] == [min(keep, total)] * cold
    assert set.union(*slots) == set(names(total))
    assert len(set.union(*slots[:-1], set())) == keep * (cold - 1), "nobody twice before the last"
    # Whoever trained in the last one knows it from the next call.
    network.play(2 + cold, rng.random(total))
    assert not any(node.arm.comes_first for node in network.nodes.values())


@given(best=st.integers(1, 1024), mu=st.floats(0, 1000), remaining=st.floats(-5, 1e5))
def test_a_slot_decides_before_its_call_ends(best: int, mu: float, remaining: float) -> None:
    bounds = settings_for(PeersSpec(best=best, mu=mu), remaining)
    time = max(0.5, remaining)
    assert bounds.beliefs_s + bounds.gossip_s <= 0.751 * time
    assert 2 * bounds.repeat_s < bounds.silence_s <= 0.2 * time, "it is asked twice"
    assert (bounds.keep, bounds.mu) == (best, mu)


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
