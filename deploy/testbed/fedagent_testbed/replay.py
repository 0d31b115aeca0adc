"""The decisions of a policy over recorded rounds.

Views, prices and budgets are those that were recorded, whatever it would have spent before: only
the policy's own knowledge moves on, by what the log has for pairs that both chose.
The same policy is told everything that was learnt, and decides bit for bit what was recorded.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fedagent_coordinator.books.read import Logged
from fedagent_coordinator.core.decision import exploring, solved
from fedagent_coordinator.core.trust import Trust
from fedagent_coordinator.policies import Feedback, RoundView, Selection, SelectionPolicy
from fedagent_coordinator.policies.base import CLAIM_GAP, IntArray
from fedagent_task.recipe.spec import PolicySpec

_WHOLE = frozenset({"view", "pairs", "opinions"})
"""Fields of a feedback that are no columns of its pairs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replayed:
    """One round, decided again.

    Attributes:
        selection: Of the policy, whose pairs and scores are those of the view it was shown.
        pairs: int64[S], its choices before it explored, as pairs of the recorded view: what is
            estimated must not know whom the recorded run swapped.
    """

    round: Logged
    selection: Selection
    pairs: IntArray

    @property
    def same(self) -> bool:
        """Whether pairs, scores and bounds are those that were recorded, to the bit."""
        mine, its = self.selection, self.round.selection
        return (
            mine.pairs.tobytes() == its.pairs.tobytes()
            and mine.scores.tobytes() == its.scores.tobytes()
            and mine.bound.tobytes() == its.bound.tobytes()
        )

    @property
    def agreed(self) -> int:
        """How many choices were ordered in the recorded round too."""
        return len(np.intersect1d(self.pairs, self.round.selection.pairs))


def replay(
    rounds: Iterable[Logged], policy: SelectionPolicy, *, seed: int, spec: PolicySpec | None = None
) -> Iterator[Replayed]:
    """Yield every recorded round as a policy would decide it; `spec` says how it explores.

    Raises:
        PolicyError: The policy failed, broke a constraint, or needs what was not recorded.
    """
    trust, needs = Trust(), policy.needs
    for one in rounds:
        view = one.view
        if CLAIM_GAP in needs and CLAIM_GAP not in view.feature_names:
            view = trust.seen(view, needs)
        reported = view.reported(needs)
        shown = view if reported.all() else view.take(reported)
        rows = np.flatnonzero(reported).astype(np.int64)
        wanted = solved(policy, shown, seed=seed, free_micro=one.free_micro)
        selection = exploring(shown, wanted, seed, one.free_micro, spec)
        yield Replayed(round=one, selection=selection, pairs=rows[wanted.pairs])
        if one.feedback is not None:
            told = replace(one.feedback, view=view) if view is not one.view else one.feedback
            policy.learn(matched(told, rows, shown, selection.pairs))
            if CLAIM_GAP in needs:
                trust.learn(one.feedback)


def matched(feedback: Feedback, rows: IntArray, shown: RoundView, pairs: IntArray) -> Feedback:
    """Return what was recorded of those of `pairs` that were ordered; in their order.

    The pairs are of the view `shown`, whose pairs are `rows` of the recorded one. The cost of a
    round is known of the same set only; what clients answered to the round's model is kept.
    """
    at = np.full(len(feedback.view.pair_client), -1, dtype=np.int64)
    at[feedback.pairs] = np.arange(len(feedback.pairs))
    where = at[rows[pairs]]
    both = where >= 0
    kept = where[both]
    if len(rows) == len(at) and np.array_equal(rows[pairs], feedback.pairs):
        return feedback if shown is feedback.view else replace(feedback, view=shown)
    columns: dict[str, Any] = {
        one.name: value[kept]
        for one in fields(feedback)
        if one.name not in _WHOLE and isinstance(value := getattr(feedback, one.name), np.ndarray)
    }
    whole = bool(both.all()) and len(kept) == len(feedback.pairs)
    psi = feedback.psi if whole else None
    return replace(feedback, view=shown, pairs=pairs[both], psi=psi, **columns)
