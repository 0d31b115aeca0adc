"""Agents decide with their neighbours through edges that relay: called, evaluated, volunteered.

Whole runs are in `tests/world/test_neighbours.py`, and what nodes come to in `test_node.py`.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedagent_agent.core.device import Readings
from fedagent_agent.peers.core.node import BpUcbNode
from fedagent_agent.peers.core.selection import MAX_EDGES, MAX_REWIRED
from fedagent_agent.trainer.frames import Evaluate
from fedagent_node.effects import Send
from fedagent_protocol import messages as m
from fedagent_task.recipe.spec import OpinionsSpec, PeersSpec
from tests.fakes.hand_edge import EDGE, OTHER, REAL, HandEdge, joined, model_of
from tests.fakes.peer_network import Distances, read_slots
from tests.fakes.voices import identity

MODEL = model_of(500)
STEP_S = 0.01
"""How long an edge takes to carry an envelope."""


def ids_of(count: int) -> list[str]:
    return sorted(identity(f"agent-{n}").id for n in range(count))


class Fleet:
    """Agents that hear the same edges, which carry what those write to each other."""

    def __init__(
        self,
        folder: Path,
        count: int,
        *others: str,
        declared: Distances | None = None,
        **rules: Any,
    ) -> None:
        people = [identity(f"agent-{n}") for n in range(count)]
        self.ids = ids_of(count)
        around = declared or {}
        task = structs.replace(
            REAL, opinions=OpinionsSpec(mode="peers"), peers=PeersSpec(**{"best": 1, **rules})
        )
        self.agents: dict[str, HandEdge] = {}
        for one in people:
            peers = tuple(f"{peer}:{km}" for peer, km in around.get(one.id, {}).items())
            (home := folder / one.id).mkdir()
            self.agents[one.id] = joined(home, *others, task=task, identity=one, peers=peers)
        self._carried = dict.fromkeys(self.ids, 0)

    def close(self) -> None:
        for agent in self.agents.values():
            agent.store.close()

    def name(self, around: Distances) -> None:
        for me, peers in around.items():
            self.agents[me].say(m.Neighbours(peers=peers))

    def begin(self, me: str, number: int, score: float | None, **call: Any) -> None:
        """Call an agent, and be its trainer; None: no sample has arrived."""
        agent = self.agents[me]
        call = {"mode": m.OpinionMode.PEERS, "slot": number + 1, **call}
        agent.serve(agent.call(number, MODEL, **call), MODEL)
        if agent.core.peers.available:
            agent.evaluate(agent.jobs(Evaluate)[-1], score or 0.0, samples=7 if score else 0)

    def run(self, seconds: float, *, carries: frozenset[str] = frozenset({EDGE, OTHER})) -> None:
        for _ in range(round(seconds / STEP_S)):
            for agent in self.agents.values():
                agent.later(STEP_S)
            for me, agent in self.agents.items():
                fresh, self._carried[me] = agent.out[self._carried[me] :], len(agent.out)
                for one in fresh:
                    if isinstance(one, Send) and isinstance(one.message, m.PeerSend):
                        carried = m.PeerDeliver(sender=me, body=one.message.body)
                        if one.to in carries and one.message.to in self.agents:
                            self.agents[one.message.to].say(carried, edge=one.to)

    def slot(self, number: int, scores: dict[str, float | None], **call: Any) -> set[str]:
        for me, score in scores.items():
            self.begin(me, number, score, **call)
        self.run(4.0)
        return self.volunteers(number)

    def volunteers(self, number: int) -> set[str]:
        said = {me: agent.said(m.Volunteer) for me, agent in self.agents.items()}
        return {me for me, all_ in said.items() if any(one.round == number for one in all_)}

    def node(self, me: str) -> BpUcbNode:
        found = self.agents[me].core.peers.node
        assert found is not None
        return found

    def row(self) -> Distances:
        """Return a graph in which everybody is next to who comes next."""
        around: Distances = {me: {} for me in self.ids}
        for one, two in pairwise(self.ids):
            around[one][two] = around[two][one] = 1.0
        return around


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, 3)
    yield fleet
    fleet.close()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[tuple[Fleet, HandEdge]]:
    fleet = Fleet(tmp_path, 1)
    yield fleet, fleet.agents[fleet.ids[0]]
    fleet.close()


def test_the_best_volunteers_and_what_decided_is_kept(three: Fleet) -> None:
    a, b, c = three.ids
    three.name(three.row())
    assert three.slot(0, {a: 0.5, b: 0.9, c: 0.6}) == {b}
    three.begin(a, 1, 0.5)
    three.begin(b, 1, 0.3, trained=True)
    three.begin(c, 1, 0.6)
    three.run(4.0)
    assert three.volunteers(1) == {c}, "who has never trained comes first"
    first, second = read_slots(three.agents[b].directory)
    assert (first.slot, first.mean, first.pulls, first.chosen, first.best) == (
        2,
        0.9,
        0,
        True,
        (b,),
    )
    assert (second.slot, second.mean, second.pulls, second.chosen) == (3, 0.3, 1, False)
    assert second.best == (c,)


def test_a_slot_waits_a_little_for_its_neighbours_and_not_for_ever(three: Fleet) -> None:
    one, two, three_ = three.ids
    three.begin(one, 0, 0.3)
    three.run(0.5)
    assert not read_slots(three.agents[one].directory)
    three.name({one: {two: 1.0}, two: {one: 1.0}})
    three.begin(two, 0, 0.6)
    three.begin(three_, 0, 0.1)
    three.run(4.0)
    assert three.volunteers(0) == {two, three_}, "an edge that names nobody is not waited for"


def test_neighbours_that_change_within_a_slot_are_talked_with(three: Fleet) -> None:
    a, b, c = three.ids
    three.name({a: {b: 1.0}, b: {a: 1.0}, c: {}})
    for me, score in ((a, 0.3), (b, 0.4), (c, 0.9)):
        three.begin(me, 0, score)
        if me == b:
            three.run(0.03)
            three.name({a: {b: 1.0}, b: {a: 1.0, c: 2.0}, c: {b: 2.0}})
    three.run(4.0)
    assert three.volunteers(0) == {c}
    assert three.node(b).distances.keys() == {a, c}


def test_neighbours_that_change_without_end_begin_a_slot_anew_a_few_times(
    alone: tuple[Fleet, HandEdge],
) -> None:
    fleet, agent = alone
    agent.say(m.Neighbours(peers={OTHER: 1.0}))
    fleet.begin(fleet.ids[0], 0, 0.3)
    begun = agent.core.peers._incarnation
    for km in range(2, 12):
        agent.say(m.Neighbours(peers={OTHER: float(km)}))
    assert agent.core.peers._incarnation == begun + MAX_REWIRED
    fleet.run(5.0)
    assert read_slots(agent.directory)[-1].chosen is not None


def test_a_call_of_another_run_does_not_take_the_envelopes_of_a_slot(tmp_path: Path) -> None:
    ids = ids_of(2)
    around = {ids[0]: {ids[1]: 1.0}, ids[1]: {ids[0]: 1.0}}
    fleet = Fleet(tmp_path, 2, OTHER, declared=around, graph="declared")
    for me, score in zip(ids, (0.2, 0.3), strict=True):
        fleet.begin(me, 0, score)
        agent = fleet.agents[me]
        agent.call(1, MODEL, edge=OTHER, run="cd" * 16, mode=m.OpinionMode.PEERS)
    fleet.run(5.0, carries=frozenset({EDGE}))
    assert fleet.volunteers(0) == {ids[1]}
    assert not any(fleet.node(me).silent for me in ids)
    fleet.close()


def test_lists_of_neighbours_of_edges_without_number_are_forgotten(
    alone: tuple[Fleet, HandEdge],
) -> None:
    _, agent = alone
    for number in range(200):
        agent.join(edge=f"edge-{number}")
        agent.say(m.Neighbours(peers={f"{number:032x}": 1.0}), edge=f"edge-{number}")
        agent.now += 200.0
        agent.tick()
    opened = agent.core.peers._opened
    assert opened is not None
    assert 0 < len(opened.transport.ways) <= MAX_EDGES


@pytest.mark.parametrize("graph", ["near", "declared"])
def test_an_edge_that_names_agents_of_its_own_learns_nothing_where_neighbours_are_declared(
    tmp_path: Path, graph: Literal["near", "declared"]
) -> None:
    honest, friend, spy = ids_of(3)
    around = {honest: {friend: 1.0}, friend: {honest: 1.0}, spy: {honest: 1.0}}
    fleet = Fleet(tmp_path, 3, declared=around, graph=graph)
    fleet.name({honest: {spy: 0.0}, spy: {honest: 0.0}})
    assert honest in fleet.slot(0, {honest: 0.73, friend: 0.4, spy: None})
    heard = fleet.node(spy).beliefs.belief != 0.5 or fleet.node(spy).best != []
    assert heard == (graph == "near"), "it is a neighbour like any other, unless declared"
    fleet.close()


def test_a_device_that_may_not_work_passes_on_and_lets_another_volunteer(three: Fleet) -> None:
    a, b, c = three.ids
    three.name(three.row())
    assert three.slot(0, {a: 0.5, b: 0.9, c: 0.6}) == {b}
    three.agents[b].measure(Readings(available=False, reason="battery 4 %"))
    assert three.slot(1, {a: 0.5, b: 0.9, c: 0.6}) == {c}, "b's mean is still the best"
    three.agents[b].measure(Readings())
    assert three.slot(2, {a: 0.5, b: 0.9, c: 0.6}) == {b}


@settings(max_examples=8, deadline=None)
@given(bodies=st.lists(st.binary(max_size=600), max_size=5))
def test_whatever_a_relay_delivers_the_slot_goes_on(
    bodies: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    fleet = Fleet(tmp_path_factory.mktemp("hostile"), 2)
    one, two = fleet.ids
    fleet.name({one: {two: 1.0}, two: {one: 1.0}})
    for body in bodies:
        fleet.agents[one].say(m.PeerDeliver(sender=two, body=body))
        fleet.agents[two].say(m.PeerDeliver(sender="stranger", body=body))
    assert fleet.slot(0, {one: 0.5, two: 0.4}) == {one}
    fleet.close()
