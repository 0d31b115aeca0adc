"""Runs in which neighbours decide who trains: real keys, sealed envelopes, real agents and edges.

Whatever dies or is lost, nobody is ordered who has not volunteered after the last model, and
nothing of what a device thinks leaves it.
"""

from bisect import bisect_left
from collections.abc import Callable

import pytest
from msgspec import structs

from fedagent_coordinator.books.read import open_reader
from fedagent_protocol.codec import encode
from tests.fakes.leak_search import Leak, Search
from tests.fakes.peer_network import read_slots

from . import ROUNDS, Played, World, m
from .kinds import BEST, ROUGH

Make = Callable[..., World]


def volunteers(played: Played) -> dict[int, frozenset[str]]:
    """Check that only volunteers were ordered; return them of each call."""
    calls = [number for number, _ in played.ending.evaluated]
    found: dict[int, set[str]] = {number: set() for number in calls}
    with open_reader(played.here.coordinator.directory) as read:
        run = read.run()
        ordered = read.outcomes(run.run_id)
        for row in read.evaluations.answers(run.run_id):
            found[row.round].add(row.agent)
    for order in ordered:
        call = calls[bisect_left(calls, order.round) - 1]
        assert order.agent in found[call], "who has not volunteered was ordered to train"
    return {call: frozenset(who) for call, who in found.items()}


@pytest.mark.parametrize("edges", [1, 2])
def test_in_a_calm_run_as_many_volunteer_as_are_wanted(
    world: Make, world_seed: int, edges: int
) -> None:
    played = world(kind="peers", seed=world_seed, edges=edges).run()
    calls = volunteers(played)
    assert list(calls) == list(range(ROUNDS))
    assert {len(who) for who in calls.values()} == {BEST}
    assert len(played.ending.paid) == BEST * ROUNDS
    for name, agent in played.here.agents.items():
        slots = [slot for slot in read_slots(agent.directory) if slot.chosen is not None]
        assert [slot.round for slot in slots] == list(range(ROUNDS))
        volunteered = [call for call, who in calls.items() if agent.id in who]
        assert [slot.round for slot in slots if slot.chosen] == volunteered
        trained = [number for number, who in played.ending.paid if who == name]
        assert trained == [call + 1 for call in volunteered]


def test_what_the_budget_cannot_pay_is_not_ordered(world: Make, world_seed: int) -> None:
    sets = ("peers.best=4", "budget.per_edge=0.25")
    played = world(kind="peers", seed=world_seed, sets=sets).run()
    assert {len(who) for who in volunteers(played).values()} == {4}
    assert len(played.ending.paid) == 2 * ROUNDS


@pytest.mark.parametrize(
    ("victim", "kind"),
    [("edge-0", "peer-send"), ("agent-1", "volunteer"), ("edge-0", "neighbours")],
)
def test_somebody_is_killed_in_the_middle_of_a_call(
    world: Make, world_seed: int, victim: str, kind: str
) -> None:
    here = world(kind="peers", seed=world_seed, faults=ROUGH, edges=2)
    played = here.kill_on(victim, kind, 1 + world_seed % 3, 6).run()
    volunteers(played)
    assert played.died[victim] >= 1


def test_those_who_cannot_hear_each_other_choose_apart(world: Make, world_seed: int) -> None:
    sees = {f"agent-{i}": (f"edge-{i // 3}",) for i in range(6)}
    played = world(kind="peers", seed=world_seed, edges=2, sees=sees).run()
    calls = volunteers(played)
    sides = [
        {played.here.agents[f"agent-{i}"].id for i in side} for side in (range(3), range(3, 6))
    ]
    for who in calls.values():
        assert who
        assert all(len(who & side) <= BEST for side in sides)
    assert max(len(who) for who in calls.values()) > BEST


# --------------------------------------------------------------------- what gets out


def leaks(played: Played) -> list[Leak]:
    """Return what devices think as it is in messages, and in files of edges and coordinator.

    Four bytes of weights, or of what is sealed, may be anything; eight may not.
    """
    here = played.here
    search = Search.of({one.id: read_slots(one.directory) for one in here.agents.values()})
    assert len(search.canaries) >= ROUNDS * len(here.agents)
    whole = [(f"{one.sender} {m.kind(one.message)}", one.message) for one in played.wire.sent]
    blank = {"first": b"", "data": b"", "body": b"", "claim": b""}
    bare = [
        (where, structs.replace(said, **{k: v for k, v in blank.items() if getattr(said, k, b"")}))
        for where, said in whole
    ]
    found: list[Leak] = []
    for messages, short in ((whole, False), (bare, True)):
        encoded = [(where, encode(said)) for where, said in messages]
        # All at once; one by one only to say where.
        if search.look("", b"\0|\0".join(data for _, data in encoded), short=short):
            for where, data in encoded:
                found += search.look(where, data, short=short)
    for node in (here.coordinator, *here.edges.values()):
        found += search.look_through(node.directory, models=("models", "spool"))
    kept = b"".join(path.read_bytes() for path in here.agents["agent-0"].directory.glob("books*"))
    assert search.look("the device", kept), "the search finds what is there"
    return found


def test_nothing_that_a_device_thinks_gets_out(world: Make) -> None:
    played = world(kind="peers", edges=2).run()
    assert leaks(played) == []
    kinds = {m.kind(one.message) for one in played.wire.sent}
    assert {"peer-send", "peer-deliver", "volunteer", "volunteers", "update"} <= kinds
    assert not {"opinion", "opinions"} & kinds
    stats = [one.message.stats for one in played.wire.said(m.UpdateOffer)]
    assert {(one.loss, one.score, one.score_n) for one in stats} == {(0.0, 0.0, 0)}
