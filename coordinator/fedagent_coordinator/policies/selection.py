"""Constraints of a round: fill budgets in an order, check, and explain.

One client trains at one edge at most, each edge pays from its own budget of the
round, and only visible pairs of available clients count (P2's constraints).
"""

from collections.abc import Mapping

import numpy as np

from fedagent_coordinator.errors import InvalidViewError, PolicyError

from .base import MAX_MICRO, Bound, FloatArray, IntArray, RoundView, Selection

_TIE = 1e-10


def fill(view: RoundView, order: IntArray, *, budgets: IntArray | None = None) -> IntArray:
    """Walk pairs in `order` and take each that still fits; return all taken, int64[S].

    Unavailable ones are skipped. `budgets`, int64[M], take the place of the edges' own.
    """
    taken, busy = list[int](), set[int]()
    budget = (view.edge_budget if budgets is None else budgets).tolist()
    candidates = order[view.client_available[view.pair_client[order]]]
    for pair, (client, edge, price) in zip(
        candidates.tolist(), _rows(view, candidates), strict=True
    ):
        if client not in busy and price <= budget[edge]:
            busy.add(client)
            budget[edge] -= price
            taken.append(pair)
    return np.asarray(taken, dtype=np.int64)


def by_chance(value: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return the values with ties broken by chance, moved by less than anything that counts."""
    moved = rng.random(len(value))
    moved *= _TIE
    moved += 1.0
    moved *= value
    return moved


def spent_per_edge(view: RoundView, pairs: IntArray) -> list[int]:
    """Return what these pairs cost at each edge, exact at any size."""
    spent = [0] * len(view.edge_budget)
    for _, edge, price in _rows(view, pairs):
        spent[edge] += price
    return spent


def check_view(view: RoundView) -> None:
    """Raise `InvalidViewError` for a pair that is there twice; the rest is checked when built."""
    edges = max(len(view.edge_budget), 1)
    keys = view.pair_client.astype(np.int64) * edges + view.pair_edge
    if len(np.unique(keys)) != len(keys):
        raise InvalidViewError("pair_client", "has the same client-edge pair twice")


def check_selection(view: RoundView, pairs: IntArray) -> None:
    """Raise `PolicyError` for a selection that breaks a constraint of the round."""
    outside = (pairs < 0) | (pairs >= len(view.pair_client))
    if outside.any():
        pair = int(pairs[np.argmax(outside)])
        raise PolicyError(f"selection breaks visible at {pair}: no such pair")
    idle = ~view.client_available[view.pair_client[pairs]]
    if idle.any():
        pair = int(pairs[np.argmax(idle)])
        client = int(view.pair_client[pair])
        raise PolicyError(f"selection breaks available at {pair}: client {client} is not available")
    chosen = view.pair_client[pairs]
    if len(set(chosen.tolist())) < len(chosen):
        clients, first, count = np.unique(chosen, return_index=True, return_counts=True)
        at = int(np.argmax(count > 1))
        raise PolicyError(
            f"selection breaks one_edge_per_client at {int(pairs[first[at]])}: "
            f"client {int(clients[at])} is chosen {int(count[at])} times"
        )
    for edge, spent in enumerate(spent_per_edge(view, pairs)):
        if spent > int(view.edge_budget[edge]):
            raise PolicyError(
                f"selection breaks edge_budget at {edge}: "
                f"costs {spent} of {int(view.edge_budget[edge])}"
            )


def explained(
    view: RoundView,
    pairs: IntArray,
    scores: FloatArray | None = None,
    notes: Mapping[str, float] | None = None,
) -> Selection:
    """Return the selection of `pairs` with the constraint that bound each pair."""
    spent = spent_per_edge(view, pairs)
    left = np.array(
        [max(b - s, -1) for b, s in zip(view.edge_budget.tolist(), spent, strict=True)],
        dtype=np.int64,
    )
    # Whom no edge can pay any more, or every one still can, needs no look at its pairs.
    dear = view.client_price > left.max(initial=-1)
    why = np.where(dear, np.int8(Bound.EDGE_BUDGET), np.int8(Bound.RANK))
    why[view.pair_client[pairs]] = Bound.CLIENT_TAKEN
    why[~view.client_available] = Bound.UNAVAILABLE
    bound = view.of_client(why)
    unsure = (why == Bound.RANK) & (view.client_price > left.min(initial=MAX_MICRO))
    if unsure.any():
        rows = np.flatnonzero(view.of_client(unsure))
        bound[rows[view.prices(rows) > left[view.pair_edge[rows]]]] = Bound.EDGE_BUDGET
    bound[pairs] = Bound.CHOSEN
    if scores is None:
        scores = np.full(len(view.pair_client), np.nan)
    return Selection(pairs=pairs, scores=scores, bound=bound, notes=notes or {})


def _rows(view: RoundView, pairs: IntArray) -> "zip[tuple[int, int, int]]":
    clients = view.pair_client[pairs]
    return zip(
        clients.tolist(),
        view.pair_edge[pairs].tolist(),
        view.client_price[clients].tolist(),
        strict=True,
    )
