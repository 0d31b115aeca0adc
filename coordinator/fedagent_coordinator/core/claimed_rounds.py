"""Rounds that edges say they were ordered and the books do not know: these are of a backup."""

from dataclasses import dataclass

MOST_SKIPPED = 10_000
"""Edges are believed that so many rounds were ordered since a backup; of one start, in all."""


@dataclass(slots=True)
class ClaimedRounds:
    """Up to which round numbers are used, by the books and then by the word of edges.

    Each claim that is believed skips as many numbers at least as all before it: some fifteen
    reach `MOST_SKIPPED`, so that no edge, and no crowd of them, has all others asked anew for ever.
    """

    before: int
    skipped: int = 0

    def are_news(self, round_: int, newest: int) -> bool:
        """Return whether a claim goes beyond `newest`, the newest round of this start."""
        return round_ > max(newest, self.before)

    def believe(self, round_: int, newest: int) -> bool:
        """Skip the numbers up to a round; False if those are more than may have been lost."""
        former, room = max(newest, self.before), MOST_SKIPPED - self.skipped
        if round_ - former > room:
            return False
        more = min(max(round_ - former, self.skipped), room)
        self.before = former + more
        self.skipped += more
        return True
