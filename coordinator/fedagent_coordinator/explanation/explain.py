"""The explanation of a round from what the books keep of it.

The policy's state before the round is restored from a snapshot and the rounds since, the round is
solved again, and only if that gives what was recorded, changes are looked for that select it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedagent_coordinator.books.models import recipe_in
from fedagent_coordinator.books.read import Reader
from fedagent_coordinator.books.rows import DeviceRow, OrderRow, RunRow
from fedagent_coordinator.core.trust import DOUBTED
from fedagent_coordinator.policies import parameters
from fedagent_coordinator.policies.adaptive.policy import NEW, NEW_EVERY
from fedagent_coordinator.policies.base import Aspects, Selection, SelectionPolicy
from fedagent_coordinator.run_settings import decision_policies
from fedagent_protocol.errors import FedagentError
from fedagent_task.aggregation.alignment import DOUBTS
from fedagent_task.recipe.spec import Recipe

from .account import Constraint, Explanation, Score, known
from .binding import binding
from .decided import DecidedRound
from .nearest import nearest_changes

_LEAST = 3
"""Orders without a delivery from which a device is said never to deliver."""
WORDS = {
    "arrived": "in time",
    "late": "late",
    "missed": "nothing arrived",
    "declined": "declined",
    "rejected": "refused as invalid",
    "gone": "left its edge",
    "void": "voided with the round",
    "open": "in progress",
}
_NOTHING_ELSE = (
    "no single change of its price, its rates, its compute or a budget would have selected it"
)
_UNCHANGED = {
    "not_selected": [_NOTHING_ELSE],
    "unaffordable": [_NOTHING_ELSE],
    "unavailable": ["even if it had been available, other clients would have been selected"],
}


def explain(
    reader: Reader,
    agent_id: str,
    round: int | None = None,  # noqa: A002 - the word of the field
    *,
    run_id: str | None = None,
    nearest: bool = True,
) -> Explanation:
    """Return why a device was, or was not, selected in a round; the newest one if None.

    `nearest` false leaves out what takes long: to solve the round again.

    Raises:
        UnknownRunError, UnknownRoundError: There is no such run, or round.
    """
    run = reader.run(run_id)
    device = next((one for one in reader.devices(run.run_id) if one.agent == agent_id), None)
    round_ = reader.last_round(run.run_id) if round is None else round
    decided = _decided(reader, run, round_, restore=nearest)
    if device is None:
        return Explanation(
            run=run.run_id,
            round=round_,
            device=agent_id,
            name=agent_id[:8],
            policy=decided.name,
            state="unknown_device",
            reasons=["no edge has reported the device"],
            constraint=Constraint(kind="visibility"),
            solved=decided.policy is not None,
        )
    return explained_round(
        decided,
        device,
        run_id=run.run_id,
        names=reader.edges(run.run_id),
        orders=reader.orders_of(run.run_id, device.client, until=round_),
        nearest=nearest,
    )


def explained_round(
    decided: DecidedRound,
    device: DeviceRow,
    *,
    run_id: str = "",
    names: Mapping[str, str] | None = None,
    orders: list[OrderRow] | None = None,
    nearest: bool = True,
) -> Explanation:
    """Return the same of a round that was decided anywhere; `names` are of edges by id."""
    names, orders = names or {}, orders or []
    aspects, client = decided.aspects(), device.client
    said = binding(decided, client, names, aspects, orders)
    in_time = sum(one.in_time for one in orders)
    ordered = sum(one.status != "void" for one in orders)
    never = _never_delivers(ordered, in_time, orders)
    changes = nearest_changes(decided, client) if nearest else []
    pair = decided.best_pair(client) if said.state != "not_visible" else None
    reasons = [*said.reasons]
    if decided.policy is not None and not changes and nearest:
        reasons += _UNCHANGED.get(said.state, [])
    reasons += _told(ordered, in_time, orders)
    if pair is not None:
        reasons += _believed({name: of[pair] for name, of in aspects.items()}, orders, never)
    return Explanation(
        run=run_id,
        round=decided.view.round,
        device=device.agent,
        name=device.name,
        policy=decided.name,
        state=said.state,
        edge=said.constraint.edge,
        constraint=said.constraint,
        solved=decided.policy is not None,
        reasons=reasons,
        scores=_scores(decided, aspects, pair),
        nearest_change=changes,
        propensity=_propensity(decided, client),
        ordered=ordered,
        in_time=in_time,
        never_delivering=never,
        orders=orders,
    )


def _propensity(decided: DecidedRound, client: int) -> float | None:
    chances, pair = decided.selection.propensities, decided.best_pair(client)
    return None if chances is None or pair is None else float(chances[pair])


def _scores(decided: DecidedRound, aspects: Aspects, pair: int | None) -> list[Score]:
    if pair is None:
        return []
    last, price = decided.last_chosen(pair), decided.view.pair_price / 1e6
    score = decided.selection.scores
    columns = {"score": score, "price": price}
    if "solver" in decided.parameters:
        with np.errstate(divide="ignore", invalid="ignore"):
            columns["score per credit"] = score / price
    columns |= aspects
    return [
        Score(
            name=name, device=known(of[pair]), last_chosen=None if last is None else known(of[last])
        )
        for name, of in columns.items()
        if np.isfinite(of[pair]) or (last is not None and np.isfinite(of[last]))
    ]


def _believed(
    values: Mapping[str, float], orders: Sequence[OrderRow], never: bool
) -> Iterator[str]:
    """Say what the policy believes of a device apart from its forecast."""
    if never and (chance := values.get("never delivers")) is not None:
        yield f"the policy estimates a probability of {chance:.0%} that it never delivers"
    if (outcomes := values.get("outcomes", NEW)) < NEW:
        yield (
            f"it is new, with {outcomes:.0f} of {NEW} outcomes: unless it is dear it is ordered "
            f"once in {NEW_EVERY} rounds, as far as the share for this goes, the oldest first"
        )
    if (trust := values.get("trust", 1.0)) < DOUBTED:
        doubts = Counter(one.reason for one in orders if one.reason in DOUBTS)
        why = ", ".join(f"{reason} ({count} times)" for reason, count in doubts.most_common())
        yield f"its trust is {trust:.2f}: {why or 'its updates were too long, too short or heavy'}"


def _decided(reader: Reader, run: RunRow, round_: int, *, restore: bool) -> DecidedRound:
    view, selection = reader.plan(run.run_id, round_)
    recipe = recipe_in(run.recipe)
    if recipe is None:
        return DecidedRound(view=view, selection=selection, name="", seed=run.seed)
    policy = _policy_before(reader, run, recipe, round_) if restore else None
    decided = DecidedRound(
        view=view,
        selection=selection,
        name=recipe.policy.name,
        seed=recipe.seed,
        spec=recipe.policy,
        policy=policy,
        parameters=_parameters(recipe),
        free_micro=reader.free_before(run.run_id, round_),
        cap_micro=recipe.budget.per_edge_micro,
        edges=list(reader.edges(run.run_id)),
    )
    return decided if policy is None else _checked(decided, selection)


def _checked(decided: DecidedRound, selection: Selection) -> DecidedRound:
    """Return a round that, solved again, is as it was recorded; else one without a policy."""
    found = decided.again()
    if found is not None and np.array_equal(found.pairs, selection.pairs):
        return decided
    return replace(decided, policy=None)


def _policy_before(
    reader: Reader, run: RunRow, recipe: Recipe, round_: int
) -> SelectionPolicy | None:
    try:
        policies = decision_policies(recipe)
        reader.restore(run.run_id, policies, before=round_)
    except FedagentError:
        return None  # of another version, or damaged: what is recorded is told all the same
    return policies.policy


def _parameters(recipe: Recipe) -> dict[str, object]:
    try:
        return {**parameters(recipe.policy.name), **recipe.policy.params}
    except FedagentError:
        return dict(recipe.policy.params)


def _never_delivers(ordered: int, in_time: int, orders: Sequence[OrderRow]) -> bool:
    """Return whether a device was ordered often, and came in time never."""
    over = sum(one.status not in {"open", "void"} for one in orders)
    return in_time == 0 and min(ordered, over) >= _LEAST


def _told(ordered: int, in_time: int, orders: Sequence[OrderRow]) -> list[str]:
    if not ordered:
        return ["it was never ordered"]
    ends = Counter(WORDS.get(one.status, one.status) for one in orders)
    several = ", ".join(f"{count} {word}" for word, count in ends.most_common())
    said = f"ordered in {ordered} round{'s' if ordered > 1 else ''}, in time in {in_time}"
    given = [f"{said} ({several})" if len(ends) > 1 or not in_time else said]
    reasons = Counter(one.reason for one in orders if one.reason)
    if not in_time and reasons:
        given.append(f"most often: {reasons.most_common(1)[0][0]}")
    return given
