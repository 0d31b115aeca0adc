"""One run in one record: for `status`, the page, `result.json`, the report and the demo's end."""

import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from fedagent_coordinator.books.models import recipe_in
from fedagent_coordinator.books.queries import Queries
from fedagent_coordinator.books.rows import RunRow
from fedagent_protocol import SOFTWARE
from fedagent_task.recipe.spec import MICRO, Recipe
from fedagent_task.scoring.measures import Measure, measures_of

from .status_files import RunStatus

BUDGET, TARGET = "budget", "target"
"""Why a run ends before its last round, as `core.readiness` has it, which imports numpy."""


class RunSummary(Struct, frozen=True, kw_only=True):
    """How far a run is, what it cost and how good its model is; budgets are None for no limit."""

    run: str
    recipe: str
    policy: str | None  # none without a round and with a recipe that this version cannot read
    seed: int
    begun_ms: int = 0
    ended_ms: int | None = None
    reason: str = ""
    conclusion: str = ""  # why it stopped before its last round; empty if it did not
    rounds_done: int = 0
    rounds_wanted: int | None = 0  # 0 for no end, None for unknown
    origin: str = ""  # digest of the model that it began from; empty for that of the seed
    model: str = ""
    measures: tuple[Measure, ...] = ()
    metrics: Mapping[str, float] = {}
    best: float | None = None  # by the first measure
    best_accuracy: float | None = None
    best_round: int | None = None
    updates_used: int = 0
    spent_micro: int = 0  # rents included
    reserved_micro: int = 0
    rents: Mapping[str, int] = {}
    budget_total_micro: int | None = None
    budget_per_edge_micro: int | None = None
    placement: str = ""
    iterations: str = ""
    target: float = 0.0
    edges: Mapping[str, str] = {}
    opinions: str = ""  # the mode of the recipe
    unlimited: bool = False
    software: str = SOFTWARE
    waiting: str = ""  # what a running coordinator waits for; see `status_files.RunStatus`
    waiting_detail: str = ""
    found: int = 0
    wanted: int = 0
    next_ms: int = 0  # no round begins before; 0 for at once

    @property
    def accuracy(self) -> float | None:
        """Newest accuracy, None if it was not measured."""
        return self.metrics.get("accuracy")

    @property
    def primary_metric(self) -> str | None:
        """Key of what models are evaluated by before all."""
        return self.measures[0].key if self.measures else None

    @property
    def rent_micro(self) -> int:
        """All rents."""
        return sum(self.rents.values())

    def waiting_as(self, status: RunStatus | None, now: float) -> "RunSummary":
        """Return it with what its running coordinator waits for; `now` is the wall clock."""
        if status is None:
            return self
        left = status.next_at - time.monotonic()
        return structs.replace(
            self,
            waiting=status.waiting,
            waiting_detail=status.detail,
            found=status.found,
            wanted=status.wanted,
            next_ms=1000 * round(now + left) if status.next_at and left > 0 else 0,
        )

    def record(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        values = structs.asdict(self)
        del values["measures"]
        return {
            **values,
            "ended": self.ended_ms is not None,
            "accuracy": self.accuracy,
            "loss": self.metrics.get("loss"),
            "primary_metric": self.primary_metric,
            "rent_micro": self.rent_micro,
        }


def summarize(read: Queries, run: RunRow, *, reason: str | None = None) -> RunSummary:
    """Return what a run came to, or has so far; `reason` is why it ends, if not in the books."""
    recipe = recipe_in(run.recipe)
    done, balance = read.rounds_done(run.run_id), read.balance(run.run_id)
    last = read.models.last(run.run_id)
    model = "" if last is None else last.digest
    newest = next(iter(read.rounds(run.run_id, last=1)), None)
    best, measures = read.models.best(run.run_id), read.models.measures(run.run_id)
    planned = None if recipe is None else recipe.policy.name
    edges = read.edge_totals(run.run_id)
    rents = {edge: row.rent_micro for edge, row in edges.items() if row.rent_micro}
    reason = (run.end_reason or "") if reason is None else reason
    return RunSummary(
        run=run.run_id,
        recipe=run.recipe_digest[:12] if recipe is None else recipe.name,
        policy=planned if newest is None else newest.policy,
        seed=run.seed,
        begun_ms=run.begun_ms,
        ended_ms=run.ended_ms,
        reason=reason,
        conclusion=conclusion(
            reason,
            recipe,
            spent_micro=balance.settled_micro,
            rents=any(rents.values()),
            done=done,
            model=model,
        ),
        rounds_done=done,
        rounds_wanted=read.rounds_of(run),
        origin=run.origin,
        model=model,
        measures=measures,
        metrics=read.models.newest_metrics(run.run_id),
        best=None if best is None or not measures else best.metrics.get(measures[0].key),
        best_accuracy=None if best is None else best.metrics.get("accuracy"),
        best_round=None if best is None else best.round,
        updates_used=read.updates_used(run.run_id),
        spent_micro=balance.settled_micro,
        reserved_micro=balance.reserved_micro,
        rents=rents,
        budget_total_micro=None if recipe is None else recipe.budget.total_micro,
        budget_per_edge_micro=None if recipe is None else recipe.budget.per_edge_micro,
        placement="" if recipe is None else recipe.placement.name,
        iterations="" if recipe is None else recipe.iterations.name,
        target=0.0 if recipe is None else recipe.evaluation.target,
        edges={edge: row.label for edge, row in edges.items()},
        opinions="" if recipe is None else recipe.opinions.mode,
        unlimited=run.unlimited,
    )


def conclusion(
    reason: str, recipe: Recipe | None, *, spent_micro: int, rents: bool, done: int, model: str
) -> str:
    """Return one line on why a run stopped before its last round; empty if it did not."""
    if recipe is None or reason not in (BUDGET, TARGET):
        return ""
    what, total = ("rented round" if rents else "round"), recipe.budget.total_micro
    what = what if recipe.placement.rents else "update"
    why = f"the budget is too low for another {what}"
    if reason == TARGET:
        left = f"{spent_micro / MICRO:g} credits are spent"
        if total is not None:
            left = f"{(total - spent_micro) / MICRO:g} of {total / MICRO:g} credits are left"
        by, target = measures_of(recipe)[0], recipe.evaluation.target
        why = f"{by.word} {target:g}, the target, is reached, {left}"
    return f"{why}: stopped after {done} rounds, final model {model[:12]}"
