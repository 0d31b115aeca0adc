"""The nearest change really selects a device, and a slightly smaller one does not."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator import policies
from fedagent_coordinator.books.records import pack
from fedagent_coordinator.books.rows import DeviceRow
from fedagent_coordinator.core.decision import solved
from fedagent_coordinator.errors import PolicyError
from fedagent_coordinator.explanation.account import Change, Explanation
from fedagent_coordinator.explanation.decided import DecidedRound
from fedagent_coordinator.explanation.explain import explained_round
from fedagent_coordinator.explanation.nearest import nearest_changes
from fedagent_coordinator.policies import RoundView
from fedagent_protocol.errors import ParameterError
from tests.fakes.rounds import column_view, random_feedback, random_view

SEED, CAP = 11, 2_500_000


def decided(name: str, *, rounds: int, free_micro: int | None, seed: int) -> DecidedRound | None:
    """A round that a policy decided after it had learnt from some."""
    policy = policies.create(name)
    view = None
    for t in range(1, rounds + 1):
        rng = np.random.default_rng((seed, t))
        view = random_view(rng, t, budget=min(CAP, CAP if free_micro is None else free_micro))
        try:
            selection = solved(policy, view, seed=SEED, free_micro=free_micro)
        except (PolicyError, ParameterError):
            return None
        if t < rounds:
            policy.learn(random_feedback(rng, view, selection))
    assert view is not None
    return DecidedRound(
        view=view,
        selection=selection,
        name=name,
        seed=SEED,
        policy=policy,
        parameters=policies.parameters(name),
        free_micro=free_micro,
        cap_micro=CAP,
        edges=["e0", "e1", "e2"],
    )


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
    the_round = decided(name, rounds=rounds, free_micro=free, seed=seed)
    if the_round is None:
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
    the_round = decided(name, rounds=6, free_micro=None, seed=3)
    assert the_round is not None
    assert the_round.policy is not None
    before, aspects = pack(the_round.policy.state()), the_round.aspects()
    assert pack(the_round.policy.state()) == before
    assert {len(column) for column in aspects.values.values()} <= {len(the_round.view.pair_client)}
    if aspects.experts:
        assert sum(aspects.experts.values()) == pytest.approx(1.0)
        assert set(aspects.experts) <= set(aspects.values)
    for client in range(len(the_round.view.client_price)):
        said = explained_round(the_round, DeviceRow(client=client, agent=f"agent-{client}"))
        assert said.reasons
        assert msgspec.json.decode(msgspec.json.encode(said), type=Explanation) == said
        chosen = client in the_round.view.pair_client[the_round.selection.pairs]
        assert (said.state == "selected") == chosen
        if said.state in {"not_selected", "unaffordable"}:
            assert said.constraint.kind != "none"


def cheapest(view: RoundView, *, free_micro: int | None = None) -> DecidedRound:
    policy = policies.create("cheapest")
    return DecidedRound(
        view=view,
        selection=solved(policy, view, seed=SEED, free_micro=free_micro),
        name="cheapest",
        seed=SEED,
        cap_micro=CAP,
        policy=policy,
        free_micro=free_micro,
        edges=["hall"],
    )


def of(the_round: DecidedRound, client: int) -> Explanation:
    return explained_round(
        the_round, DeviceRow(client=client, agent="a"), names={"hall": "the hall"}
    )


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
    said = of(cheapest(column_view(price=price, budget=budget), free_micro=free), len(price) - 1)
    assert (said.state, said.constraint.kind) == (state, kind)
    assert {change.what: change.to for change in said.nearest_change} == changes
    assert ("the hall" in said.reasons[0]) == (kind == "edge_budget")


def test_one_that_is_away_or_out_of_sight_needs_no_price_and_where_nothing_helps_it_is_said() -> (
    None
):
    said = of(cheapest(column_view(price=[300, 400], budget=1000, available=[True, False])), 1)
    assert said.state == "unavailable"
    assert [change.what for change in said.nearest_change] == ["availability"]
    view = column_view(price=[300, 300], budget=1000)
    unseen = of(cheapest(view.take(view.pair_client == 0)), 1)
    assert (unseen.state, unseen.nearest_change) == ("not_visible", [])
    policy = policies.create("fixed", clients=[0])
    selection = solved(policy, view, seed=1, free_micro=None)
    said = of(replace(cheapest(view), policy=policy, selection=selection), 1)
    assert said.solved
    assert any("no single change of its price" in reason for reason in said.reasons)
