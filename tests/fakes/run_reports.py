"""Reports for the page, without a run behind them."""

from dataclasses import replace

from fedagent_cli.report.run_report import ReportAgent, ReportRound, RunReport
from fedagent_coordinator.books.evaluations import ModelEvaluation
from fedagent_task.scoring.measures import (
    ACCURACY,
    DEVICE_SCORE,
    LOSS,
    MAE,
    RMSE,
    TRAIN_ERROR,
    TRAIN_LOSS,
)

EDGES = {"e1": "hall", "e2": "cellar behind the kitchen"}


def an_agent(
    agent: str,
    label: str,
    *,
    ordered: int = 12,
    in_time: int = 12,
    paid: int = 5,
    outcomes: dict[str, int] | None = None,
    gap: float | None = None,
) -> ReportAgent:
    return ReportAgent(
        client=0,
        agent=agent,
        label=label,
        ordered=ordered,
        in_time=in_time,
        used=in_time,
        paid_micro=paid,
        outcomes=outcomes or {"arrived": ordered},
        claim_gap=gap,
    )


AGENTS = (
    an_agent(
        "a1", "kitchen", in_time=11, paid=9_000_000, outcomes={"arrived": 11, "late": 1}, gap=2.4
    ),
    an_agent(
        "a2",
        "a-device-with-quite-a-long-name-of-its-own",
        in_time=0,
        paid=0,
        outcomes={"missed": 10, "declined": 2},
    ),
    *(an_agent(f"b{n}", f"sensor-{n}", gap=0.8 + 0.04 * n) for n in range(10)),
)


def a_round(number: int, **metrics: float) -> ReportRound:
    return ReportRound(
        round=number,
        state="done",
        policy="adaptive",
        reason="",
        ordered=12,
        in_time=11,
        used=11,
        paid_micro=3_000_000,
        metrics=metrics,
        timing_ms={"observe": 20.0, "decide": 3.0, "reserve": 9.0, "train": 363.0, "settle": 5.0},
        opened_ms=0,
        closed_ms=400,
        ended_s=number * 0.5,
    )


def with_rounds(report: RunReport, *rounds: ReportRound) -> RunReport:
    """Return a report of these rounds, whose best and newest figures are theirs."""
    by = report.measures[0] if report.measures else None
    values = [value for row in rounds if by is not None and (value := row.of(by)) is not None]
    return replace(
        report,
        rounds=rounds,
        metrics={name: value for row in rounds for name, value in row.metrics.items()},
        best=None if by is None else max(values, key=by.rank, default=None),
    )


def classes(rounds: int = 12) -> RunReport:
    """A run that learns classes, evaluated by held-out samples and by its devices."""
    report = RunReport(
        run="ab" * 16,
        recipe="digits",
        policy="adaptive",
        seed=0,
        rounds_wanted=rounds,
        rounds=(),
        agents=AGENTS,
        edges=EDGES,
        ledger_balanced=True,
        spent_micro=4_500_000,
        measures=(ACCURACY, LOSS, DEVICE_SCORE, TRAIN_LOSS),
    )
    return with_rounds(
        report,
        *(
            a_round(
                n,
                accuracy=1 - 0.8 / n,
                loss=2.0 / n,
                device_score=1 - 0.9 / n,
                train_loss=1.8 / n,
            )
            for n in range(1, rounds + 1)
        ),
    )


def numbers(rounds: int = 12, *, held_out: bool = True) -> RunReport:
    """A run that learns a number."""
    rows = []
    for n in range(1, rounds + 1):
        metrics = {"train_loss": 1.8 / n, "train_error": (2 * 1.8 / n) ** 0.5}
        if held_out:
            loss = 1000.0 / n**3
            metrics |= {"loss": loss, "rmse": loss**0.5, "mae": 20.0 / n}
        rows.append(a_round(n, **metrics))
    measures = (RMSE, MAE, LOSS) if held_out else ()
    report = replace(
        classes(rounds), recipe="sensor", measures=(*measures, TRAIN_ERROR, TRAIN_LOSS)
    )
    return with_rounds(report, *rows)


def everything() -> RunReport:
    """A run that has every plot: evaluated by clients, placed, its iterations controlled."""
    plain = classes()
    rows = tuple(
        replace(
            row,
            iterations=row.round + 4,
            rented="e1" if row.round % 2 else "e2",
            rent_micro=250_000,
            notes={"rho": row.round + 3.5, "lambda_load": 0.1, "lambda_quality": 0.2},
            latency_s=(0.1, 0.2, 0.1, 0.05),
        )
        for row in plain.rounds
    )
    scores = {agent.agent: 0.1 + index / 20 for index, agent in enumerate(AGENTS)}
    evaluations = tuple(
        ModelEvaluation(
            round=row.round,
            slot=row.round,
            mode="report",
            digest="",
            metric="accuracy",
            asked=12,
            answered=12,
            mean=0.5,
            reasons={},
            seconds=0.1,
            scores=scores,
        )
        for row in rows
    )
    columns = {agent: [(row.round, score) for row in rows] for agent, score in scores.items()}
    kinds = ("every digit", "one or two digits")
    return replace(
        plain,
        rounds=rows,
        evaluations=evaluations,
        indices=columns,
        beliefs=columns,
        agents=tuple(replace(one, kind=kinds[i % 2]) for i, one in enumerate(AGENTS)),
        target=0.9,
    )
