"""What may happen to a federation, and what it comes to."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from fedagent_coordinator.books.reader import open_reader
from fedagent_edge.core.effects import COORDINATOR

from . import ROUNDS, Played, Scripted, World, m

Make = Callable[..., World]


def paid_of(played: Played, name: str) -> int:
    return sum(who == name for _, who in played.ending.paid)


@pytest.mark.parametrize("kind", ["plain", "evaluated", "peers", "placed"])
def test_a_calm_run_and_its_sums(world: Make, kind: str) -> None:
    played = world(kind=kind, edges=3 if kind == "placed" else 2, agents=4).run()
    assert played.recomputed >= 2
    if kind == "plain":
        assert len(played.ending.paid) == 4 * ROUNDS
        assert len(played.trainings.made) == 4 * ROUNDS


@pytest.mark.parametrize("kind", ["plain", "evaluated", "peers", "placed"])
@pytest.mark.parametrize(("lost", "doubled", "jitter"), [(0.1, 0.2, 0.05), (0.0, 1.0, 0.3)])
def test_lost_doubled_and_reordered_messages(
    world: Make, world_seed: int, kind: str, lost: float, doubled: float, jitter: float
) -> None:
    edges = 3 if kind == "placed" else 2
    here = world(kind=kind, edges=edges, agents=4, seed=world_seed)
    here.messages(lost=lost, doubled=doubled, jitter=jitter).run(seconds=2000)


@pytest.mark.parametrize("who", ["coordinator", "edge", "agent"])
def test_a_stopped_process_goes_on_where_it_was(world: Make, who: str) -> None:
    played = world(edges=2, agents=4).silent(who, after=0.3, seconds=12.0).run()
    assert played.ending.reason == "rounds"


def test_who_is_out_of_reach_is_not_paid_and_comes_back(world: Make) -> None:
    here = world(agents=4, sets=("rounds.count=8", "rounds.every_s=4"))
    played = here.part("agent-1", after=5.0, seconds=12.0).run()
    assert 0 < paid_of(played, "agent-1") < 8
    assert paid_of(played, "agent-0") == 8
    assert (8, "agent-1") in played.ending.paid


@pytest.mark.parametrize("broker", ["wan", "lan-edge-0"])
def test_a_broker_is_gone_for_a_while(world: Make, broker: str) -> None:
    world(edges=2, agents=4).cut(broker, after=0.2, seconds=4.0).run()


@pytest.mark.parametrize("ahead", [-900.0, 86_400.0])
@pytest.mark.parametrize("who", ["coordinator", "edge", "agent-0"])
def test_nobody_compares_his_clock_with_another(world: Make, who: str, ahead: float) -> None:
    plain = world(edges=1, agents=4).run().ending
    skewed = world(edges=1, agents=4).clock(who, ahead=ahead).run().ending
    assert (skewed.paid, skewed.reason) == (plain.paid, plain.reason)


def test_a_revoked_device_gets_no_order_and_no_money_any_more(world: Make) -> None:
    here = world(agents=4, sets=("rounds.count=8", "rounds.every_s=4"))
    begins = here.here.kernel.now
    played = here.revoke("agent-2", after=9.0).kill("edge", after=15.0).run()
    out = played.here.agents["agent-2"].id
    orders = [one.at - begins for one in played.wire.said(m.TrainOrder) if one.to == out]
    assert orders
    assert max(orders) <= 9.0
    assert 0 < paid_of(played, "agent-2") < 8 == paid_of(played, "agent-1")


# ------------------------------------------------------------------------ liars


def test_an_update_that_is_not_its_digest_is_refused_and_not_paid(world: Make) -> None:
    def forge(offer: m.UpdateOffer) -> list[Any]:
        return [structs.replace(offer, first=offer.first[:-4] + b"\0\0\0\0")]

    played = world(agents=3).lies("agent-0", "update", forge).run()
    assert paid_of(played, "agent-0") == 0
    assert paid_of(played, "agent-1") == ROUNDS


def test_an_agent_that_never_answers_is_waited_for_no_longer_than_max_wait(world: Make) -> None:
    played = world(agents=3).lies("agent-2", "update", lambda _: []).run(checked=False)
    assert played.ending.rounds_done == ROUNDS
    assert paid_of(played, "agent-2") == 0


def test_an_edge_played_by_hand_that_only_greets_holds_no_other_up(world: Make) -> None:
    def hear(it: Scripted, _sender: str, message: object) -> None:
        if message is None:
            it.say(COORDINATOR, m.EdgeHello(edge=it.id, epoch="f" * 32))

    here = world(edges=2, agents=3).scripted("edge-1", hear)
    here.here.coordinator.wait_edges = 1
    played = here.run()
    assert played.ending.rounds_done == ROUNDS
    assert len(played.ending.paid) == 3 * ROUNDS


def test_the_books_say_who_trained_where(world: Make) -> None:
    played = world(edges=2, agents=4).run()
    with open_reader(played.here.coordinator.directory) as read:
        rows = read.outcomes(read.run().run_id)
    assert len({(row.round, row.agent) for row in rows}) == len(rows) == 4 * ROUNDS
