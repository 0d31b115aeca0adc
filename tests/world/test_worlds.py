"""What may happen to a federation, and what it comes to."""

from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from fedagent_coordinator.books.read import open_reader
from fedagent_testbed.kernel import WAN, lan
from fedagent_testbed.world import VirtualFederation
from tests.fakes.strategy_chain import check_chain

from . import ROUNDS, Played, World, m
from .kinds import ROUGH, SETS

Make = Callable[..., World]
TIGHT = ("peers.best=4", "budget.per_edge=0.25")
"""Four volunteer, and an edge can pay two."""


def paid_of(played: Played, name: str) -> int:
    return sum(who == name for _, who in played.ending.paid)


def until_done(here: VirtualFederation, *, seconds: float = 300.0) -> None:
    here.kernel.run(until=here.kernel.now + seconds, stop=lambda: bool(here.coordinator.done))


@pytest.mark.parametrize("kind", SETS)
def test_a_calm_run_and_its_sums(world: Make, kind: str) -> None:
    played = world(kind=kind, edges=3 if kind == "placed" else 2, agents=4).run()
    assert played.recomputed >= 2
    folder, recipe = played.here.coordinator.directory, played.here.coordinator.recipe
    if kind != "placed":
        assert len(check_chain(folder, recipe)) >= ROUNDS / recipe.rounds.merge_every
    if kind == "plain":
        assert len(played.ending.paid) == 4 * ROUNDS
        assert len(played.trainings.made) == 4 * ROUNDS
        with open_reader(folder) as read:
            rows = read.outcomes(read.run().run_id)
        assert len({(row.round, row.agent) for row in rows}) == len(rows) == 4 * ROUNDS


def test_a_small_model_comes_with_the_order_and_is_fetched_where_that_is_lost(world: Make) -> None:
    played = world(chunk_bytes=4096).run()
    said = [one.message for one in played.wire.sent]
    orders = [one for one in said if isinstance(one, m.TrainOrder)]
    assert orders
    assert all(len(one.first) == one.size for one in orders)
    assert not any(isinstance(one, m.Chunk) and one.digest == orders[-1].model for one in said)
    rough = world(chunk_bytes=4096).messages(lost=0.3).run()
    again = [one.message for one in rough.wire.sent if isinstance(one.message, m.TrainOrder)]
    assert 0 < sum(bool(one.first) for one in again) < len(again)
    assert rough.ending.rounds_done == ROUNDS


@pytest.mark.parametrize("kind", SETS)
def test_a_seed_is_a_run_in_every_message(world: Make, kind: str) -> None:
    runs, placed = [], kind == "placed"
    for seed in (5, 5, 6):
        # Of a placed run the other seed is the recipe's, by which edges are drawn.
        sets = ("placement.name=random", f"seed={seed}", "rounds.count=4") if placed else ()
        of_network = 5 if placed else seed
        here = world(kind=kind, seed=of_network, sets=sets, faults=ROUGH, edges=2, agents=4)
        played = here.run(checked=False)
        said = [(one.at, one.sender, one.to, m.kind(one.message)) for one in played.wire.sent]
        runs.append((played.ending, said))
    assert runs[0] == runs[1]
    assert runs[0][1] != runs[2][1]
    assert not placed or runs[0][0].rents != runs[2][0].rents


@pytest.mark.parametrize(
    ("kind", "lost", "doubled", "jitter"),
    [
        *((kind, 0.1, 0.2, 0.05) for kind in SETS),
        ("plain", 0.3, 0.2, 0.05),
        # What was said comes again when it was answered long ago.
        ("plain", 0.0, 1.0, 2.5),
    ],
)
def test_lost_doubled_and_reordered_messages(
    world: Make, world_seed: int, kind: str, lost: float, doubled: float, jitter: float
) -> None:
    sets = TIGHT if kind == "peers" and lost == 0.1 else ("rounds.min_updates=1",)
    here = world(kind=kind, sets=sets, edges=2, agents=4, seed=world_seed)
    here.messages(lost=lost, doubled=doubled, jitter=jitter).run(seconds=2000)


@pytest.mark.parametrize("who", ["coordinator", "edge", "agent"])
def test_a_stopped_process_goes_on_where_it_was(world: Make, who: str) -> None:
    sets = ("rounds.count=6", "rounds.every_s=2")
    played = world(edges=2, agents=4, sets=sets).silent(who, after=3.3, seconds=7.0).run()
    assert played.ending.reason == "rounds"
    if who == "agent":
        assert 0 < paid_of(played, "agent-0") < 6, "it drops its stale round, and trains again"
        assert (6, "agent-0") in played.ending.paid


def test_who_is_out_of_reach_is_not_chosen_and_comes_back(world: Make) -> None:
    here = world(agents=4, sets=("rounds.count=8", "rounds.every_s=4"))
    played = here.part("agent-1", after=5.0, seconds=12.0).run()
    assert 0 < paid_of(played, "agent-1") < 8
    assert paid_of(played, "agent-0") == 8
    assert (8, "agent-1") in played.ending.paid
    # It is ordered in vain once; then it is known to be away.
    with open_reader(played.here.coordinator.directory) as read:
        rows = [row for row in read.outcomes(read.run().run_id) if not row.paid_micro]
    assert len(rows) <= 2


@pytest.mark.parametrize(("kind", "until"), [("plain", 0.6), ("placed", 3.0), ("peers", 8.0)])
@pytest.mark.parametrize("broker", [WAN, lan("edge-0")])
def test_a_broker_is_gone_thrice(
    world: Make, world_seed: int, kind: str, until: float, broker: str
) -> None:
    here = world(kind=kind, seed=world_seed, train_s=0.05)
    for part in (0.1, 0.4, 0.8):
        here.cut(broker, after=part * until, seconds=0.3 + part)
    here.run()


def test_devices_of_an_edge_that_is_cut_off_go_on_at_another_one(
    world: Make, world_seed: int
) -> None:
    sets = ("rounds.count=14", "rounds.every_s=3")
    here = world(sets=sets, seed=world_seed, edges=2, agents=4)
    played = here.cut(lan("edge-0"), after=12.0, seconds=20.0).run()
    with open_reader(played.here.coordinator.directory) as read:
        rows = [row for row in read.outcomes(read.run().run_id) if row.paid_micro]
    edges: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        edges[row.agent].add(row.edge_id)
    there = [found for found in edges.values() if played.here.edges["edge-0"].id in found]
    assert there
    assert all(len(found) == 2 for found in there), "who was there has moved"


@pytest.mark.parametrize(
    ("who", "ahead"), [("coordinator", -900.0), ("edge", 86_400.0), ("agent-0", -900.0)]
)
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


def test_who_is_not_selected_gets_no_order_and_no_part_of_the_model(world: Make) -> None:
    played = world(agents=3, sets=("policy.name=cheapest", "budget.per_edge=0.25")).run()
    chosen = {name for _, name in played.ending.paid}
    (idle,) = played.here.agents.keys() - chosen
    got = [one.message for one in played.wire.sent if one.to == played.here.agents[idle].id]
    assert got
    assert not [one for one in got if isinstance(one, m.TrainOrder | m.Chunk | m.GlobalModel)]


def test_who_has_used_its_epsilon_up_declines_and_is_selected_no_more(world: Make) -> None:
    pytest.importorskip("opendp", reason="opendp is not installed")
    played = world(kind="private", sets=("privacy.releases=2", "rounds.count=4")).run(ends=False)
    assert Counter(agent for _, agent in played.ending.paid) == dict.fromkeys(played.here.agents, 2)
    with open_reader(played.here.coordinator.directory) as read:
        vain = [row for row in read.outcomes(read.run().run_id) if not row.paid_micro]
    # The next report says so: hardly anybody is ordered in vain, and then once.
    assert all(row.reason.startswith("privacy: epsilon 8 of this run") for row in vain)
    assert max(Counter(row.agent for row in vain).values(), default=0) <= 1


def test_edges_and_agents_that_heard_the_end_take_part_again(world: Make) -> None:
    here = world(seed=3, edges=2, agents=4).here
    for node in here.nodes.values():
        node.boot()
    until_done(here)
    here.kernel.run(until=here.kernel.now + 20)
    here.coordinator.more_rounds, here.coordinator.done = 4, ""
    here.coordinator.kill()
    until_done(here)
    ending = here._ending()
    for node in here.nodes.values():
        node.drop()
    assert (ending.reason, ending.rounds_done) == ("rounds", ROUNDS + 4)
    assert ending.balanced, ending.problems
    # One agent may miss a round that began before it was heard again.
    assert len({agent for round_, agent in ending.paid if round_ > ROUNDS}) == 4
