"""What a policy may learn of a recorded round: what the log has for pairs that both chose."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from fedagent_coordinator.policies import Feedback, RoundView
from fedagent_coordinator.policies.base import IntArray

_WHOLE = frozenset({"view", "pairs", "opinions"})
"""Fields of a feedback that are no columns of its pairs."""


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
