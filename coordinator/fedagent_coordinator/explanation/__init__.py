"""Why a device was, or was not, selected in a round."""

from .account import Change, Constraint, Ended, Expert, Explanation, Score
from .binding import change_text
from .decided import DecidedRound
from .explain import explain, explained_round
from .nearest import nearest_changes

__all__ = [
    "Change",
    "Constraint",
    "DecidedRound",
    "Ended",
    "Expert",
    "Explanation",
    "Score",
    "change_text",
    "explain",
    "explained_round",
    "nearest_changes",
]
