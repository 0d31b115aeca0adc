"""Stories for the report's page, without a run behind them."""

from dataclasses import replace

from fedagent_cli.report.evaluations import EvaluationRow
from fedagent_cli.report.run_report import AgentRow, EdgeShare, RoundRow, RunReport
from fedagent_task.measures import ACCURACY, DEVICE_SCORE, LOSS, MAE, RMSE, TRAIN_ERROR, TRAIN_LOSS

EDGES = {"e1": "hall", "e2": "cellar behind the kitchen"}
AGENTS = (
    AgentRow("a1", "kitchen", 12, 11, 11, 9_000_000, {"arrived": 11, "late": 1}),
    AgentRow(
        "a2",
        "a-device-with-quite-a-long-name-of-its-own",
        12,
        0,
        0,
        0,
        {"missed": 10, "declined": 2},
        reasons={"missed unanswered": 10, "declined no_data: nothing has arrived": 2},
    ),
    *(AgentRow(f"b{n}", f"sensor-{n}", 12, 12, 12, 5, {"arrived": 12}) for n in range(10)),
)


def a_round(number: int) -> RoundRow:
    return RoundRow(
        round=number,
        ordered=12,
        in_time=11,
        used=11,
        spent_micro=3_000_000,
        seconds=0.4,
        accuracy=1 - 0.8 / number,
        loss=2.0 / number,
        device_score=1 - 0.9 / number,
        train_loss=1.8 / number,
        timing_ms={"observe": 20.0, "decide": 3.0, "reserve": 9.0, "train": 300.0, "settle": 5.0},
        edges={edge: EdgeShare(6, 5, 5, 1_500_000) for edge in EDGES},
        ended_s=number * 0.5,
    )


def classes(rounds: int = 12) -> RunReport:
    """A run that learns classes, evaluated by held-out samples and by its devices."""
    return RunReport(
        run="ab" * 16,
        recipe="digits",
        policy="adaptive",
        seed=0,
        rounds_wanted=rounds,
        rounds=tuple(a_round(number) for number in range(1, rounds + 1)),
        agents=AGENTS,
        edges=EDGES,
        ledger_balanced=True,
        spent_micro=4_500_000,
        measures=(ACCURACY, LOSS, DEVICE_SCORE, TRAIN_LOSS),
    )


def numbers(rounds: int = 12, *, held_out: bool = True) -> RunReport:
    """A run that learns a number."""
    plain = classes(rounds)
    rows = tuple(
        replace(
            row,
            accuracy=None,
            device_score=None,
            loss=1000.0 / row.round**3 if held_out else None,
            rmse=(1000.0 / row.round**3) ** 0.5 if held_out else None,
            mae=20.0 / row.round if held_out else None,
            train_error=(2 * 1.8 / row.round) ** 0.5,
        )
        for row in plain.rounds
    )
    measures = (RMSE, MAE, LOSS) if held_out else ()
    return replace(
        plain, rounds=rows, recipe="sensor", measures=(*measures, TRAIN_ERROR, TRAIN_LOSS)
    )


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
    evaluated = tuple(
        EvaluationRow(row.round, row.round, "report", "accuracy", 12, 12, {}, 0.1, 0.5, 0.1, 0.7)
        for row in rows
    )
    columns = {agent: [(row.round, score) for row in rows] for agent, score in scores.items()}
    kinds = ("every digit", "one or two digits")
    return replace(
        plain,
        rounds=rows,
        evaluated=tuple(replace(row, scores=scores) for row in evaluated),
        indices=columns,
        beliefs=columns,
        agents=tuple(replace(one, kind=kinds[i % 2]) for i, one in enumerate(AGENTS)),
        target=0.9,
    )
