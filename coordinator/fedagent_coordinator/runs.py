"""Which run a coordinator works on: a new one, an open one, or one that has ended."""

import logging
from dataclasses import dataclass, replace
from importlib.util import find_spec

import msgspec
from msgspec import structs

from fedagent_node.blobs import BlobStore
from fedagent_protocol.extras import how_to_add
from fedagent_protocol.messages import OpinionMode
from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_task import models
from fedagent_task.recipe import MAX_TASK_BYTES, recipe_digest, task_bytes, task_digest, task_of
from fedagent_task.spec import Recipe

from . import calls, placement, policies
from .config import CoordinatorConfig
from .core import iterations
from .core.decision_policies import DecisionPolicies
from .core.readiness import BUDGET
from .core.settings import Progress, Settings, Window, learnt_weight
from .database.rows import Run
from .errors import CoordinatorError, ModelLostError, RefusedOptionError, RunConflictError
from .first_model import read_first_model
from .store import Store

_log = logging.getLogger(__name__)

VOID_REASON = "the coordinator was restarted"


class RunFinishedError(CoordinatorError):
    """Raised when the run of this recipe has ended: there is nothing left to do."""

    def __init__(self, run_id: str, reason: str, progress: Progress) -> None:
        super().__init__(run_id, reason, progress)
        self.run_id = run_id
        self.reason = reason
        self.progress = progress

    def __str__(self) -> str:
        # More rounds need money too.
        on = "" if self.reason == BUDGET else "go on with --more-rounds N, or "
        return (
            f"run {self.run_id[:8]} of this recipe has ended after "
            f"{self.progress.rounds_done} rounds ({self.reason}); {on}begin another with --new-run"
        )


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run to work on, and where it stands.

    Attributes:
        resumed: It was begun by an earlier process.
        voided: Rounds that were in flight and were voided.
        recipe: With as many rounds as the run was extended to, and with what features are
            scaled by once that is known.
    """

    run_id: str
    resumed: bool
    voided: tuple[int, ...]
    progress: Progress
    recipe: Recipe


def open_run(
    store: Store,
    blobs: BlobStore,
    recipe: Recipe,
    *,
    new_run: bool,
    opinions: OpinionMode | None = None,
    more_rounds: int = 0,
    init: str = "",
) -> OpenedRun:
    """Resume the run of this recipe, or begin one.

    What was in flight is voided, once: its reservations go back to the budget. An evaluation
    that was in flight is booked before anything is learnt from the books; `opinions` is
    what the run calls its clients for. `more_rounds` lets a run that has ended go on, and
    `init` names the model that a new one begins from.

    Raises:
        RunConflictError: A run of another recipe is open and `new_run` is not set.
        RunFinishedError: The newest run of this recipe has ended, and gets no more rounds.
        RefusedOptionError: There is no run to go on with, or no such model; or the run began
            from another model.
        ModelLostError: The global model of the run is not on disk as it was written.
    """
    digest = recipe_digest(recipe)
    former = None if new_run else store.read.open_run()
    if former is not None and former.recipe_digest != digest:
        raise RunConflictError(former.run_id, former.recipe_digest)
    if former is None and not new_run:
        former = store.read.find_run(digest)
    resumed = former is not None
    if former is None:
        if more_rounds:
            hint = "leave it out, or give the recipe, with every --set, of the run to go on with"
            problem = "this data directory has no run of this recipe"
            raise RefusedOptionError("--more-rounds", problem, hint)
        run = _begin(store, recipe, digest, _origin(blobs, recipe, init))
    else:
        _check_origin(blobs, recipe, former, init)
        run = _gone_on(store, former, more_rounds)
    wanted = store.read.rounds_of(run)
    # None is a recipe that this version cannot read; as 0 it would be a run without an end.
    count = recipe.rounds.count if wanted is None else wanted
    recipe = structs.replace(recipe, rounds=structs.replace(recipe.rounds, count=count))
    voided = store.void_open_rounds(run.run_id, VOID_REASON) if resumed else ()
    if voided:
        _log.warning("voided what was in flight: round %s", ", ".join(map(str, voided)))
    progress = _with_model(store, blobs, recipe, run.run_id)
    past = _with_past(store, recipe, run.run_id, progress, opinions)
    if recipe.data.standardize and (kept := store.read.standardized(run.run_id)) is not None:
        data = msgspec.json.decode(kept, type=Recipe).data
        recipe = msgspec.structs.replace(recipe, data=data)
    return OpenedRun(run.run_id, resumed, voided, past, recipe)


def _gone_on(store: Store, run: Run, more_rounds: int) -> Run:
    """Return a run that goes on; one that has ended does so with more rounds only."""
    if run.ended_ms is None:
        if more_rounds:
            _log.info(
                "run %s has not ended and goes on as it was; --more-rounds is for one that has",
                run.run_id[:8],
            )
        return run
    if not more_rounds:
        reason = run.end_reason or "ended"
        raise RunFinishedError(run.run_id, reason, store.read.progress(run.run_id))
    count = store.extend_run(run.run_id, more_rounds)
    _log.info("run %s goes on for %d more rounds, to %d", run.run_id[:8], more_rounds, count)
    return store.read.run(run.run_id)


def _origin(blobs: BlobStore, recipe: Recipe, init: str) -> str:
    """Keep the model that a run begins from and return its digest; empty for the seed's."""
    if not init:
        return ""
    if recipe.data.standardize:
        _log.warning(
            "--init: data.standardize scales features anew, the model was learnt otherwise"
        )
    return blobs.put(_named_model(blobs, recipe, init))


def _check_origin(blobs: BlobStore, recipe: Recipe, run: Run, init: str) -> None:
    """Refuse another model than the run began from; its file need not be there any more."""
    if not init:
        return
    began = run.origin
    try:
        data = _named_model(blobs, recipe, init)
    except RefusedOptionError as error:
        if not began:
            raise
        _log.warning("%s; the run goes on from what it has learnt without it", error.problem)
        return
    if digest_of(data) != began:
        named = f"model {began[:12]}" if began else "the seed's model"
        raise RefusedOptionError(
            f"--init {init}",
            f"run {run.run_id[:8]} began from {named}",
            "leave it out to go on, or begin another run with --new-run",
        )
    blobs.put(data)


def _named_model(blobs: BlobStore, recipe: Recipe, init: str) -> bytes:
    return read_first_model(init, blobs.folder, models.create(recipe.model).manifest())


def _with_past(
    store: Store, recipe: Recipe, run_id: str, progress: Progress, opinions: OpinionMode | None
) -> Progress:
    """Return the progress with what edges learnt and clients said to former processes."""
    windows = _windows(store, run_id, recipe.limits.max_samples)
    told = calls.resumed(store, run_id, recipe, opinions)
    if windows and told.pending_round is not None:
        # Edges hold what they learnt, not the model to be evaluated; the next merge calls again.
        told = replace(told, pending_round=None, count=calls.every_of(recipe, opinions) - 1)
    return replace(progress, windows=windows, evaluations=told)


def _begin(store: Store, recipe: Recipe, digest: str, origin: str) -> Run:
    return store.begin_run(
        recipe_digest=digest,
        recipe=msgspec.json.encode(recipe).decode(),
        seed=recipe.seed,
        total_micro=recipe.budget.total_micro,
        replace=True,
        origin=origin,
    )


def _with_model(store: Store, blobs: BlobStore, recipe: Recipe, run_id: str) -> Progress:
    """Return the progress with a global model; the first one is the origin's or the seed's."""
    progress = store.read.progress(run_id)
    if progress.model and blobs.is_whole(progress.model):
        return progress
    origin = store.read.run(run_id).origin
    if origin and not progress.model and blobs.is_whole(origin):
        store.save_model(run_id, 0, origin, blobs.size(origin))
        return store.read.progress(run_id)
    if origin and not progress.model:
        raise ModelLostError(run_id, origin, "damaged" if blobs.has(origin) else "missing")
    data = encode_tensors(models.create(recipe.model).init(recipe.seed))
    if not progress.model:
        store.save_model(run_id, 0, blobs.put(data), len(data))
        return store.read.progress(run_id)
    # An edge checks what it gets: a damaged model would be sent for ever, and no round begin.
    if digest_of(data) != progress.model:
        problem = "damaged" if blobs.has(progress.model) else "missing"
        raise ModelLostError(run_id, progress.model, problem)
    blobs.put(data)
    return progress


def _windows(store: Store, run_id: str, max_samples: int) -> tuple[Window, ...]:
    """Return what edges have learnt, by the books, since the last merge."""
    last = store.read.models.last(run_id)
    since = last.round if last is not None else 0
    forgotten = store.read.forgotten(run_id)
    model: dict[str, str] = {}
    weight: dict[str, float] = {}
    for row in store.read.edge_results(run_id):
        if row.round > max(since, forgotten.get(row.edge_id, 0)) and row.model and not row.failed:
            model[row.edge_id] = row.model
            more = learnt_weight(row.weight, row.ordered, max_samples)
            weight[row.edge_id] = weight.get(row.edge_id, 0.0) + more
    return tuple(Window(edge, model[edge], weight[edge]) for edge in model)


def task_body(recipe: Recipe) -> bytes:
    """Return the task for the devices; with the graph that they score a network by."""
    task = task_of(recipe)
    if not (task.on_device and task.model.is_network):
        return task_bytes(task)
    if find_spec("onnx") is None:
        _log.warning("devices will score in numpy, which is slow; %s", how_to_add("onnx"))
        return task_bytes(task)
    from .onnx_export import to_graph  # noqa: PLC0415 - 20 MB, and few recipes ask for it

    body = task_bytes(msgspec.structs.replace(task, onnx=to_graph(task.model)))
    # Names and scaling of many features leave no room for it: then numpy scores.
    return body if len(body) <= MAX_TASK_BYTES else task_bytes(task)


def settings_of(
    recipe: Recipe,
    config: CoordinatorConfig,
    *,
    run_id: str,
    coordinator: str,
    load_limit_s: float = 0.0,
    opinions: OpinionMode | None = None,
    held_out: bool = False,
) -> Settings:
    """Return the round engine's settings for a recipe; placed rounds merge every round."""
    rounds, body = recipe.rounds, task_body(recipe)
    placed = recipe.placement.rents
    return Settings(
        run=run_id,
        recipe=recipe.name,
        coordinator=coordinator,
        task=task_digest(body),
        body=body,
        seed=recipe.seed,
        policy=recipe.policy.name,
        count=rounds.count,
        every_s=rounds.every_s,
        deadline_ms=round(1000 * rounds.deadline_s),
        max_wait_ms=round(1000 * rounds.max_wait_s),
        min_updates=rounds.min_updates,
        merge_every=calls.merge_every_of(recipe),
        merge_timeout_s=rounds.merge_timeout_s,
        weighting=rounds.weighting,
        per_edge_micro=recipe.budget.per_edge_micro,
        total_micro=recipe.budget.total_micro,
        norm_limit=recipe.limits.norm,
        max_samples=recipe.limits.max_samples,
        wait_edges=config.wait_edges,
        wait_agents=config.wait_agents,
        grace_s=config.grace_s,
        linger_s=config.linger_s,
        held_out=held_out,
        placed=placed,
        load_limit_ms=max(1, round(1000 * load_limit_s)) if load_limit_s > 0 else 0,
        opinions=opinions,
        standardize=recipe.model.features if recipe.data.standardize else 0,
        standardize_s=recipe.data.standardize_s,
        **calls.settings_of(recipe, opinions),
    )


def decision_policies(recipe: Recipe) -> DecisionPolicies:
    """Return what decides in a run of this recipe, before it has learnt anything.

    Raises:
        PolicyError: A name is unknown, or a parameter out of range.
        RecipeError: The policy's slots end without an opinion.
    """
    rounds, where = recipe.rounds, recipe.placement
    spec = recipe.iterations
    placed = placement.create(where.name, **where.params)
    policy = policies.create(recipe.policy.name, **recipe.policy.params)
    calls.check_slots(recipe, policy)
    return DecisionPolicies(
        policy,
        iterations.create(spec.name, spec.params, default=rounds.iterations),
        placed if where.rents else None,
        recipe.learner.steps,
    )
