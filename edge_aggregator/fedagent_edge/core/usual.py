"""What is usual at an edge, and what that makes of a round's updates at its close."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedagent_task.aggregation import Contribution, Weighed
from fedagent_task.aggregation.alignment import OPPOSED, doubts, gram_of, judged
from fedagent_task.aggregation.alignment import remembered as alignments_after
from fedagent_task.aggregation.bounds import Bounds, Term, Told, remembered, settled, told_of
from fedagent_task.aggregation.robust import Robust
from fedagent_task.aggregation.sketch import Floats

from .weighing import Weighing


@dataclass(slots=True)
class Scrutiny:
    """What is known of an update in the sum.

    Attributes:
        place: Its place in the order in which updates came.
        term: Its place in the sum, plain before the close.
    """

    place: int
    told: Contribution
    control_norm: float
    sketch: Floats | None
    term: Term


@dataclass(slots=True)
class Usual:
    """What an edge remembers of its run: the newest updates, and how its devices were aligned."""

    told: tuple[Told, ...] = ()
    alignments: Mapping[str, float] = field(default_factory=dict)
    _before: tuple[Robust, tuple[Told, ...], Bounds] | None = field(
        default=None, repr=False, compare=False
    )
    """What rounds before tell, which each update of a round is held against."""

    def is_long(self, weighing: Weighing, one: Scrutiny) -> bool:
        """Whether an update will have to wait for the close, as far as rounds before tell."""
        rule = weighing.robust
        if not rule.streams:
            return True
        bounds = self._bounds(rule)
        long = one.told.norm > bounds.norm > 0 or one.control_norm > bounds.control_norm > 0
        return long or bounds.believed(one.told) != one.told

    def _bounds(self, rule: Robust) -> Bounds:
        known = self._before
        if known is None or known[0] is not rule or known[1] is not self.told:
            bounds = Bounds.of((), self.told, clip=rule.clip, cap=rule.cap)
            known = self._before = (rule, self.told, bounds)
        return known[2]

    def settle(
        self, weighing: Weighing, round_: Mapping[str, Scrutiny]
    ) -> dict[str, tuple[Weighed, Term, str]]:
        """Return how updates weigh once all are known, and why one is left out; remember them."""
        rule, names = weighing.robust, list(round_)
        asked = [(one.told, one.control_norm) for one in round_.values()]
        found = settled(rule, weighing.weigh, asked, self.told)
        self.told = remembered(self.told, [told_of(*one) for one in asked])
        why = self._doubts(round_) if rule.directions else [""] * len(names)
        return {
            name: (Weighed(0.0, 0.0) if reason == OPPOSED else weighed, term, reason)
            for name, (weighed, term), reason in zip(names, found, why, strict=True)
        }

    def _doubts(self, round_: Mapping[str, Scrutiny]) -> list[str]:
        """Return why updates are doubted, of those that have sketches."""
        known = {name: one for name, one in round_.items() if one.sketch is not None}
        if not known:
            return [""] * len(round_)
        gram = gram_of([one.sketch for one in known.values() if one.sketch is not None])
        before = np.array([self.alignments.get(name, np.nan) for name in known])
        now, against = judged(gram, before)
        self.alignments = alignments_after(self.alignments, list(known), now)
        why = dict(zip(known, doubts(gram, now, against), strict=True))
        return [why.get(name, "") for name in round_]
