"""What the edge tells of a round that is over."""

from collections import Counter
from copy import copy
from dataclasses import dataclass

from msgspec.structs import replace

from fedagent_node.effects import Effect, Emit, Mark, Send
from fedagent_protocol.messages import Outcome, OutcomeStatus, ReportReceipt, RoundReport

from .effects import COORDINATOR, ForgetRound, SaveState
from .round import EdgeRound
from .settings import EdgeSettings, Memory

AGAIN_S = 1.0
"""How long a report waits for its receipt before it goes again."""
OUTCOMES_WITH_CHUNK = 1500
"""More outcomes leave no room in the report for a chunk of the model."""


@dataclass(slots=True)
class Reporting:
    """The report that waits for its receipt; `memory` keeps it over a restart."""

    settings: EdgeSettings
    memory: Memory
    counters: Counter[str]
    _again_at: float = 0.0

    def report(
        self,
        rnd: EdgeRound,
        outcomes: tuple[Outcome, ...],
        failed: str,
        now: float,
        *,
        first: bytes = b"",
    ) -> list[Effect]:
        """Store and send the report of a round; see `make_report`."""
        report = make_report(
            rnd, outcomes, failed, now, memory=self.memory, settings=self.settings, first=first
        )
        self.memory.report = report
        self._again_at = now + AGAIN_S
        return [
            SaveState(copy(self.memory)),
            Mark("edge.reported"),
            ForgetRound(),
            Mark("edge.spool_cleared"),
            Send(COORDINATOR, report),
            closed_event(rnd, report, now),
        ]

    def refuse(self, rnd: EdgeRound, why: str, now: float) -> list[Effect]:
        """Report at once a round that cannot be done."""
        return self.report(rnd, refused_outcomes(rnd, why), why, now)

    def again(self, now: float) -> list[Effect]:
        """Send what was not receipted, if anything."""
        if self.memory.report is None:
            return []
        self._again_at = now + AGAIN_S
        return [Send(COORDINATOR, self.memory.report)]

    def receipt(self, receipt: ReportReceipt) -> None:
        """Take in that a report is settled."""
        report = self.memory.report
        if report is None or report.round != receipt.round:
            return
        if receipt.too_late:
            self.counters["report_too_late"] += 1
        # Not worth a write: a report that is sent again is only receipted again.
        self.memory.report = None

    def tick(self, now: float) -> list[Effect]:
        """Repeat what is due."""
        if self.memory.report is None or now < self._again_at:
            return []
        self.counters["report_again"] += 1
        return self.again(now)

    @property
    def due(self) -> float | None:
        """When `tick` is wanted."""
        return self._again_at if self.memory.report is not None else None


def make_report(
    rnd: EdgeRound,
    outcomes: tuple[Outcome, ...],
    failed: str,
    now: float,
    *,
    memory: Memory,
    settings: EdgeSettings,
    first: bytes,
) -> RoundReport:
    """Return the report; of a failed round nothing is used.

    Args:
        rnd: The round.
        outcomes: How everybody ended.
        failed: Why there is no new model, or an empty string.
        now: When the new model, if any, was there.
        memory: Holds the edge's model after the round.
        settings: The edge's.
        first: Chunk 0 of that model.
    """
    if failed:
        outcomes = tuple(replace(one, used=False, weight=0.0) for one in outcomes)
    with_chunk = rnd.order.want_model and not failed and len(outcomes) <= OUTCOMES_WITH_CHUNK
    closed_at = rnd.closed_at or now
    return RoundReport(
        run=rnd.run,
        round=rnd.round,
        epoch=settings.epoch,
        outcomes=outcomes,
        failed=failed,
        model=memory.model,
        size=memory.model_bytes,
        chunk_bytes=settings.chunk_bytes,
        used=sum(one.used for one in outcomes),
        weight=sum(one.weight for one in outcomes),
        first=first if with_chunk else b"",
        timing_ms={
            "collect": round((closed_at - rnd.began_at) * 1e3, 3),
            "aggregate": round((now - closed_at) * 1e3, 3),
        },
    )


def closed_event(rnd: EdgeRound, report: RoundReport, now: float) -> Emit:
    """Return what a person is told."""
    data: dict[str, object] = {
        "round": rnd.round,
        "ordered": len(report.outcomes),
        "in_time": sum(one.in_time for one in report.outcomes),
        "used": report.used,
        "failed": report.failed,
        "seconds": round(now - rnd.began_at, 4),
    }
    return Emit("round_closed", data)


def refused_outcomes(rnd: EdgeRound, why: str) -> tuple[Outcome, ...]:
    """Return the outcomes of a round that nobody was ordered in."""
    return tuple(
        Outcome(agent=agent, status=OutcomeStatus.GONE, censored=True, reason=why)
        for agent in rnd.parts
    )
