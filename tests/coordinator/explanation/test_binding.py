"""What bound a device: each constraint, by a round in which it does."""

from dataclasses import replace

import numpy as np
import pytest

from fedagent_coordinator import policies
from fedagent_coordinator.books.rows import OrderRow
from fedagent_coordinator.core.decision import solved
from fedagent_coordinator.explanation.account import Change
from fedagent_coordinator.explanation.binding import Binding, binding, change_text
from fedagent_coordinator.explanation.decided import DecidedRound
from fedagent_coordinator.policies import RoundView, SelectionPolicy
from tests.fakes.rounds import column_view, ended

SEED = 3
NAMES = {"e0": "hall"}


def decided(policy: SelectionPolicy, view: RoundView, name: str, **params: object) -> DecidedRound:
    parameters = {**policies.parameters(name), **params}
    selection = solved(policy, view, seed=SEED, free_micro=None)
    return DecidedRound(
        view=view,
        selection=selection,
        name=name,
        seed=SEED,
        policy=policy,
        parameters=parameters,
        edges=["e0"],
    )


def bound(the_round: DecidedRound, client: int) -> Binding:
    return binding(the_round, client, NAMES, the_round.aspects().values)


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
    the_round = decided(policy, column_view(price=[1, 1, 1]), "fastest", clients_per_round=1)
    said = bound(the_round, unselected(the_round))
    assert (said.constraint.kind, said.constraint.limit) == ("clients_per_round", 1)
    assert said.reasons == ["the round was full: 1 of 1 clients were selected before it"]


def test_others_are_owed_more_rounds() -> None:
    policy = policies.create("fair", policy="cheapest", beta=0.4)
    for t in range(1, 5):  # two can be paid of three, always the same two
        played(policy, column_view(t, price=[300, 310, 900], budget=700))
    the_round = decided(policy, column_view(5, price=[300, 310, 900], budget=1000), "fair")
    said = bound(the_round, 0)
    assert (said.state, said.constraint.kind) == ("not_selected", "fairness_queue")
    assert "owed more rounds" in said.reasons[0]


def test_who_has_not_trained_yet_comes_first() -> None:
    params = {"clients_per_round": 1, "graph": "declared", "mu": 0.0}
    policy = policies.create("bp-ucb", **params)

    def view(t: int) -> RoundView:
        return column_view(t, price=[1, 1, 1], opinions=[0.9, 0.5, 0.1])

    first = view(1)
    pairs = solved(policy, first, seed=SEED, free_micro=None).pairs.tolist()
    feedback = ended(first, pairs, tau_s=[0.5], x=[True])
    policy.learn(replace(feedback, opinions=np.array([0.9, 0.5, 0.1])))
    the_round = decided(policy, view(2), "bp-ucb", **params)
    assert bound(the_round, int(pairs[0])).constraint.kind == "cold_start"
    others = {0, 1, 2} - {int(pairs[0]), *the_round.selection.pairs.tolist()}
    assert bound(the_round, others.pop()).constraint.kind == "clients_per_round"


def test_a_slot_goes_on() -> None:
    params = {"clients_per_round": 1, "slot_rounds": 3}
    policy = policies.create("ucb", **params)
    opinions = [0.5, 0.5, 0.5]
    played(policy, column_view(1, price=[1, 1, 1], opinions=opinions))
    view = column_view(2, price=[1, 1, 1], opinions=opinions)
    the_round = decided(policy, view, "ucb", **params)
    assert bound(the_round, unselected(the_round)).constraint.kind == "slot"


def test_one_that_is_hardly_ever_in_time() -> None:
    the_round = decided(
        policies.create("adaptive"), column_view(price=[1, 1], budget=1), "adaptive"
    )
    out = unselected(the_round)
    scores = np.array([0.9, 0.9])
    scores[out] = 0.001
    selection = replace(the_round.selection, scores=scores)
    said = bound(replace(the_round, selection=selection), out)
    assert said.constraint.kind == "deadline"


def test_others_were_tried_that_are_known_less() -> None:
    policy = policies.create("cocs", features=["compute"])
    the_round = decided(policy, column_view(price=[300, 300], budget=300), "cocs")
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
    the_round = decided(policies.create("cheapest"), view, "cheapest")
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


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            Change(what="price", before=2_000_000, to=1_250_000),
            "a price of 1.25 credits or less instead of 2",
        ),
        (
            Change(what="rate", before=1e6, to=2e6, edge="e0", factor=2.0),
            "rates to edge hall 2 times as high, 1 to 2 Mbit/s",
        ),
        (
            Change(what="availability", before=0, to=1),
            "the device being available",
        ),
    ],
)
def test_a_change_is_one_line(change: Change, text: str) -> None:
    assert change_text(change, NAMES) == text
