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

    `updates` counts what was paid of an agent in the run, where updates cost privacy.
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
        self.known.update(
            (outcome.agent, outcome.made_in or number)
            for report in reports
            for outcome in report.outcomes
            if outcome.valid
        )
        self.known = {work for work in self.known if number - work[1] < self.rounds}
