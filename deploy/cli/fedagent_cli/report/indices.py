"""By what a policy chose: the indices in the database, and the beliefs that follow from them."""

from collections.abc import Sequence

import numpy as np

from fedagent_coordinator import policies
from fedagent_coordinator.errors import CoordinatorError
from fedagent_coordinator.policies.base import Feedback, RoundView, Selection
from fedagent_coordinator.reader import Reader
from fedagent_task.spec import Recipe

Columns = dict[str, list[tuple[int, float]]]
"""By agent id: (round, value)."""

BELIEVERS = frozenset({"bp-ucb"})
"""Policies that have a belief of each client, and learn from pairs and opinions alone."""
MANY = 4000
"""Rounds that are looked at; the newest of a longer run are left out."""


def read_indices(reader: Reader, run_id: str, rounds: Sequence[int]) -> Columns:
    """Return each client's index in each round, where the policy gave one; by agent id."""
    agents = _agents(reader, run_id)
    found: Columns = {}
    for round_ in rounds[:MANY]:
        view, selection = reader.plan(run_id, round_)
        for client, score in _by_client(view, selection).items():
            found.setdefault(agents[client], []).append((round_, score))
    return found


def read_beliefs(reader: Reader, run_id: str, recipe: Recipe, rounds: Sequence[int]) -> Columns:
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
    agents, opinions = _agents(reader, run_id), _opinions(reader, run_id)
    outcomes: dict[int, list[int]] = {}
    for row in reader.outcomes(run_id):
        outcomes.setdefault(row.round, []).append(row.client)
    found: Columns = {}
    for round_ in rounds[:MANY]:
        view, selection = reader.plan(run_id, round_)
        again = policy.select(view, np.random.default_rng(0))  # only sets are drawn, no index
        if not np.array_equal(again.scores, selection.scores, equal_nan=True):
            break
        played = [pair for pair in selection.pairs if view.pair_client[pair] in outcomes[round_]]
        policy.learn(_feedback(view, played, opinions.get(round_, {})))
        for client, belief in enumerate(policy.state()["belief"].tolist()):
            if client in agents:
                found.setdefault(agents[client], []).append((round_, belief))
    return found


def _agents(reader: Reader, run_id: str) -> dict[int, str]:
    return {row.client: row.agent for row in reader.devices(run_id)}


def _opinions(reader: Reader, run_id: str) -> dict[int, dict[int, float]]:
    found: dict[int, dict[int, float]] = {}
    for row in reader.evaluations.opinions(run_id):
        found.setdefault(row.round, {})[row.client] = row.score
    return found


def _by_client(view: RoundView, selection: Selection) -> dict[int, float]:
    """Return the score of each client's first pair, if the scores tell clients apart."""
    scores = selection.scores
    if len(scores) != len(view.pair_client) or not np.isfinite(scores).any():
        return {}
    clients, first = np.unique(view.pair_client, return_index=True)
    if np.ptp(scores[first]) == 0:
        return {}
    return dict(zip(clients.tolist(), scores[first].tolist(), strict=True))


def _feedback(view: RoundView, played: Sequence[int], opinions: dict[int, float]) -> Feedback:
    """Return what a believer learns from: who played, and the opinions afterwards."""
    count = len(played)
    scores = np.full(len(view.client_price), np.nan)
    for client, score in opinions.items():
        if client < len(scores):
            scores[client] = score
    yes, nan = np.ones(count, dtype=np.bool_), np.full(count, np.nan)
    zeros = np.zeros(count, dtype=np.int64)
    return Feedback(
        view=view,
        pairs=np.array(played, dtype=np.int64),
        X=yes,
        used=yes,
        tau_s=np.zeros(count),
        dt_s=nan,
        lc_s=nan,
        ut_s=nan,
        censored=~yes,
        void=~yes,
        arrivals=zeros,
        num_samples=zeros,
        seconds_per_iteration=nan,
        opinions=scores if opinions else None,
    )
