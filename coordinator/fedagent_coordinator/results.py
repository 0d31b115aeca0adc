"""What a run came to: the content of `result.json`, and one line for people."""

from collections.abc import Mapping

from fedagent_task.measures import measures_of
from fedagent_task.spec import Recipe

from .core.effects import Value
from .core.readiness import BUDGET
from .jobs import Evaluated
from .reader import Reader

END_FIELDS = (
    "rounds_done",
    "accuracy",
    "loss",
    "primary_metric",
    "metrics",
    "spent_micro",
    "updates_used",
    "reason",
    "conclusion",
    "ledger_balanced",
)
"""What the event of the end says of it."""


def result_of(
    read: Reader,
    recipe: Recipe,
    *,
    run_id: str,
    reason: str,
    rounds_done: int,
    spent_micro: int,
    model: str,
    evaluated: Evaluated | None,
) -> dict[str, Value]:
    """Return what a run came to, or has come to so far.

    Args:
        read: The books.
        recipe: What was run.
        run_id: The run.
        reason: Why it ended; empty while it goes on.
        rounds_done: Rounds that were settled.
        spent_micro: What was paid, rents included.
        model: Digest of the global model.
        evaluated: How good it is.
    """
    by = next(iter(measures_of(recipe)), None)
    best = read.best_global(run_id)
    known = {} if evaluated is None else evaluated.metrics
    rents = read.rents(run_id)
    placed = recipe.placement.name != "coordinator"
    return {
        "run": run_id,
        "recipe": recipe.name,
        "policy": recipe.policy.name,
        "seed": recipe.seed,
        "reason": reason,
        "conclusion": conclusion(
            reason,
            placed=placed,
            rent_micro=sum(rents.values()),
            rounds_done=rounds_done,
            model=model,
        ),
        "rounds_done": rounds_done,
        "updates_used": read.updates_used(run_id),
        "accuracy": known.get("accuracy"),
        "loss": known.get("loss"),
        "best_accuracy": None if best is None else best.metrics.get("accuracy"),
        "primary_metric": None if by is None else by.key,
        "metrics": read.newest_metrics(run_id),
        "best": None if best is None or by is None else best.metrics.get(by.key),
        "best_round": None if best is None else best.round,
        "model": model,
        "spent_micro": spent_micro,
        "rent_micro": sum(rents.values()),
        "rents": _as_value(rents),
        "placement": recipe.placement.name,
        "iterations": recipe.iterations.name,
        "total_micro": recipe.budget.total_micro,
        "ledger_balanced": read.ledger.verify().balanced,
    }


def conclusion(reason: str, *, placed: bool, rent_micro: int, rounds_done: int, model: str) -> str:
    """Return one line on why a run stopped before its last round; empty if it did not.

    Args:
        reason: Why it ended.
        placed: Its rounds were placed at edges.
        rent_micro: Rents that were paid; where they are 0 it was not for a rent that it stopped.
        rounds_done: Rounds that were settled.
        model: Digest of the global model.
    """
    if reason != BUDGET:
        return ""
    what = ("rent" if rent_micro else "rounds") if placed else "update"
    return (
        f"the budget pays no more {what}: stopped after {rounds_done} rounds, "
        f"final model {model[:12]}"
    )


def _as_value(rents: Mapping[str, int]) -> dict[str, float]:
    return {edge: float(micro) for edge, micro in rents.items()}
