"""`volunteers`: whoever has volunteered, as far as the budgets go.

For runs in which clients agree among themselves who trains (docs/democratized.md). More or
fewer may volunteer than were wanted; the budgets hold whoever does.
"""

import numpy as np

from fedagent_coordinator.errors import ParameterError

from .base import MAX_COUNT, VOLUNTEERS, RoundView, Selection, StatelessPolicy
from .selection import explained
from .slots import take

_NAME = "volunteers"


class VolunteersPolicy(StatelessPolicy):
    """Take volunteers in random order while they fit; nobody else.

    Args:
        clients_per_round: How many at most; 0 for all that fit.
    """

    needs: frozenset[str] = frozenset({VOLUNTEERS})

    def __init__(self, *, clients_per_round: int = 0) -> None:
        if not 0 <= clients_per_round <= MAX_COUNT:
            raise ParameterError(
                _NAME, "clients_per_round", f"is {clients_per_round}: must be in 0..{MAX_COUNT}"
            )
        self._most = clients_per_round

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round; where not all fit, chance decides, because nothing else is known."""
        volunteers = np.flatnonzero(view.known_volunteers()).astype(np.int64)
        clients = rng.permutation(volunteers)
        pairs = take(view, clients, self._most or len(clients))
        return explained(view, pairs, notes={"volunteers": float(len(volunteers))})
