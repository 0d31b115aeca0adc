"""Read a run's story from a coordinator's data directory, while it runs or later."""

from collections import Counter
from pathlib import Path

from fedagent_cli.runs import open_run, recipe_of
from fedagent_coordinator import reader as store
from fedagent_coordinator.results import conclusion
from fedagent_task.measures import BY_KEY
from fedagent_task.spec import Recipe

from .evaluations import read_evaluations
from .indices import read_beliefs, read_indices
from .run_report import NOT_ENDED, AgentRow, EdgeShare, RoundRow, RunReport

SHORT = 8


def read_run_report(data_dir: Path, run_id: str | None = None) -> RunReport:
    """Return a run as the report tells it.

    Raises:
        NoRunError: There is no such run.
    """
    with open_run(data_dir, run_id) as (reader, run):
        recipe = recipe_of(run)
        rows = [row for row in reader.rounds(run.run_id) if row.state == "done"]
        voids = sum(row.state == "void" for row in reader.rounds(run.run_id))
        edges = reader.edge_results(run.run_id)
        wanted, origin = reader.rounds_of(run), reader.origin(run.run_id)
        verified = reader.ledger.verify()
        balance = reader.balance(run.run_id)
        latency = _latency(reader, run.run_id, rows)
        evaluated = read_evaluations(reader, run.run_id)
        done = [row.round for row in rows]
        return RunReport(
            run=run.run_id,
            recipe=recipe.name if recipe else run.recipe_digest[:SHORT],
            policy=rows[-1].policy if rows else recipe.policy.name if recipe else "?",
            seed=run.seed,
            rounds_wanted=len(rows) if wanted is None else wanted,
            rounds=tuple(_round(row, edges, latency.get(row.round, ()), rows[0]) for row in rows),
            agents=_agents(reader, run.run_id),
            edges={row.edge_id: row.label for row in edges},
            ledger_balanced=verified.balanced,
            spent_micro=balance.settled_micro,
            budget_per_edge_micro=recipe.budget.per_edge_micro if recipe else None,
            budget_total_micro=recipe.budget.total_micro if recipe else None,
            conclusion=_conclusion(reader, run, recipe, len(rows)),
            target=recipe.evaluation.target if recipe else 0.0,
            evaluated=evaluated,
            measures=reader.measures(run.run_id),
            indices=read_indices(reader, run.run_id, done) if evaluated else {},
            beliefs=read_beliefs(reader, run.run_id, recipe, done) if evaluated and recipe else {},
            facts={
                "state": run.end_reason or ("ended" if run.ended_ms else NOT_ENDED),
                **({"began from the model": origin} if origin else {}),
                "rounds that were voided": str(voids),
                "ledger entries": str(verified.entries),
                **({"ledger problems": "; ".join(verified.problems)} if verified.problems else {}),
            },
        )


def _conclusion(reader: store.Reader, run: store.Run, recipe: Recipe | None, done: int) -> str:
    """Return why the run stopped before its last round; empty if it did not."""
    final = reader.last_global(run.run_id)
    return conclusion(
        run.end_reason or "",
        placed=recipe is not None and recipe.placement.name != "coordinator",
        rent_micro=sum(reader.rents(run.run_id).values()),
        rounds_done=done,
        model=final.digest if final else "",
    )


def _latency(
    reader: store.Reader, run_id: str, rows: list[store.RoundRow]
) -> dict[int, tuple[float, ...]]:
    """Return by round the times of the device whose update took longest, and what was left."""
    slowest: dict[int, store.OutcomeRow] = {}
    for outcome in reader.outcomes(run_id):
        former = slowest.get(outcome.round)
        if not outcome.censored and (former is None or outcome.tau_s > former.tau_s):
            slowest[outcome.round] = outcome
    split: dict[int, tuple[float, ...]] = {}
    for row in rows:
        if (one := slowest.get(row.round)) is not None:
            rest = row.timing_ms.get("train", 0.0) / 1000 - one.tau_s
            parts = (one.dt_s or 0.0, one.lc_s or 0.0, one.ut_s or 0.0, max(rest, 0.0))
            split[row.round] = parts
    return split


def _round(
    row: store.RoundRow,
    edges: list[store.EdgeRow],
    latency_s: tuple[float, ...],
    first: store.RoundRow,
) -> RoundRow:
    """Return one round with its shares by edge."""
    wall_ms = (row.closed_ms or row.opened_ms) - row.opened_ms
    return RoundRow(
        round=row.round,
        ordered=row.ordered,
        in_time=row.in_time,
        used=row.used,
        spent_micro=row.paid_micro,
        seconds=(sum(row.timing_ms.values()) or wall_ms) / 1000,
        **{key: row.metrics.get(key) for key in BY_KEY},
        timing_ms=dict(row.timing_ms),
        edges={
            edge.edge_id: EdgeShare(
                ordered=edge.ordered,
                in_time=edge.in_time,
                used=edge.used,
                spent_micro=edge.spent_micro,
                failed=edge.failed,
            )
            for edge in edges
            if edge.round == row.round
        },
        iterations=row.iterations,
        rented=row.rented,
        rent_micro=row.rent_micro,
        notes=dict(row.notes),
        latency_s=latency_s,
        ended_s=((row.closed_ms or row.opened_ms) - first.opened_ms) / 1000,
    )


def _agents(reader: store.Reader, run_id: str) -> tuple[AgentRow, ...]:
    """Return every agent with how its rounds ended."""
    outcomes: dict[str, Counter[str]] = {}
    reasons: dict[str, Counter[str]] = {}
    for outcome in reader.outcomes(run_id):
        outcomes.setdefault(outcome.agent, Counter())[outcome.status] += 1
        ending = f"{outcome.status} {outcome.reason}".strip()
        reasons.setdefault(outcome.agent, Counter())[ending] += 1
    return tuple(
        AgentRow(
            agent=device.agent,
            name=device.label or device.agent[:SHORT],
            ordered=device.selected,
            in_time=device.in_time,
            used=device.used,
            paid_micro=device.paid_micro,
            outcomes=dict(outcomes.get(device.agent, {})),
            reasons=dict(reasons.get(device.agent, {})),
        )
        for device in reader.devices(run_id)
    )
