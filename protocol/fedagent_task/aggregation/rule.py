"""Which of a round's updates are used: the edge's rule.

ALGORITHMS section 1. Times are seconds since the order, or since any other instant that limits
and updates share. A live edge asks update by update (`counts`, `is_over`), a study at once
(`settle`); both come to the same.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a round ended at one edge; arrays follow the updates."""

    in_time: npt.NDArray[np.bool_]  # bool[n], X: it came before the deadline
    used: npt.NDArray[np.bool_]  # bool[n], it is in the aggregate; none is if there were not enough
    known: npt.NDArray[np.bool_]  # bool[n], it came while the edge waited, and is paid
    wait_s: float  # when the edge stopped waiting for those that had not come


@dataclass(frozen=True, slots=True)
class RoundRule:
    """The limits of a round at one edge (eq. 6); `min_updates` is Z."""

    deadline_s: float
    max_wait_s: float
    min_updates: int = 1

    @property
    def give_up_s(self) -> float:
        """When waiting ends without enough updates."""
        return max(self.deadline_s, self.max_wait_s)

    def enough(self, ordered: int) -> int:
        """Return Z_eff: how many updates an aggregate of so many ordered clients needs."""
        return max(1, min(self.min_updates, ordered))

    def counts(self, tau_s: float, *, used: int, ordered: int) -> bool:
        """Return whether an update that came at `tau_s` joins a sum of `used` others."""
        missing = used < self.enough(ordered)
        return tau_s <= self.deadline_s or (missing and tau_s <= self.give_up_s)

    def is_over(self, now_s: float, *, used: int, ordered: int, slack_s: float = 0.0) -> bool:
        """Return whether nobody is waited for any more, with `used` updates in the sum.

        `slack_s` is how long what came before a limit may take to be seen.
        """
        if now_s <= self.deadline_s + slack_s:
            return False
        return used >= self.enough(ordered) or now_s > self.give_up_s + slack_s

    def settle(self, tau_s: npt.NDArray[np.float64]) -> Settlement:
        """Return how a round ends whose updates come at float64[n]; infinite for never."""
        in_time = tau_s <= self.deadline_s
        used, wait_s, wanted = in_time, self.deadline_s, self.enough(len(tau_s))
        if int(in_time.sum()) < wanted <= len(tau_s):
            first = np.argsort(tau_s, kind="stable")[:wanted]
            last_s = float(tau_s[first[-1]])
            used = np.zeros(len(tau_s), dtype=np.bool_)
            used[first] = last_s <= self.give_up_s
            wait_s = min(last_s, self.give_up_s)
        return Settlement(in_time, used, tau_s <= wait_s, wait_s)
