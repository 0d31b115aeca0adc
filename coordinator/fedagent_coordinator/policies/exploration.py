"""Exploration around any policy: some choices are swapped for near-equals, by known chances.

Each chosen pair is a slot. With probability `share` it wishes for one of its near-equals, each as
likely: a pair at the same edge, of an available client that the policy left out, whose score is
less by `bound` of the slot's own at most, and whose price fits whatever the other slots wish. Slots
take their wishes in the policy's order; one whose client went to a slot before stays as it was.
So every pair's chance to be ordered is known exactly, given what the policy chose.
"""

from dataclasses import replace

import numpy as np

from .base import FloatArray, IntArray, RoundView, Selection
from .selection import explained, spent_per_edge

SWAPPED = "swapped"
"""Note of a selection: how many choices are swapped."""
GIVEN_UP = "exploration_price"
"""Note of a selection: what exploring costs in expectation, in the policy's own scores."""


def explored(
    view: RoundView,
    selection: Selection,
    rng: np.random.Generator,
    *,
    share: float,
    bound: float = 1.0,
    free_micro: int | None = None,
) -> Selection:
    """Return the selection with some choices swapped, and with everybody's propensity.

    `bound` is the share of its score that a swap may give up; where a policy ranks nobody, all
    are equal. A selection that could be paid before still can be.
    """
    if not share:
        return selection
    wishes = _near_equals(view, selection, bound, free_micro)
    chances, cost = _chances(view, selection, wishes, share)
    pairs, taken = selection.pairs.copy(), set[int]()
    for slot, (wants, at) in enumerate(rng.random((len(pairs), 2)).tolist()):
        near = wishes[slot]
        if wants >= share or not len(near):
            continue
        pair = int(near[int(at * len(near))])
        client = int(view.pair_client[pair])
        if client not in taken:
            taken.add(client)
            pairs[slot] = pair
    notes = {**selection.notes, SWAPPED: float(len(taken)), GIVEN_UP: cost}
    if not taken:
        return replace(selection, notes=notes, propensities=chances)
    made = explained(view, pairs, selection.scores, notes)
    return replace(made, propensities=chances)


def _near_equals(
    view: RoundView, selection: Selection, bound: float, free_micro: int | None
) -> list[IntArray]:
    """Return the pairs that each slot may wish for."""
    pairs, scores = selection.pairs, selection.scores
    spent = spent_per_edge(view, pairs)
    slots = np.bincount(view.pair_edge[pairs], minlength=len(spent))
    # What is left is shared out, so that no wish can take another's money.
    spare = [
        (int(budget) - cost) // max(1, int(count))
        for budget, cost, count in zip(view.edge_budget, spent, slots, strict=True)
    ]
    if free_micro is not None and len(pairs):
        most = (free_micro - sum(spent)) // len(pairs)
        spare = [min(one, most) for one in spare]
    out = view.client_available.copy()
    out[view.pair_client[pairs]] = False
    left = np.flatnonzero(out[view.pair_client])
    edge, price = view.pair_edge[left], view.pair_price[left]
    found = []
    for pair in pairs.tolist():
        where, score = int(view.pair_edge[pair]), scores[pair]
        payable = price <= int(view.client_price[view.pair_client[pair]]) + spare[where]
        if np.isnan(score):
            near = np.isnan(scores[left])
        else:
            least = score - bound * abs(score) if np.isfinite(score) else score
            near = scores[left] >= least
        found.append(left[(edge == where) & payable & near])
    return found


def _chances(
    view: RoundView, selection: Selection, wishes: list[IntArray], share: float
) -> tuple[FloatArray, float]:
    """Return float64[P], the chance of every pair to be ordered, and the expected cost."""
    chances, cost = np.zeros(len(view.pair_client)), 0.0
    scores = np.where(np.isfinite(selection.scores), selection.scores, 0.0)
    free = np.ones(len(view.client_price))  # chance that no slot before has taken the client
    for pair, near in zip(selection.pairs.tolist(), wishes, strict=True):
        if not len(near):
            chances[pair] = 1.0
            continue
        client, each = view.pair_client[near], share / len(near)
        taken = each * free[client]
        chances[near] += taken
        chances[pair] = 1.0 - float(taken.sum())
        cost += float((taken * (scores[pair] - scores[near])).sum())
        free[client] -= taken  # a slot sees a client once: it has one pair at an edge
    return chances, cost
