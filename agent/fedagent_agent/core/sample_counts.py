"""Samples that were not learnt from, by reason, over all streams that were opened."""

from collections import Counter
from collections.abc import Mapping

_WORDS = {
    "dropped": "{n} samples were dropped: more came than the stream's buffer holds",
    "not_learnt": "{n} samples were not learnt from: others took their place",
    "strsaga_replaced": "minibatch takes the place of strsaga: the model is a neural network",
    "rotated": "the stream's file was begun anew, {n} times",
    "truncated": "the stream's file became shorter, {n} times",
    "skipped_bytes": "{n} bytes were skipped: the stream's file grew faster than it was read",
}


class SampleCounts:
    """Sums counters that begin at 0 with every stream that is opened."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._last: Mapping[str, int] = {}

    def note(self, counters: Mapping[str, int]) -> bool:
        """Take in what a training counted since its stream was opened; tell whether it is more."""
        before = self.totals.copy()
        for reason, n in counters.items():
            last = self._last.get(reason, 0)
            # Fewer than before: the stream was opened anew, and all of them are new.
            self.totals[reason] += n - last if n >= last else n
        self._last = dict(counters)
        return self.totals != before


def in_words(reason: str, n: int) -> str:
    """Return one line for people."""
    return _WORDS.get(reason, "{n} samples were refused: {reason}").format(n=n, reason=reason)
