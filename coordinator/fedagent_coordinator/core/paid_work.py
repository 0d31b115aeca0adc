"""Which work was paid already, and what a report is without the work that nobody has signed."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import structs

from fedagent_protocol.messages import Outcome, OutcomeStatus, RoundReport
from fedagent_protocol.signed import is_proved

BAD_CLAIM = "bad_claim"
"""Why an update is not paid that no signature of its agent shows, and its edge's model not used."""
Work = tuple[str, int]
"""An agent, and the round in which it began the work."""


@dataclass(slots=True)
class PaidWork:
    """Which work of the last `rounds` was paid, so that none is paid again as late (ADR 33).

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


def proved(report: RoundReport, *, run: str, edge: str, task: str, paid: PaidWork) -> RoundReport:
    """Return a report without what its agents did not sign, or were `paid` for already.

    An edge that used it has failed.
    """

    def checked(outcome: Outcome) -> Outcome:
        if not (outcome.valid or outcome.used or outcome.in_time):
            return outcome
        signed = is_proved(outcome, run=run, round_=report.round, edge=edge, task=task)
        if signed and not paid.refuses(outcome, report.round):
            return outcome
        return Outcome(
            agent=outcome.agent,
            status=OutcomeStatus.REJECTED,
            tau_ms=outcome.tau_ms,
            reason=BAD_CLAIM,
        )

    outcomes = tuple(map(checked, report.outcomes))
    if outcomes == report.outcomes:
        return report
    return structs.replace(report, outcomes=outcomes, failed=BAD_CLAIM)
