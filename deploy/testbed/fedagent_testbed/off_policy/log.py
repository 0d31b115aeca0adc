"""What of a recorded round counts for an estimate."""

from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.database.rounds import Logged
from fedagent_coordinator.policies import RoundView
from fedagent_coordinator.policies.base import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choices:
    """Another policy's choices in a round, beside those that were recorded.

    Attributes:
        pairs: int64[S], its choices; `chance` float64[S], with which the log ordered each.
        ordered: int64[K], whom the log ordered; `in_time` float64[K], 1 for an update in time.
    """

    view: RoundView
    pairs: IntArray
    chance: FloatArray
    ordered: IntArray
    in_time: FloatArray

    def of_pairs(self) -> FloatArray:
        """Return float64[S], 1 or 0 for a choice that was ordered, NaN for one that was not."""
        known = np.full(len(self.view.pair_client), np.nan)
        known[self.ordered] = self.in_time
        return np.asarray(known[self.pairs], dtype=np.float64)


def choices_of(round_: Logged, pairs: IntArray) -> Choices | None:
    """Return what counts of a round; None of one that was voided.

    A run that does not explore ordered whom it chose with certainty, and nobody else.
    """
    if round_.feedback is None:
        return None
    chance = round_.selection.propensities
    if chance is None:
        chance = np.zeros(len(round_.view.pair_client))
        chance[round_.selection.pairs] = 1.0
    return Choices(
        view=round_.view,
        pairs=pairs,
        chance=chance[pairs],
        ordered=round_.feedback.pairs,
        in_time=round_.feedback.X.astype(np.float64),
    )
