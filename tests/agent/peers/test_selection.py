"""Agents decide with their neighbours through edges that relay: called, evaluated, volunteered."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedagent_agent.core.device import Readings
from fedagent_agent.peers.core.selection import (
    MAX_EDGES,
    MAX_REWIRED,
)
from fedagent_coordinator.policies.sets.beliefs import propagate, wire
from fedagent_protocol.messages import Neighbours, PeerDeliver
from fedagent_task.recipe.spec import PeersSpec
from tests.fakes.peer_fleet import HALL, YARD, PeerFleet, around_of
from tests.fakes.peer_network import Distances, distances, names, near_graph

Make = Callable[..., PeerFleet]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Make]:
    """Make fleets that are closed at the end."""
    made: list[PeerFleet] = []

    def make(total: int, **fields: object) -> PeerFleet:
        made.append(PeerFleet(tmp_path / f"fleet-{len(made)}", total, **fields))  # type: ignore[arg-type]  # by name
        return made[-1]

    yield make
    for one in made:
        one.close()


def near(of: PeerFleet, seed: int = 0, k: int = 3) -> Distances:
    """Name the nearest of random places; return who was named to whom."""
    graph = near_graph(np.random.default_rng(seed), of.total, k)
    around = around_of(of.ids, distances(graph), names(of.total))
    of.name(around)
    return around


def alone(fleet: Make, number: int) -> tuple[PeerFleet, str]:
    """Begin a slot of one agent that has no neighbours."""
    here = fleet(1)
    me = here.ids[0]
    here.tell(me, Neighbours())
    here.begin(me, number, 0.5)
    return here, me


def opinions_of(of: PeerFleet, seed: int) -> dict[str, float | None]:
    """Opinions that no belief can bring out of their order."""
    order = np.random.default_rng(seed).permutation(of.total)
    return {me: 0.2123 + 0.0337 * int(order[n]) for n, me in enumerate(of.ids)}


def best(opinions: dict[str, float | None], k: int) -> set[str]:
    ranked = sorted(opinions, key=lambda me: -(opinions[me] or 0.0))
    return set(ranked[:k])


def test_the_k_best_of_the_batch_volunteer_slot_after_slot(fleet: Make) -> None:
    seed, k, total = 3, 3, 6
    here = fleet(total, rules=PeersSpec(best=k))
    graph = near_graph(np.random.default_rng(seed), total, 3)
    here.name(around_of(here.ids, distances(graph), names(total)))
    wiring = wire(graph, local=True)
    rng = np.random.default_rng(seed)
    mean, pulls, trained = np.zeros(total), np.zeros(total), np.zeros(total, dtype=bool)
    for number in range(3):
        opinion = (rng.permutation(total) * 0.05 + 0.3).astype(np.float64)
        if number == 0:
            mean = opinion.copy()
        mean = np.where(trained, (mean * pulls + opinion) / (pulls + 1), mean)
        pulls = pulls + trained
        belief = propagate(wiring, opinion, tolerance=1e-12, max_sweeps=2000).belief
        index = mean + belief / total
        index += 0.01 * np.sqrt(math.log(number + 2) / np.maximum(pulls, 1)) + 2 * (pulls == 0)
        chosen = np.argsort(-index, kind="stable")[:k]
        said = here.slot(
            number,
            dict(zip(here.ids, opinion.tolist(), strict=True)),
            trained=frozenset(here.ids[n] for n in np.flatnonzero(trained)),
        )
        assert said == {here.ids[n] for n in chosen}
        trained = np.isin(np.arange(total), chosen)
    for n, me in enumerate(here.ids):
        kept = here.slots(me)
        assert [slot.slot for slot in kept] == [2, 3, 4]
        assert kept[-1].mean == pytest.approx(mean[n])
        assert kept[-1].pulls == pulls[n]
        assert kept[-1].index == pytest.approx(index[n], abs=1e-2)
        assert kept[-1].belief == pytest.approx(belief[n], abs=0.05)
        assert kept[-1].chosen == trained[n]
        assert set(kept[-1].best) == {here.ids[n] for n in chosen}


def test_a_slot_waits_a_little_for_its_neighbours_and_not_for_ever(fleet: Make) -> None:
    here = fleet(2, rules=PeersSpec(best=1))
    one, two = here.ids
    here.begin(one, 0, 0.3)
    here.run(0.5)
    assert not here.slots(one)
    here.name({one: {two: 1.0}, two: {one: 1.0}})
    here.begin(two, 0, 0.6)
    here.run(3.0)
    assert here.volunteers(0) == {two}
    alone = fleet(1)
    alone.begin(alone.ids[0], 0, 0.3)
    alone.run(1.5)
    assert alone.volunteers(0) == set(alone.ids), "an edge that names nobody is not waited for"


def test_neighbours_that_change_within_a_slot_are_talked_with(fleet: Make) -> None:
    here = fleet(3, rules=PeersSpec(best=1))
    a, b, c = here.ids
    here.name({a: {b: 1.0}, b: {a: 1.0}, c: {}})
    for me, opinion in ((a, 0.3), (b, 0.4), (c, 0.9)):
        here.begin(me, 0, opinion)
        if me == b:
            here.run(0.03)
            here.name({a: {b: 1.0}, b: {a: 1.0, c: 2.0}, c: {b: 2.0}})
    here.run(4.0)
    assert here.volunteers(0) == {c}
    assert here.node(b).distances.keys() == {a, c}
    assert here.slots(b)[-1].mean == 0.4


def test_neighbours_that_change_without_end_begin_a_slot_anew_a_few_times(fleet: Make) -> None:
    here = fleet(2, rules=PeersSpec(best=1))
    one, two = here.ids
    here.name({one: {two: 1.0}})
    here.begin(one, 0, 0.3)
    begun = here.agents[one].core.peers._incarnation
    for km in range(2, 12):
        here.name({one: {two: float(km)}})
    assert here.agents[one].core.peers._incarnation == begun + MAX_REWIRED
    here.run(5.0)
    assert here.slots(one)[-1].chosen is not None


def test_a_call_of_another_run_does_not_take_the_envelopes_of_a_slot(fleet: Make) -> None:
    here = fleet(3, rules=PeersSpec(best=1, graph="declared"), edges=(HALL, YARD))
    here.declare(here.row())
    a, b, c = here.ids
    here.carries[YARD] = 0
    other = structs.replace(here.call(1, run="cd" * 16), task="00" * 32)
    for me in here.ids:
        here.tell(me, here.call(0))
        here.begin(me, 0, {a: 0.2, b: 0.3, c: 0.4}[me])
        here.tell(me, other, YARD)
    here.run(5.0)
    assert here.volunteers(0) == {c}
    assert not any(here.silent(me) for me in here.ids)


def test_lists_of_neighbours_of_edges_without_number_are_forgotten(fleet: Make) -> None:
    here = fleet(1)
    for number in range(200):
        here.tell(here.ids[0], Neighbours(peers={f"{number:032x}": 1.0}), f"edge-{number}")
        here.run(200.0)
    opened = here.agents[here.ids[0]].core.peers._opened
    assert opened is not None
    assert len(opened.transport.ways) <= MAX_EDGES


def test_declared_neighbours_need_no_edge_to_name_them(fleet: Make) -> None:
    here = fleet(4, rules=PeersSpec(best=2, graph="declared"))
    ring = {me: {here.ids[i - 1]: 0.1, here.ids[(i + 1) % 4]: 0.2} for i, me in enumerate(here.ids)}
    here.declare(ring)
    here.name({me: {other: 1.0 for other in here.ids if other not in ring[me]} for me in here.ids})
    opinions = opinions_of(here, 2)
    assert here.slot(0, opinions) == best(opinions, 2)
    assert all(here.node(me).distances == ring[me] for me in here.ids)


@pytest.mark.parametrize("graph", ["near", "declared"])
def test_an_edge_that_names_agents_of_its_own_learns_nothing_where_neighbours_are_declared(
    fleet: Make, graph: Literal["near", "declared"]
) -> None:
    here = fleet(3, rules=PeersSpec(best=1, graph=graph))
    honest, friend, spy = here.ids
    here.declare({honest: {friend: 1.0}, friend: {honest: 1.0}, spy: {honest: 1.0}})
    here.name({honest: {spy: 0.0}, spy: {honest: 0.0}})
    assert honest in here.slot(0, {honest: 0.73, friend: 0.4, spy: None})
    known = here.agents[spy].core.peers.node
    assert known is not None
    heard = known.beliefs.belief != 0.5 or known.best != []
    assert heard == (graph == "near"), "it is a neighbour like any other, unless declared"


def test_a_device_that_may_not_work_passes_on_and_lets_another_volunteer(fleet: Make) -> None:
    here = fleet(3, rules=PeersSpec(best=1))
    a, b, c = here.ids
    here.name(here.row())
    assert here.slot(0, {a: 0.5, b: 0.9, c: 0.6}) == {b}
    here.agents[b].measure(Readings(available=False, reason="battery 4 %"))
    assert here.slot(1, {a: 0.5, b: None, c: 0.6}) == {c}, "b's mean is still the best"
    here.agents[b].measure(Readings())
    assert here.slot(2, {a: 0.5, b: 0.9, c: 0.6}) == {b}


@settings(max_examples=8, deadline=None)
@given(bodies=st.lists(st.binary(max_size=600), max_size=5), seed=st.integers(0, 99))
def test_whatever_a_relay_delivers_the_slot_goes_on(
    bodies: list[bytes], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = PeerFleet(tmp_path_factory.mktemp("hostile"), 2, rules=PeersSpec(best=1), seed=seed)
    one, two = here.ids
    here.name({one: {two: 1.0}, two: {one: 1.0}})
    for body in bodies:
        here.tell(one, PeerDeliver(sender=two, body=body))
        here.tell(two, PeerDeliver(sender="stranger", body=body))
    assert here.slot(0, {one: 0.5, two: 0.4}, limit_s=2.0) == {one}
    here.close()
