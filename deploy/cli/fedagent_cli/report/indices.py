"""By what a policy chose: the indices in the database, and the beliefs that follow from them."""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from fedagent_coordinator import policies
from fedagent_coordinator.books.reader import Reader
from fedagent_coordinator.errors import CoordinatorError
from fedagent_coordinator.policies.base import RoundView, Selection
from fedagent_task.recipe.spec import Recipe

Columns = dict[str, list[tuple[int, float]]]
"""By agent id: (round, value)."""

BELIEVERS = frozenset({"bp-ucb"})
"""Policies that have a belief of each client, and draw no index by chance."""
MANY = 4000
"""Rounds that are looked at; the newest of a longer run are left out."""


def read_indices(reader: Reader, run_id: str, rounds: Sequence[int]) -> Columns:
    """Return each client's index in each round, where the policy gave one; by agent id."""
    agents = _agents(reader, run_id)
    found: Columns = {}
    pruned = reader.closed_until(run_id)
    for round_ in [number for number in rounds if number > pruned][:MANY]:
        for client, score in _by_client(*reader.plan(run_id, round_)).items():
            found.setdefault(agents[client], []).append((round_, score))
    return found


def read_beliefs(reader: Reader, run_id: str, recipe: Recipe) -> Columns:
    """Return each client's belief after each round, by agent id.

    The database does not hold beliefs. A new policy of the same name learns what was stored, and
    must come to the very indices in the database; where it does not (a coordinator that was
    killed has lost opinions), nothing is shown from there on.
    """
    if recipe.policy.name not in BELIEVERS:
        return {}
    try:
        policy = policies.create(recipe.policy.name, **recipe.policy.params)
    except CoordinatorError:
        return {}
    agents = _agents(reader, run_id)
    found: Columns = {}
    for feedback in islice(reader.learnt(run_id), MANY):
        view = feedback.view
        _, selection = reader.plan(run_id, view.round)
        again = policy.select(view, np.random.default_rng(0))  # only sets are drawn, no index
        if not np.array_equal(again.scores, selection.scores, equal_nan=True):
            break
        policy.learn(feedback)
        for client, belief in enumerate(policy.state()["belief"].tolist()):
            if client in agents:
                found.setdefault(agents[client], []).append((view.round, belief))
    return found


def _agents(reader: Reader, run_id: str) -> dict[int, str]:
    return {row.client: row.agent for row in reader.devices(run_id)}


def _by_client(view: RoundView, selection: Selection) -> dict[int, float]:
    """Return the score of each client's first pair, if the scores tell clients apart."""
    scores = selection.scores
    if len(scores) != len(view.pair_client) or not np.isfinite(scores).any():
        return {}
    clients, first = np.unique(view.pair_client, return_index=True)
    if np.ptp(scores[first]) == 0:
        return {}
    return dict(zip(clients.tolist(), scores[first].tolist(), strict=True))
