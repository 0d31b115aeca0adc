"""`random`: a uniformly random order of pairs, filled into the budgets."""

import numpy as np

from .base import Feedback, RoundView, Selection, State, checked_state
from .selection import explained, fill
from .slots import LAYOUT, Slot, check_set, take

_NAME = "random"


class RandomPolicy:
    """Take visible pairs in random order while they fit (COCS, baseline 4; GDA).

    Args:
        slot_rounds: L, rounds with one set of clients; each slot draws anew.
    """

    needs: frozenset[str] = frozenset()

    def __init__(self, *, slot_rounds: int = 1) -> None:
        check_set(_NAME, clients_per_round=1, slot_rounds=slot_rounds)
        self._slot = Slot(slot_rounds)

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round; the score of a pair is minus its place in the draw."""
        running = self._slot.running
        if len(running):
            return explained(view, take(view, running, len(running)))
        order = rng.permutation(len(view.pair_client)).astype(np.int64)
        scores = np.empty(len(order))
        scores[order] = -np.arange(len(order), dtype=np.float64)
        return explained(view, fill(view, order), scores)

    def learn(self, feedback: Feedback) -> None:
        """Count the round; nothing else is learnt."""
        self._slot.advance(feedback)

    def state(self) -> State:
        """Return where the slot stands."""
        return self._slot.state()

    def restore(self, state: State) -> None:
        """Continue from `state` exactly.

        Raises:
            StateError: The state is another policy's, or of other slots.
        """
        self._slot.restore(_NAME, checked_state(_NAME, state, LAYOUT))
