"""Why a device was not selected: what bound it, and the least change that would have done it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator import policies
from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.books.records import pack
from fedagent_coordinator.books.rows import DeviceRow, OrderRow
from fedagent_coordinator.core.decision import solved
from fedagent_coordinator.errors import PolicyError, UnknownRoundError
from fedagent_coordinator.explanation.account import Change, Explanation
from fedagent_coordinator.explanation.binding import Binding, binding, change_text
from fedagent_coordinator.explanation.decided import DecidedRound
from fedagent_coordinator.explanation.explain import explain, explained_round
from fedagent_coordinator.explanation.nearest import nearest_changes
from fedagent_coordinator.policies import RoundView, SelectionPolicy
from fedagent_protocol.errors import ParameterError
from tests.fakes.rounds import column_view, ended, random_feedback, random_view
from tests.fakes.written_runs import write_run
from tests.world.kinds import SETS, world

SEED, CAP = 3, 2_500_000
NAMES = {"e0": "hall"}


def decided(
    name: str, policy: SelectionPolicy, view: RoundView, free: int | None = None, **params: object
) -> DecidedRound:
    """A round as a policy decides it now."""
    return DecidedRound(
        view=view,
        selection=solved(policy, view, seed=SEED, free_micro=free),
        name=name,
        seed=SEED,
        policy=policy,
        parameters={**policies.parameters(name), **params},
        free_micro=free,
        cap_micro=CAP,
        edges=["e0", "e1", "e2"],
    )


def learnt(name: str, *, rounds: int, free: int | None = None, seed: int = 3) -> DecidedRound:
    """A round that a policy decided after it had learnt from some."""
    policy, budget = policies.create(name), CAP if free is None else min(CAP, free)
    for t in range(1, rounds):
        rng = np.random.default_rng((seed, t))
        view = random_view(rng, t, budget=budget)
        selection = solved(policy, view, seed=SEED, free_micro=free)
        policy.learn(random_feedback(rng, view, selection))
    rng = np.random.default_rng((seed, rounds))
    return decided(name, policy, random_view(rng, rounds, budget=budget), free)


def bound(the_round: DecidedRound, client: int) -> Binding:
    return binding(the_round, client, NAMES, the_round.aspects())


def unselected(the_round: DecidedRound) -> int:
    view = the_round.view
    out = np.setdiff1d(view.pair_client, view.pair_client[the_round.selection.pairs])
    return int(out[0])


def played(policy: SelectionPolicy, view: RoundView) -> None:
    pairs = solved(policy, view, seed=SEED, free_micro=None).pairs.tolist()
    n = len(pairs)
    policy.learn(ended(view, pairs, tau_s=[0.5] * n, x=[True] * n))


def test_as_many_as_a_round_takes() -> None:
    policy = policies.create("fastest", clients_per_round=1)
    the_round = decided("fastest", policy, column_view(price=[1, 1, 1]), clients_per_round=1)
    said = bound(the_round, unselected(the_round))
    assert (said.constraint.kind, said.constraint.limit) == ("clients_per_round", 1)
    assert said.reasons == ["the round was full: 1 of 1 clients were selected before it"]


def test_others_are_owed_more_rounds() -> None:
    policy = policies.create("fair", policy="cheapest", beta=0.4)
    for t in range(1, 5):  # two can be paid of three, always the same two
        played(policy, column_view(t, price=[300, 310, 900], budget=700))
    the_round = decided("fair", policy, column_view(5, price=[300, 310, 900], budget=1000))
    said = bound(the_round, 0)
    assert (said.state, said.constraint.kind) == ("not_selected", "fairness_queue")
    assert "owed more rounds" in said.reasons[0]


def test_who_has_not_trained_yet_comes_first() -> None:
    params: dict[str, Any] = {"clients_per_round": 1, "graph": "declared", "mu": 0.0}
    policy = policies.create("bp-ucb", **params)

    def view(t: int) -> RoundView:
        return column_view(t, price=[1, 1, 1], opinions=[0.9, 0.5, 0.1])

    first = view(1)
    pairs = solved(policy, first, seed=SEED, free_micro=None).pairs.tolist()
    feedback = ended(first, pairs, tau_s=[0.5], x=[True])
    policy.learn(replace(feedback, opinions=np.array([0.9, 0.5, 0.1])))
    the_round = decided("bp-ucb", policy, view(2), **params)
    assert bound(the_round, int(pairs[0])).constraint.kind == "cold_start"
    others = {0, 1, 2} - {int(pairs[0]), *the_round.selection.pairs.tolist()}
    assert bound(the_round, others.pop()).constraint.kind == "clients_per_round"


def test_a_slot_goes_on() -> None:
    params: dict[str, Any] = {"clients_per_round": 1, "slot_rounds": 3}
    policy = policies.create("ucb", **params)
    opinions = [0.5, 0.5, 0.5]
    played(policy, column_view(1, price=[1, 1, 1], opinions=opinions))
    view = column_view(2, price=[1, 1, 1], opinions=opinions)
    the_round = decided("ucb", policy, view, **params)
    assert bound(the_round, unselected(the_round)).constraint.kind == "slot"


def test_one_that_is_hardly_ever_in_time() -> None:
    the_round = decided(
        "adaptive", policies.create("adaptive"), column_view(price=[1, 1], budget=1)
    )
    out = unselected(the_round)
    scores = np.array([0.9, 0.9])
    scores[out] = 0.001
    selection = replace(the_round.selection, scores=scores)
    said = bound(replace(the_round, selection=selection), out)
    assert said.constraint.kind == "deadline"


def test_a_forecast_is_told_apart_from_the_trust_and_who_is_new_is_told_so() -> None:
    """`why` called a trust of 0.01 a chance of 1 % to deliver in time."""
    policy = policies.create("adaptive")
    for t in range(1, 4):
        played(policy, column_view(t, price=[1, 1], budget=2))
    view = replace(column_view(4, price=[1, 1], budget=2), trust=np.array([1.0, 0.01]))
    said = of(decided("adaptive", policy, view), 1)
    assert said.constraint.kind == "trust"
    forecast = next(one.device for one in said.scores if one.name == "forecast")
    assert forecast is not None
    assert forecast > 0.5
    assert f"a chance of {forecast:.1%} that it delivers in time" in said.reasons[0]
    assert any("it is new, with 3 of 5 outcomes" in reason for reason in said.reasons)
    assert any("its trust is 0.01" in reason for reason in said.reasons)


def test_others_were_tried_that_are_known_less() -> None:
    policy = policies.create("cocs", features=["compute"])
    the_round = decided("cocs", policy, column_view(price=[300, 300], budget=300))
    assert bound(the_round, unselected(the_round)).constraint.kind == "exploration"
    chosen = int(the_round.view.pair_client[the_round.selection.pairs[0]])
    assert "the policy explored in this round" in bound(the_round, chosen).reasons


@pytest.mark.parametrize(
    ("status", "reason", "text"),
    [
        ("missed", "unanswered", "because it did not answer its order of round 4: it was probably"),
        ("declined", "busy", "because it declined its order of round 4"),
        ("arrived", "", "the device said that it would not train"),
    ],
)
def test_who_is_not_available_said_so_or_is_left_out(status: str, reason: str, text: str) -> None:
    view = replace(column_view(5, price=[1, 1]), client_available=np.array([True, False]))
    the_round = cheapest(view)
    ends = [("arrived", "", 3), (status, reason, 4), ("missed", "", 5)]
    orders = [
        OrderRow(
            round=t, edge_id="e0", price_micro=1, status=s, reason=r, in_time=False, tau_s=None
        )
        for s, r, t in ends
    ]
    said = binding(the_round, 1, NAMES, {}, orders)
    assert said.state == "unavailable"
    assert text in said.reasons[0]
    assert said.reasons[0].startswith("the device said that it would not train")
    assert ("left out" in said.reasons[0]) == (status != "arrived")


def test_a_change_is_one_line() -> None:
    price = Change(what="price", before=2_000_000, to=1_250_000)
    assert change_text(price, NAMES) == "a price of 1.25 credits or less instead of 2"
    rate = Change(what="rate", before=1e6, to=2e6, edge="e0", factor=2.0)
    assert change_text(rate, NAMES) == "rates to edge hall 2 times as high, 1 to 2 Mbit/s"


def smaller(change: Change) -> Change | None:
    """The change that goes slightly less far; None where there is none between."""
    if change.what == "availability":
        return None
    if change.factor:
        less = change.factor / 1.002
        return msgspec.structs.replace(change, to=change.before * less, factor=less)
    return msgspec.structs.replace(change, to=change.to + (1 if change.to < change.before else -1))


@pytest.mark.parametrize("name", policies.names())
@settings(max_examples=3)
@given(
    seed=st.integers(0, 2**20),
    rounds=st.integers(1, 5),
    free=st.sampled_from([None, 1_000_000, 4_000_000]),
)
def test_the_change_selects_and_a_slightly_smaller_one_does_not(
    name: str, seed: int, rounds: int, free: int | None
) -> None:
    try:
        the_round = learnt(name, rounds=rounds, free=free, seed=seed)
    except (PolicyError, ParameterError):
        return
    for client in range(0, len(the_round.view.client_price), 4):
        changes = nearest_changes(the_round, client)
        assert not (changes and the_round.chosen_pair(client) is not None)
        for change in changes:
            assert the_round.selects(client, change)
            less = smaller(change)
            assert less is None or not the_round.selects(client, less)


@pytest.mark.parametrize("name", policies.names())
def test_every_policy_is_explained_as_plain_json(name: str) -> None:
    the_round = learnt(name, rounds=6)
    assert the_round.policy is not None
    before, aspects = pack(the_round.policy.state()), the_round.aspects()
    assert pack(the_round.policy.state()) == before
    assert {len(column) for column in aspects.values()} <= {len(the_round.view.pair_client)}
    for client in range(len(the_round.view.client_price)):
        said = explained_round(the_round, DeviceRow(client=client, agent=f"agent-{client}"))
        assert said.reasons
        assert msgspec.json.decode(msgspec.json.encode(said), type=Explanation) == said
        chosen = client in the_round.view.pair_client[the_round.selection.pairs]
        assert (said.state == "selected") == chosen
        if said.state in {"not_selected", "unaffordable"}:
            assert said.constraint.kind != "none"


def cheapest(view: RoundView, free: int | None = None) -> DecidedRound:
    return decided("cheapest", policies.create("cheapest"), view, free)


def of(the_round: DecidedRound, client: int) -> Explanation:
    return explained_round(the_round, DeviceRow(client=client, agent="a"), names=NAMES)


@pytest.mark.parametrize(
    ("price", "budget", "free", "state", "kind", "changes"),
    [
        (
            [300, 400, 500],
            1000,
            None,
            "not_selected",
            "edge_budget",
            {"price": 399, "budget": 1200},
        ),
        ([300, 5000], 1000, None, "unaffordable", "edge_budget", {"price": 700, "budget": 5300}),
        ([300, 400], 500, 500, "not_selected", "run_budget", {"price": 300, "run_budget": 700}),
    ],
)
def test_the_least_money_that_would_have_selected_the_last(
    price: list[int],
    budget: int,
    free: int | None,
    state: str,
    kind: str,
    changes: dict[str, float],
) -> None:
    said = of(cheapest(column_view(price=price, budget=budget), free), len(price) - 1)
    assert (said.state, said.constraint.kind) == (state, kind)
    assert {change.what: change.to for change in said.nearest_change} == changes
    assert ("hall" in said.reasons[0]) == (kind == "edge_budget")


def test_one_that_is_away_or_out_of_sight_needs_no_price_and_where_nothing_helps_it_is_said() -> (
    None
):
    said = of(cheapest(column_view(price=[300, 400], budget=1000, available=[True, False])), 1)
    assert said.state == "unavailable"
    assert [change.what for change in said.nearest_change] == ["availability"]
    view = column_view(price=[300, 300], budget=1000)
    unseen = of(cheapest(view.take(view.pair_client == 0)), 1)
    assert (unseen.state, unseen.nearest_change) == ("not_visible", [])
    said = of(decided("fixed", policies.create("fixed", clients=[0]), view), 1)
    assert said.solved
    assert any("no single change of its price" in reason for reason in said.reasons)


# --------------------------------------------------------------- by the books

POLICIES = {
    "plain": ("policy.name=adaptive", "rounds.count=30", "budget.per_edge=0.25"),
    "evaluated": ("rounds.count=25",),
    "peers": (),
    "placed": (),
}


@pytest.mark.parametrize("kind", SETS)
def test_every_round_is_solved_again_as_it_was_recorded(kind: str, tmp_path: Path) -> None:
    here = world(kind, tmp_path, 5, *POLICIES[kind])
    here.run(seconds=900)
    with open_reader(here.coordinator.directory) as read:
        run = read.run().run_id
        last, devices = read.last_round(run), read.devices(run)
        for round_ in range(1, last + 1, 6):
            for device in devices[:2]:
                said = explain(read, device.agent, round_)
                assert said.solved
                view, selection = read.plan(run, round_)
                chosen = device.client in view.pair_client[selection.pairs]
                assert (said.state == "selected") == chosen
        assert explain(read, devices[0].agent) == explain(read, devices[0].agent, last)


def test_one_that_nobody_knows_and_a_round_that_is_none(tmp_path: Path) -> None:
    write_run(tmp_path)
    with open_reader(tmp_path) as read:
        assert explain(read, "nobody").state == "unknown_device"
        with pytest.raises(UnknownRoundError):
            explain(read, "agent-a", 99)


def test_a_round_that_this_version_decides_otherwise_is_told_as_recorded(tmp_path: Path) -> None:
    write_run(tmp_path)  # its rounds order everybody, whatever the policy would
    with open_reader(tmp_path) as read:
        said = explain(read, "agent-a", 2)
    assert said.state == "selected"
    assert not said.nearest_change
