"""The decisions of a policy over recorded rounds.

Views, prices and budgets are those that were recorded, whatever it would have spent before: only
the policy's own knowledge moves on, by what the log has for pairs that both chose (`matching`).
The same policy is told everything that was learnt, and decides bit for bit what was recorded.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedagent_coordinator.core.claims import ClaimGaps
from fedagent_coordinator.core.decision import exploring, solved
from fedagent_coordinator.database.rounds import Logged
from fedagent_coordinator.policies import Selection, SelectionPolicy
from fedagent_coordinator.policies.base import CLAIM_GAP, IntArray
from fedagent_task.spec import PolicySpec

from .matching import matched


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
    gaps, needs = ClaimGaps(), policy.needs
    for one in rounds:
        view = one.view
        if CLAIM_GAP in needs and CLAIM_GAP not in view.feature_names:
            view = gaps.shown(view)
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
                gaps.learn(one.feedback)
