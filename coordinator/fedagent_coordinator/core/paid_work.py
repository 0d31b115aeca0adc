"""Which work of the newest rounds was paid, so that none is paid again as late (ADR 33)."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from fedagent_protocol.messages import Outcome, RoundReport

Work = tuple[str, int]
"""An agent, and the round in which it began the work."""


@dataclass(slots=True)
class PaidWork:
    """Work that was paid within the last `rounds`, for which late work is taken.

    `updates` counts all of an agent in the run: what they cost it in privacy, it cannot forget.
    """

    rounds: int
    known: set[Work] = field(default_factory=set)
    updates: Counter[str] = field(default_factory=Counter)

    def refuses(self, outcome: Outcome, number: int) -> bool:
        """Whether an outcome of a round is of work that is too old, or was paid already."""
        made_in = outcome.made_in
        if not made_in:
            return False
        return not 0 < number - made_in <= self.rounds or (outcome.agent, made_in) in self.known

    def settled(self, number: int, reports: Iterable[RoundReport]) -> None:
        """Remember what a round has paid."""
        paid = [one for report in reports for one in report.outcomes if one.valid]
        self.updates.update(one.agent for one in paid)
        self.known.update((one.agent, one.made_in or number) for one in paid)
        self.known = {work for work in self.known if number - work[1] < self.rounds}
