"""Agents decide alone who trains: the batch's choice, within its bytes, and nothing leaks."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_agent.cipher import PeerSeal, sealed_bytes
from fedagent_agent.core.bp_ucb_node import (
    ArmStats,
    BpUcbNode,
    DemocracySettings,
    SendEnvelope,
    SlotPhase,
    StandAside,
    Volunteer,
)
from fedagent_agent.core.peer_settings import (
    BeliefSettings,
    GossipSettings,
    Pace,
    PeerSettingError,
)
from fedagent_coordinator.policies.base import FloatArray
from fedagent_coordinator.policies.beliefs import propagate, wire
from fedagent_node.identity import load_or_create
from fedagent_protocol.peers import Envelope, decode_envelope, encode_envelope

from .town import Post, Town, distances, names, near_graph, pieces

LONG = Pace(max_notes=60_000, life_s=500.0, silence_s=50.0)
EXACT = DemocracySettings(
    beliefs=BeliefSettings(tolerance=1e-12, max_sweeps=1000, max_s=60.0, pace=LONG),
    gossip=GossipSettings(keep=5, max_s=60.0, pace=LONG),
)


@dataclass
class Citizen:
    """A democrat as the town wants it; what it decided, and the bytes it sent."""

    agent: BpUcbNode
    decided: list[Volunteer | StandAside] = field(default_factory=list)
    bytes: int = 0

    def receive(self, peer: str, note: Envelope, now: float) -> None:
        self.agent.receive(peer, note, now)

    def tick(self, now: float, rng: np.random.Generator) -> list[tuple[str, Envelope]]:
        envelopes = []
        for effect in self.agent.tick(now, rng):
            if isinstance(effect, SendEnvelope):
                payload = encode_envelope(effect.envelope)
                assert decode_envelope(payload) == effect.envelope
                self.bytes += sealed_bytes(len(payload))
                envelopes.append((effect.peer, effect.envelope))
            else:
                self.decided.append(effect)
        return envelopes

    @property
    def due(self) -> float:
        return self.agent.due

    @property
    def volunteers(self) -> bool:
        return isinstance(self.decided[-1], Volunteer)


Citizens = dict[str, Citizen]


def citizens_of(
    around: dict[str, dict[str, float]], task: DemocracySettings, run: str = "ab" * 16
) -> Citizens:
    return {name: Citizen(BpUcbNode(name, near, task, run)) for name, near in around.items()}


def play(
    town: Town[Envelope], citizens: Citizens, slot: int, opinion: FloatArray, limit_s: float = 20.0
) -> set[str]:
    """One slot; return the volunteers among the living."""
    for (name, citizen), r in zip(citizens.items(), opinion.tolist(), strict=True):
        trained = bool(citizen.decided) and citizen.volunteers
        if name not in town.dead:
            said = None if math.isnan(r) else r
            citizen.agent.begin(slot, said, town.now, trained=trained)
    alive = [citizens[name] for name in town.alive]
    assert town.run(lambda: all(c.agent.phase is SlotPhase.DECIDED for c in alive), limit_s)
    assert all(c.decided[-1].slot == slot for c in alive)
    return {name for name in town.alive if citizens[name].volunteers}


def town_of(citizens: Citizens, seed: int, post: Post | None = None) -> Town[Envelope]:
    return Town(dict(citizens), np.random.default_rng(seed), post or Post())


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), total=st.integers(2, 14), loss=st.sampled_from([0.0, 0.2]))
def test_slot_after_slot_the_k_best_of_the_batch_volunteer(
    seed: int, total: int, loss: float
) -> None:
    rng = np.random.default_rng(seed)
    graph = near_graph(rng, total)
    citizens = citizens_of(distances(graph), EXACT)
    town = town_of(citizens, seed, Post(loss=loss))
    wiring = wire(graph, local=True)
    mean, pulls, trained = np.zeros(total), np.zeros(total), np.zeros(total, dtype=bool)
    for t in range(2, 6):
        opinion = rng.random(total)
        if t == 2:
            mean, pulls = opinion.copy(), np.ones(total)
        mean = np.where(trained, (mean * pulls + opinion) / (pulls + 1), mean)
        pulls = pulls + trained
        belief = propagate(wiring, opinion, tolerance=1e-12, max_sweeps=2000).belief
        index = mean + belief / total + 0.01 * np.sqrt(math.log(t) / pulls)
        best = np.argsort(-index, kind="stable")[:5]
        volunteers = play(town, citizens, t, opinion, 200.0)
        assert volunteers == {names(total)[n] for n in best}
        trained = np.isin(np.arange(total), best)


@pytest.mark.parametrize("seed", range(2))
def test_twenty_agents_need_less_than_a_second_and_20_kb_each(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = near_graph(rng, 20, 4)
    citizens = citizens_of(distances(graph), DemocracySettings())
    town = town_of(citizens, seed)
    for t in range(2, 6):
        for citizen in citizens.values():
            citizen.bytes = 0
        begun = town.now
        volunteers = play(town, citizens, t, np.clip(rng.normal(0.7, 0.1, 20), 0, 1))
        assert town.now - begun <= 1.0
        town.run(lambda: False, 5.0)
        assert len(volunteers) == 5
        assert max(citizen.bytes for citizen in citizens.values()) <= 20_000


@pytest.mark.parametrize("seed", range(3))
def test_at_thirty_percent_loss_and_with_the_dead_there_are_k_volunteers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    around = distances(near_graph(rng, 20, 5))
    citizens = citizens_of(around, DemocracySettings())
    town = town_of(citizens, seed, Post(0.3, 0.1, 0.0, 0.05))
    town.dead = set(rng.choice(names(20), 2, replace=False).tolist())
    play(town, citizens, 2, rng.random(20))
    for t in (3, 4):
        assert len(play(town, citizens, t, rng.random(20))) == 5


def test_both_sides_of_a_partition_decide_and_one_set_is_left_after_it() -> None:
    rng = np.random.default_rng(5)
    around = distances(near_graph(rng, 20, 4))
    citizens = citizens_of(around, DemocracySettings())
    half = set(names(20)[:10])
    town = town_of(citizens, 5)
    town.post.cut = lambda now, a, b: now < 8.0 and (a in half) != (b in half)
    apart = play(town, citizens, 2, rng.random(20))
    assert town.now < 8.0
    sides = [{a: around[a] for a in side} for side in (half, set(names(20)) - half)]
    parts = [piece for side in sides for piece in pieces(trimmed(side), side)]
    assert len(parts) >= 2
    assert all(len(apart & part) == min(5, len(part)) for part in parts)
    assert len(apart) > 5, "the coordinator sees too many and has to stay inside its budget"
    town.run(lambda: False, 8.0 - town.now)
    play(town, citizens, 3, rng.random(20))
    assert len(play(town, citizens, 4, rng.random(20))) == 5


def trimmed(side: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {a: {b: d for b, d in near.items() if b in side} for a, near in side.items()}


def test_nothing_but_the_word_leaves_outside_envelopes(tmp_path: Path) -> None:
    """Canary values in every encoding are looked for in all that a relay and an edge see."""
    identities = {}
    for n in range(6):
        identity = load_or_create(tmp_path / str(n))
        identities[identity.id] = identity
    ids = sorted(identities)
    around = {me: {other: 1.0 for other in ids if other != me} for me in ids}
    seals = {me: PeerSeal(identities[me], 1, frozenset(around[me])) for me in ids}
    for one in ids:
        for two in around[one]:
            seals[one].meet(seals[two].card)
    task = DemocracySettings(gossip=GossipSettings(keep=2))
    agents = {me: BpUcbNode(me, around[me], task) for me in ids}
    canaries = {me: 0.5123456 + 0.0123457 * n for n, me in enumerate(ids)}
    rng, seen, words, now = np.random.default_rng(1), bytearray(), [], 0.0
    opened = bytearray()
    for me, agent in agents.items():
        agent.begin(2, canaries[me], 0.0, trained=False)
    while any(agent.phase is not SlotPhase.DECIDED for agent in agents.values()):
        now += 0.01
        for me, agent in agents.items():
            for effect in agent.tick(now, rng):
                if isinstance(effect, SendEnvelope):
                    packet = seals[me].seal(effect.peer, encode_envelope(effect.envelope))
                    seen += packet
                    envelope = seals[effect.peer].open(me, packet)
                    opened += envelope
                    agents[effect.peer].receive(me, decode_envelope(envelope), now)
                else:
                    words.append(effect)
    assert sum(isinstance(word, Volunteer) for word in words) == 2
    assert all(set(type(word).__dataclass_fields__) == {"slot"} for word in words), (
        "a word says which slot and nothing else"
    )
    secrets = [
        value
        for agent in agents.values()
        for value in (agent.index, agent.notices["belief"], agent.standing.mean)
        if value is not None
    ]
    assert any(found(value, opened) for value in secrets), "the search finds what is there"
    assert not any(found(value, seen) for value in secrets)


def found(value: float, haystack: bytes | bytearray) -> bool:
    """Look for a number as binary float of either size and order, and as text."""
    forms = [np.array(value, dtype=kind).tobytes() for kind in ("<f8", ">f8", "<f4", ">f4")]
    forms += [f"{value:.{digits}f}".encode() for digits in (5, 6, 9)]
    return any(form in haystack for form in forms)


def test_an_agent_without_an_opinion_stands_aside() -> None:
    around = {"a": {"b": 1.0}, "b": {"a": 1.0, "c": 1.0}, "c": {"b": 1.0}}
    citizens = citizens_of(around, DemocracySettings())
    town = town_of(citizens, 1)
    assert play(town, citizens, 2, np.array([0.4, np.nan, 0.6])) == {"a", "c"}
    assert play(town, citizens, 3, np.array([np.nan, 0.5, np.inf])) == {"a", "b", "c"}
    assert citizens["a"].agent.standing.mean == 0.4
    assert citizens["c"].agent.standing.mean == 0.6


def test_an_agent_alone_volunteers() -> None:
    citizens = citizens_of({"a": {}}, DemocracySettings())
    assert play(town_of(citizens, 1), citizens, 2, np.array([0.1])) == {"a"}


def test_a_slot_that_runs_does_not_begin_again() -> None:
    agent = BpUcbNode("a", {"b": 1.0})
    agent.begin(3, 0.5, 0.0, trained=False)
    agent.begin(3, 0.9, 0.1, trained=True)
    agent.begin(2, 0.9, 0.1, trained=True)
    assert agent.standing == ArmStats(0.5, 1, 3)
    assert agent.counters == {"begun": 2}


def test_envelopes_of_another_run_are_not_read() -> None:
    agent = BpUcbNode("a", {"b": 1.0}, run="ab" * 16)
    other = BpUcbNode("b", {"a": 1.0}, run="cd" * 16)
    for node in (agent, other):
        node.begin(2, 0.9, 0.0, trained=False)
    tell = other.tick(0.0, np.random.default_rng(1))[0]
    assert isinstance(tell, SendEnvelope)
    agent.receive("b", tell.envelope, 0.1)
    assert agent.counters == {"run": 1}
    assert agent.notices["belief"] == pytest.approx(0.81)


def test_before_the_first_slot_nothing_is_said() -> None:
    agent = BpUcbNode("a", {"b": 1.0})
    assert agent.tick(5.0, np.random.default_rng(1)) == []
    assert agent.due == math.inf
    assert agent.index is None


def test_only_opinions_of_slots_with_training_count() -> None:
    standing = ArmStats()
    said = ((3, 0.5, True), (4, 0.9, False), (5, 0.8, True), (5, 0.1, True), (6, 0.2, True))
    assert standing.after(2, None, trained=False) == standing
    for slot, opinion, trained in said:
        standing = standing.after(slot, opinion, trained=trained)
    assert standing.mean == pytest.approx(0.5)
    assert (standing.pulls, standing.slot) == (3, 6)


def test_a_weight_that_cannot_be_compared_is_refused() -> None:
    with pytest.raises(PeerSettingError, match="mu is nan"):
        DemocracySettings(mu=math.nan)
