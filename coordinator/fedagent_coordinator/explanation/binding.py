"""What kept a device out of a round, and that in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.books.rows import OrderRow
from fedagent_coordinator.policies.adaptive.policy import HARDLY
from fedagent_coordinator.policies.base import Bound
from fedagent_protocol.errors import credits_text
from fedagent_protocol.messages import UNANSWERED

from .account import Change, Constraint, Kind, State
from .decided import DecidedRound

_QUEUED = frozenset({"fair", "rbcs-f"})


@dataclass(frozen=True, slots=True)
class Binding:
    """How a device stood, what bound, and why in plain sentences."""

    state: State
    constraint: Constraint
    reasons: Sequence[str]


def binding(
    decided: DecidedRound,
    client: int,
    names: Mapping[str, str],
    values: Mapping[str, np.ndarray],
    orders: Sequence[OrderRow] = (),
) -> Binding:
    """Return what bound a client.

    `names` are of edges by id, `values` what its policy knows, `orders` the client's until then.
    """
    view = decided.view
    pair = decided.best_pair(client) if client < len(view.client_price) else None
    if pair is None:
        text = (
            "no edge reported the device in this round, or not with the features that the "
            "policy needs"
        )
        return Binding("not_visible", Constraint(kind="visibility"), [text])
    edge_id = decided.edge_id(int(view.pair_edge[pair]))
    where = names.get(edge_id) or edge_id
    if decided.chosen_pair(client) is not None:
        place = decided.selection.pairs.tolist().index(pair) + 1
        text = f"selected at edge {where}, choice {place} of {len(decided.selection.pairs)}"
        return Binding("selected", Constraint(edge=edge_id), [text, *_chosen_by(decided, place)])
    if not view.client_available[client]:
        text = _left_out(decided.view.round, orders)
        return Binding("unavailable", Constraint(kind="availability"), [text])
    return _unselected(decided, client, pair, (edge_id, where), values)


def _left_out(round_: int, orders: Sequence[OrderRow]) -> str:
    """Return why a client was not available, by how its last order before the round ended."""
    last = max((one for one in orders if one.round < round_), key=lambda o: o.round, default=None)
    own = "the device said that it would not train"
    if last is not None and last.reason == UNANSWERED:
        return (
            f"{own}, or was left out for up to 30 s because it did not answer its order of round "
            f"{last.round}: it was probably switched off or crashed"
        )
    if last is not None and last.status == "declined":
        return (
            f"{own}, or was left out for up to 30 s because it declined its order of round "
            f"{last.round}"
        )
    return own


def _unselected(
    decided: DecidedRound,
    client: int,
    pair: int,
    at: tuple[str, str],
    values: Mapping[str, np.ndarray],
) -> Binding:
    view, (edge_id, where) = decided.view, at
    price, budget = int(view.client_price[client]), int(view.edge_budget[view.pair_edge[pair]])
    edges = view.pair_edge[decided.pairs_of(client)]
    if (view.edge_budget[edges] < price).all():
        text = (
            f"its price of {credits_text(price)} credits is above the budget of edge {where} for a "
            f"round, {credits_text(budget)}"
        )
        bound = Constraint(kind="edge_budget", edge=edge_id, limit=budget, used=price)
        return Binding("unaffordable", bound, [text])
    chosen = decided.selection.pairs
    spent = int(view.pair_price[chosen].sum())
    free = decided.free_micro
    if free is not None and spent + price > free:
        text = (
            f"the run had {credits_text(free)} credits left; the selected clients ask "
            f"{credits_text(spent)}, this one asks {credits_text(price)}"
        )
        return Binding(
            "not_selected", Constraint(kind="run_budget", limit=free, used=spent), [text]
        )
    most, size = decided.parameters.get("clients_per_round"), len(chosen)
    kind, text = _wanted(decided, pair, values)
    if kind == "rank" and isinstance(most, int) and 0 < most <= size:
        text = f"the round was full: {size} of {most} clients were selected before it"
        bound = Constraint(kind="clients_per_round", limit=most, used=size)
        return Binding("not_selected", bound, [text])
    bounds = decided.selection.bound[decided.pairs_of(client)]
    if kind == "rank" and (bounds == Bound.EDGE_BUDGET).all():
        here = chosen[view.pair_edge[chosen] == view.pair_edge[pair]]
        used = int(view.pair_price[here].sum())
        text = (
            f"edge {where} spent {credits_text(used)} of {credits_text(budget)} credits on "
            f"{len(here)} clients before it: its price of {credits_text(price)} no longer fitted"
        )
        bound = Constraint(kind="edge_budget", edge=edge_id, limit=budget, used=used)
        return Binding("not_selected", bound, [text])
    return Binding("not_selected", Constraint(kind=kind, edge=edge_id), [text])


def _wanted(decided: DecidedRound, pair: int, values: Mapping[str, np.ndarray]) -> tuple[Kind, str]:
    """Return why the policy preferred other clients, by what it noted of the round."""
    notes, scores, last = (
        decided.selection.notes,
        decided.selection.scores,
        decided.last_chosen(pair),
    )
    if decided.name == "adaptive" and len(scores) and scores[pair] < HARDLY * scores.max():
        trust = decided.view.trust
        trusted = 1.0 if trust is None else float(trust[decided.view.pair_client[pair]])
        forecast = scores[pair] / max(trusted, 1e-9)
        text = f"the policy predicts a chance of {forecast:.1%} that it delivers in time"
        if forecast < HARDLY * scores.max():
            return "deadline", f"{text}, which is not worth waiting for"
        return "trust", f"{text}, of which its trust leaves {scores[pair]:.1%}"
    queue = values.get("queue")
    if (
        decided.name in _QUEUED
        and queue is not None
        and last is not None
        and queue[last] > queue[pair]
    ):
        return "fairness_queue", (
            f"other clients are owed more rounds: its fairness queue is {queue[pair]:.2f}, that "
            f"of the last selected {queue[last]:.2f}"
        )
    new = values.get("has yet to train")
    if notes.get("cold") and (new is None or not new[pair]):
        return (
            "cold_start",
            "the cold start is still running: clients that have not trained yet come first",
        )
    if notes.get("explore") and last is not None and np.isnan(scores[last]):
        return "exploration", "the policy explored: it tried other clients that it knows less about"
    if notes.get("slot") and np.isnan(scores).all() and not notes.get("explore"):
        return "slot", "a slot is in progress, and its clients stay the same until it ends"
    if last is not None and np.isfinite(scores[[pair, last]]).all():
        return "rank", (
            f"the policy preferred other clients: its score is {scores[pair]:.3g}, that of the "
            f"last selected {scores[last]:.3g}"
        )
    return (
        "rank",
        "the policy preferred other clients"
        if last is not None
        else "the policy selected no client",
    )


def _chosen_by(decided: DecidedRound, place: int) -> list[str]:
    notes = decided.selection.notes
    if notes.get("cold"):
        return ["the cold start is still running: clients that have not trained yet come first"]
    if notes.get("explore"):
        return ["the policy explored in this round"]
    if place <= notes.get("probes", 0.0):
        return ["it was ordered to try it, from the share of the edge's budget that is for this"]
    return []


def change_text(change: Change, names: Mapping[str, str]) -> str:
    """Return one line on a change that would have selected the device."""
    where = names.get(change.edge) or change.edge
    if change.what == "availability":
        return "the device being available"
    if change.what in {"price", "budget", "run_budget"}:
        before, to = credits_text(change.before), credits_text(change.to)
        what = {"budget": f"a budget of edge {where}", "run_budget": "a budget of the run"}
        way = "or less" if change.to < change.before else "or more"
        return f"{what.get(change.what, 'a price')} of {to} credits {way} instead of {before}"
    of, scale = ("a compute", 1.0) if change.what == "compute" else (f"rates to edge {where}", 1e6)
    unit = "" if change.what == "compute" else " Mbit/s"
    ends = f"{change.before / scale:.3g} to {change.to / scale:.3g}{unit}"
    return f"{of} {change.factor:.3g} times as high, {ends}"
