"""`fair`: a guaranteed share of rounds for every client, around any other policy.

The inner policy decides first; then all pairs are ranked by V [the inner policy chose the
pair] + Z of its client, RBCS-F's queue of rounds it is owed (ALGORITHMS section 4): the greedy
drift-plus-penalty rule for a reward of 1 per inner choice. The guarantee, and the parameters:
docs/policies/fair.md.
"""

import math

import numpy as np

from fedagent_protocol.registry import require

from . import create
from .base import Aspects, Explains, Feedback, RoundView, Selection, SelectionPolicy
from .fastest import affordable
from .rbcs_f import FairnessQueues
from .selection import explained, fill
from .state import ArrayState


class FairPolicy(ArrayState):
    """The fairness queue around another policy.

    Raises:
        ParameterError: A parameter is out of range; from the first `select`, `beta`
            asks for more than `clients_per_round`, or than the budgets pay of them.
    """

    name = "fair"
    parts = ("_queues",)
    prefixed = (("inner.", "_inner"),)

    def __init__(
        self,
        *,
        policy: str | SelectionPolicy = "cheapest",
        beta: float = 0.15,
        V: float = 1.0,  # noqa: N803 - the paper's name, and the recipe's
        clients_per_round: int | None = None,
        freeze_after: int = 50,
    ) -> None:
        require(self.name, "V", V, 0 <= V < math.inf, ">= 0")
        known = clients_per_round is None or clients_per_round >= 1
        require(self.name, "clients_per_round", clients_per_round, known, ">= 1")
        self._inner = create(policy) if isinstance(policy, str) else policy
        self._v, self._clients_per_round = V, clients_per_round
        self._queues = FairnessQueues(self.name, beta=beta, freeze_after=freeze_after)

    @property
    def needs(self) -> frozenset[str]:
        """What the inner policy needs."""
        return self._inner.needs

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Let the inner policy decide, then serve the queues; the score is V [chosen] + Z."""
        if self._clients_per_round is not None:
            self._queues.require_room(view, self._clients_per_round)
        inner = self._inner.select(view, rng)
        queue = self._queues.lengths(len(view.client_price))
        scores = queue[view.pair_client]
        scores[inner.pairs] += self._v
        rows = affordable(view)
        preferred = np.nan_to_num(-inner.scores[rows], nan=np.inf)
        order = rows[np.lexsort((rng.random(len(rows)), preferred, -scores[rows]))]
        most = self._clients_per_round or max(len(inner.pairs), self._queues.due(view))
        pairs = fill(view, order)[:most]
        notes = {
            **inner.notes,
            "fair_queue_max": float(queue.max(initial=0.0)),
            "over_capacity": float(
                self._queues.over_capacity(view, self._clients_per_round, len(pairs))
            ),
            "fair_replaced": float(len(np.setdiff1d(inner.pairs, pairs))),
        }
        return explained(view, pairs, scores, notes)

    def aspects(self, view: RoundView) -> Aspects:
        """Return the fairness queue, and what the inner policy knows."""
        queue = self._queues.lengths(len(view.client_price))[view.pair_client]
        inner: object = self._inner
        found = inner.aspects(view) if isinstance(inner, Explains) else {}
        return {**found, "queue": queue}

    def learn(self, feedback: Feedback) -> None:
        """Let the inner policy learn from what was played, then move the queues."""
        self._inner.learn(feedback)
        self._queues.step(feedback)
