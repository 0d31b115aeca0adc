"""The K best are agreed on: quickly without loss, and in spite of loss, cuts and deaths."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_agent.core.gossip import Entry, Gossip, hash_of
from fedagent_agent.core.peer_channel import PER_INCARNATION
from fedagent_agent.core.peer_settings import GossipSettings, Pace, PeerSettingError
from fedagent_protocol.peers import GossipNote

from .town import Post, Town, diameter, distances, names, near_graph, pieces

Nodes = dict[str, Gossip]
SURE = GossipSettings(keep=5, max_s=50.0, pace=Pace(silence_s=50.0, life_s=60.0, max_notes=10_000))
PATIENT = GossipSettings(keep=5, max_s=20.0, pace=Pace(life_s=60.0, max_notes=10_000))


def nodes_of(around: dict[str, dict[str, float]], bounds: GossipSettings = PATIENT) -> Nodes:
    return {name: Gossip(name, frozenset(near), bounds) for name, near in around.items()}


def indices(rng: np.random.Generator, total: int) -> dict[str, float]:
    """Few values, so that many tie."""
    return dict(zip(names(total), np.round(rng.random(total), 1).tolist(), strict=True))


def best_of(index: dict[str, float], among: set[str], keep: int) -> list[Entry]:
    return sorted(((index[a], a) for a in among), key=lambda e: (-e[0], e[1]))[:keep]


def start(nodes: Nodes, index: dict[str, float], slot: int = 1, now: float = 0.0) -> None:
    for name, node in nodes.items():
        node.begin(slot, now)
        node.speak(index[name], now)


def town_of(nodes: Nodes, seed: int, post: Post | None = None) -> Town[GossipNote]:
    return Town(dict(nodes), np.random.default_rng(seed), post or Post())


def all_done(town: Town[GossipNote], nodes: Nodes) -> bool:
    return all(nodes[name].done(town.now) for name in town.alive)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), total=st.integers(2, 40), keep=st.integers(1, 8))
def test_without_loss_diameter_plus_two_exchanges_are_enough(
    seed: int, total: int, keep: int
) -> None:
    rng = np.random.default_rng(seed)
    around = distances(near_graph(rng, total))
    bounds = GossipSettings(keep=keep, pace=Pace(gap_s=0.0))
    nodes, index = nodes_of(around, bounds), indices(rng, total)
    start(nodes, index)
    expected = best_of(index, set(index), keep)
    for exchange in range(1, diameter(around) + 3):
        now = exchange * 0.01
        sent = [(a, b, note) for a, node in nodes.items() for b, note in node.tick(now, rng)]
        for sender, receiver, note in sent:
            nodes[receiver].receive(sender, note, now)
    assert all(node.best == expected for node in nodes.values())


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), total=st.integers(1, 40), loss=st.sampled_from([0.0, 0.3]))
def test_everybody_done_means_everybody_agrees(seed: int, total: int, loss: float) -> None:
    rng = np.random.default_rng(seed)
    nodes, index = nodes_of(distances(near_graph(rng, total)), SURE), indices(rng, total)
    town = town_of(nodes, seed, Post(loss, loss, 0.0, 0.2))
    ended: dict[str, list[Entry]] = {}

    def watch() -> bool:
        for name in nodes.keys() - ended.keys():
            if nodes[name].done(town.now) and nodes[name].agreed:
                ended[name] = nodes[name].best
        return len(ended) == total

    for name, node in nodes.items():
        node.begin(1, 0.0)
        node.speak(index[name], 0.0)
    assert town.run(watch, 60.0)
    expected = best_of(index, set(index), 5)
    assert all(best == expected for best in ended.values()), "at the moment when each was done"
    assert {node.agents for node in nodes.values()} == {total}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_nobody_is_done_before_a_late_one_has_spoken(seed: int) -> None:
    rng = np.random.default_rng(seed)
    total = 15
    nodes, index = nodes_of(distances(near_graph(rng, total))), indices(rng, total)
    start(nodes, index)
    late = names(total)[int(rng.integers(total))]
    nodes[late].begin(1, 0.0)
    town = town_of(nodes, seed)
    town.run(lambda: False, 1.0)
    assert not any(node.done(town.now) for node in nodes.values())
    nodes[late].speak(index[late], town.now)
    assert town.run(lambda: all_done(town, nodes), 2.0)
    assert {tuple(node.best) for node in nodes.values()} == {tuple(best_of(index, set(index), 5))}


@pytest.mark.parametrize("seed", range(5))
def test_ten_percent_dead_and_thirty_percent_lost(seed: int) -> None:
    rng = np.random.default_rng(seed)
    total = 30
    around = distances(near_graph(rng, total, 4))
    nodes, index = nodes_of(around), indices(rng, total)
    town = town_of(nodes, seed, Post(0.3, 0.1, 0.0, 0.1))
    town.dead = set(rng.choice(names(total), 3, replace=False).tolist())
    start(nodes, index)
    assert town.run(lambda: all_done(town, nodes), 25.0)
    for piece in pieces(around, town.alive):
        expected = best_of(index, piece, 5)
        assert all(nodes[name].best == expected for name in piece)


@pytest.mark.parametrize("seed", range(5))
def test_who_dies_on_the_way_leaves_the_others_agreed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    total = 30
    around = distances(near_graph(rng, total, 4))
    nodes, index = nodes_of(around), indices(rng, total)
    town = town_of(nodes, seed, Post(0.3, 0.1, 0.0, 0.1))
    start(nodes, index)
    town.run(lambda: False, 0.08)
    town.dead = set(rng.choice(names(total), 3, replace=False).tolist())
    assert town.run(lambda: all_done(town, nodes), 25.0)
    for piece in pieces(around, town.alive):
        assert len({tuple(nodes[name].best) for name in piece}) == 1


@pytest.mark.parametrize("seed", range(5))
def test_after_a_healed_partition_all_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    total = 24
    nodes, index = nodes_of(distances(near_graph(rng, total))), indices(rng, total)
    half = set(names(total)[: int(rng.integers(6, 18))])
    cut_until = 5.0
    town = town_of(nodes, seed, Post(loss=0.1))
    town.post.cut = lambda now, a, b: now < cut_until and (a in half) != (b in half)
    start(nodes, index)
    town.run(lambda: False, cut_until)
    apart = {tuple(node.best) for node in nodes.values()}
    assert len(apart) > 1
    expected = best_of(index, set(index), 5)
    assert town.run(lambda: all(n.best == expected for n in nodes.values()), 5.0)
    assert town.run(lambda: all(n.agreed for n in nodes.values()), 5.0)
    assert town.run(lambda: not any(n.silent for n in nodes.values()), 5.0), "all are taken back"


def test_a_slot_begins_with_nothing_of_the_last_one() -> None:
    rng = np.random.default_rng(1)
    nodes = nodes_of(distances(near_graph(rng, 10)))
    town = town_of(nodes, 1)
    for slot in (1, 2, 3):
        index = indices(rng, 10)
        start(nodes, index, slot, town.now)
        assert town.run(lambda: all_done(town, nodes), 5.0)
        assert all(n.best == best_of(index, set(index), 5) for n in nodes.values())
    old = GossipNote(slot=2, seq=PER_INCARNATION + 9, best=((9.0, "x"),))
    nodes[names(10)[0]].receive(next(iter(nodes[names(10)[0]].neighbours)), old, town.now)
    assert all(entry[1] != "x" for entry in nodes[names(10)[0]].best)


def test_a_dead_neighbour_is_waited_for_in_one_slot_only() -> None:
    around = {"a": {"b": 1.0, "c": 1.0}, "b": {"a": 1.0}, "c": {"a": 1.0}}
    nodes = nodes_of(around, GossipSettings(keep=1))
    town = town_of(nodes, 1)
    town.dead = {"c"}
    took, heard = [], []
    for slot in (1, 2):
        begun = town.now
        for name in ("a", "b"):
            nodes[name].begin(slot, begun)
            nodes[name].speak(0.5, begun)
        assert town.run(lambda: all_done(town, nodes), 10.0)
        took.append(town.now - begun)
        heard.append(nodes["b"].agents)
    assert took[0] == pytest.approx(3.0)
    assert took[1] < 0.3
    assert heard == [3, 2]
    town.dead = set()
    for name, node in nodes.items():
        node.begin(3, town.now)
        node.speak(0.9 if name == "c" else 0.5, town.now)
    assert town.run(lambda: all_done(town, nodes), 10.0)
    assert nodes["b"].best == [(0.9, "c")], "it takes part again as soon as it speaks"


def test_nothing_is_agreed_before_every_neighbour_has_acknowledged_it() -> None:
    node, rng = Gossip("a", frozenset({"b"}), GossipSettings(keep=2)), np.random.default_rng(1)
    node.begin(1, 0.0)
    node.speak(0.5, 0.0)
    sent = node.tick(1.0, rng)
    both = (hash_of(1, "a"), hash_of(1, "b"))
    said = GossipNote(slot=1, seq=PER_INCARNATION + 1, best=((0.7, "b"),), heard=both, spoken=both)
    node.receive("b", said, 1.1)
    assert [note.seq for _, note in sent] == [PER_INCARNATION + 1]
    early = node.agreed
    node.receive("b", GossipNote(slot=1, seq=0, ack=PER_INCARNATION + 1), 1.2)
    assert (early, node.agreed) == (False, True), "what was sent may be lost"
    assert node.best == [(0.7, "b"), (0.5, "a")]


def test_an_agent_without_an_index_passes_on_but_is_not_chosen() -> None:
    around = {"a": {"b": 1.0}, "b": {"a": 1.0, "c": 1.0}, "c": {"b": 1.0}}
    nodes = nodes_of(around, GossipSettings(keep=3))
    town = town_of(nodes, 1)
    for name, index in (("a", 0.1), ("b", None), ("c", 0.2)):
        nodes[name].begin(1, 0.0)
        nodes[name].speak(index, 0.0)
    assert town.run(lambda: all_done(town, nodes), 5.0)
    assert all(node.best == [(0.2, "c"), (0.1, "a")] for node in nodes.values())


def test_an_index_that_nobody_can_have_is_not_believed() -> None:
    node = Gossip("a", frozenset({"b"}))
    node.begin(1, 0.0, ceiling=2.5)
    said = GossipNote(slot=1, seq=PER_INCARNATION + 1, best=((1e9, "b"), (2.0, "c")))
    node.receive("b", said, 0.1)
    assert node.best == [(2.0, "c")]
    assert node.counters == {"too_good": 1}


@pytest.mark.parametrize("own", [None, 0.4])
def test_nobody_else_says_that_an_agent_stands_for_election(own: float | None) -> None:
    node = Gossip("a", frozenset({"b"}), GossipSettings(keep=2))
    node.begin(1, 0.0)
    node.speak(own, 0.0)
    lie = GossipNote(slot=1, seq=PER_INCARNATION + 1, best=((1.9, "a"), (0.5, "b")))
    echo = GossipNote(
        slot=1, seq=PER_INCARNATION + 2, best=((0.5, "b"), *(((own, "a"),) if own else ()))
    )
    for note in (lie, echo):
        node.receive("b", note, 0.1)
    assert node.best == [(0.5, "b")] + [(index, "a") for index in (own,) if index is not None]
    assert node.counters == {"of_me": 1}


def test_of_two_indices_of_one_agent_the_larger_counts() -> None:
    node = Gossip("a", frozenset({"b"}), GossipSettings(keep=2))
    node.begin(1, 0.0)
    for seq, index in enumerate((0.3, 0.7, 0.5), 1):
        said = GossipNote(slot=1, seq=PER_INCARNATION + seq, best=((index, "c"),))
        node.receive("b", said, 0.1)
    assert node.best == [(0.7, "c")]


def test_who_takes_part_has_other_hashes_in_each_slot() -> None:
    hashes = {hash_of(slot, agent) for slot in range(1, 20) for agent in names(20)}
    assert len(hashes) == 19 * 20


def test_many_agents_are_counted_from_a_sample() -> None:
    node = Gossip("a", frozenset({"b"}))
    for total in (10, 60, 1000):
        node.begin(total, 0.0)
        hashes = sorted(hash_of(total, name) for name in names(total))[:64]
        node.receive("b", GossipNote(slot=total, seq=PER_INCARNATION + 1, heard=tuple(hashes)), 0.1)
        error = 3 / math.sqrt(62) * total if total > 62 else 2
        assert abs(node.agents - total) <= error


def test_the_price_of_an_agreement_is_bounded() -> None:
    bounds = GossipSettings(pace=Pace(max_notes=12, life_s=10.0))
    node = Gossip("a", frozenset({"b"}), bounds)
    rng = np.random.default_rng(1)
    node.begin(1, 0.0)
    node.speak(0.5, 0.0)
    sent = 0
    for step in range(10_000):
        now = step * 0.01
        sent += len(node.tick(now, rng))
        echo = GossipNote(slot=1, seq=PER_INCARNATION + 1)
        node.receive("b", echo, now)
    assert sent <= 12


@pytest.mark.parametrize(("setting", "value"), [("keep", 0), ("keep", 2000), ("max_s", 0.0)])
def test_bounds_that_bound_nothing_are_refused(setting: str, value: float) -> None:
    with pytest.raises(PeerSettingError, match=setting):
        GossipSettings(**{setting: value})  # type: ignore[arg-type]  # any of them
