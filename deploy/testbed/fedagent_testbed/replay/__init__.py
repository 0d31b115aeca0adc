"""Another policy over the rounds of a recorded run, in virtual time: decisions only."""

from .decisions import Replayed, replay
from .matching import matched

__all__ = ["Replayed", "matched", "replay"]
