"""One observation: who was asked, who answered, and who still lacks the global model."""

from dataclasses import dataclass, field

from .edges import EdgeSession
from .observe import Observation

REOPEN_S = 0.25


@dataclass(slots=True)
class PendingObservation:
    """Waiting for the columns of all edges.

    Attributes:
        opened_at: When the edges were asked this time.
        reopen_at: When those that are not ready are asked again.
        answers: The newest answer of each edge, by id.
    """

    opened_at: float
    reopen_at: float
    answers: dict[str, Observation] = field(default_factory=dict)

    def ready(self, live: list[EdgeSession]) -> list[EdgeSession]:
        """Return the edges that answered and hold the model they should hold."""
        return [edge for edge in live if self._has_model(edge)]

    def lacking(self, live: list[EdgeSession]) -> list[EdgeSession]:
        """Return the edges that answered but hold another model, or none."""
        return [edge for edge in live if edge.id in self.answers and not self._has_model(edge)]

    def outdated(self, edge: EdgeSession) -> bool:
        """Tell whether an edge holds the right model now, and did not when it answered."""
        return (
            edge.id in self.answers
            and not self._has_model(edge)
            and edge.model != ""
            and edge.model == edge.expected
        )

    def waits_until(
        self, live: list[EdgeSession], *, silent_s: float, transfer_s: float
    ) -> float | None:
        """Return until when the round is held up, or None if by nobody.

        An edge that was silent at the last observation, and said nothing since,
        holds nobody up; one that is fetching the model does so for longer.
        """
        if self.lacking(live):
            return self.opened_at + transfer_s
        if any(edge.id not in self.answers and not edge.quiet for edge in live):
            return self.opened_at + silent_s
        return None

    def _has_model(self, edge: EdgeSession) -> bool:
        answer = self.answers.get(edge.id)
        return answer is not None and answer.model != "" and answer.model == edge.expected
