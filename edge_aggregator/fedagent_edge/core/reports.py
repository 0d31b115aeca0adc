"""What the edge tells of a round that is over."""

from msgspec.structs import replace

from fedagent_protocol.messages import Outcome, OutcomeStatus, RoundReport

from .effects import Event
from .round import EdgeRound
from .settings import EdgeSettings, Memory

OUTCOMES_WITH_CHUNK = 1500
"""More outcomes leave no room in the report for a chunk of the model."""


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


def closed_event(rnd: EdgeRound, report: RoundReport, now: float) -> Event:
    """Return what a person is told."""
    data: dict[str, object] = {
        "round": rnd.round,
        "ordered": len(report.outcomes),
        "in_time": sum(one.in_time for one in report.outcomes),
        "used": report.used,
        "failed": report.failed,
        "seconds": round(now - rnd.began_at, 4),
    }
    return Event("round_closed", data)


def refused_outcomes(rnd: EdgeRound, why: str) -> tuple[Outcome, ...]:
    """Return the outcomes of a round that nobody was ordered in."""
    return tuple(
        Outcome(agent=agent, status=OutcomeStatus.GONE, censored=True, reason=why)
        for agent in rnd.parts
    )
