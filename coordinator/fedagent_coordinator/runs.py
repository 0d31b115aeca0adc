"""Which run a coordinator works on, and where that stands."""

import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from msgspec import structs

from fedagent_coordinator.books.rows import RunRow
from fedagent_coordinator.books.write import Books
from fedagent_node.blobs import BlobStore
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import OpinionMode
from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_task import models
from fedagent_task.models.graph import Graph
from fedagent_task.recipe.files import RecipeFile, open_recipe
from fedagent_task.recipe.spec import Recipe
from fedagent_task.recipe.text import recipe_digest
from fedagent_task.task_file import TaskFile
from fedagent_task.travelling import model_tensors, with_controls

from .config import CoordinatorConfig
from .core.answers import without_answers
from .core.readiness import BUDGET, TARGET
from .core.settings import (
    Evaluations,
    Progress,
    Window,
    by_client,
    is_last,
    merges,
    most_weight,
)
from .errors import CoordinatorError, RefusedError, RunConflictError, StoreDamagedError
from .held_out import held_out
from .run_settings import (
    aggregation_of,
    decision_policies,
    model_manifest,
    robust_of,
)

_log = logging.getLogger(__name__)

VOID_REASON = "the coordinator was restarted"
_DIGEST = re.compile(r"[0-9a-f]{8,64}")
_EXPORT = "give a file that `fedagent export --model NAME.safetensors` wrote"


class RunFinishedError(CoordinatorError):
    """Raised when the run of this recipe has ended: there is nothing left to do."""

    template = (
        "run {run_id:.8} of this recipe has ended after {progress.rounds_done} rounds ({reason}); "
        "{on}begin another with --new-run"
    )

    run_id: str
    reason: str
    progress: Progress

    @property
    def on(self) -> str:
        """How to go on, where it takes rounds alone: no money, and something left to reach."""
        return "" if self.reason in (BUDGET, TARGET) else "continue it with --more-rounds N, or "


def read_recipe(config: CoordinatorConfig) -> RecipeFile:
    """Return the recipe with the overrides of the configuration, and the task that it names."""
    return open_recipe(Path(config.recipe), config.recipe_sets)


def check_recipe(config: CoordinatorConfig) -> None:
    """Make what a start makes of the recipe, and leave nothing behind.

    Raises:
        RecipeError, RecipeError: It cannot be read, or a key is wrong.
        PolicyError: A name is unknown, or a parameter of the policy.
        DatasetError: The held-out set cannot be read.
        RefusedError: The model to begin from is none of this recipe.
    """
    read = read_recipe(config)
    recipe = read.recipe
    decision_policies(recipe)
    aggregation_of(recipe)
    robust_of(recipe)
    held_out(recipe, read.task)
    if config.init:
        read_first_model(config.init, Path(config.data_dir) / "models", recipe)


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run to work on; its recipe has the rounds and the scaling that were added to it."""

    run_id: str
    resumed: bool
    progress: Progress
    recipe: Recipe


def open_run(
    store: Books,
    blobs: BlobStore,
    recipe: Recipe,
    config: CoordinatorConfig,
    *,
    opinions: OpinionMode | None = None,
    task: TaskFile | None = None,
) -> OpenedRun:
    """Resume the run of this recipe, or begin one.

    Of a model of kind graph, `task` has what the run begins from, and what devices get once.

    What was in flight is voided, once: its reservations go back to the budget. An evaluation
    that was in flight is booked before anything is learnt from the books; `opinions` is
    what the run calls its clients for.

    Raises:
        RunConflictError: A run of another recipe is open and nobody asked for a new one.
        RunFinishedError: The newest run of this recipe has ended, and gets no more rounds.
        RefusedError: There is no run to go on with, or no such model; or the run began
            from another model.
        StoreDamagedError: The global model of the run is not on disk as it was written.
    """
    former = _former(store, recipe_digest(recipe), config)
    if former is None:
        run = _begun(store, blobs, recipe, config)
    else:
        _check_origin(blobs, recipe, former, config.init)
        run = _gone_on(store, former, config.more_rounds)
    run_id = run.run_id
    wanted = store.read.rounds_of(run)
    # None is a recipe that this version cannot read; as 0 it would be a run without an end.
    count = recipe.rounds.count if wanted is None else wanted
    recipe = structs.replace(recipe, rounds=structs.replace(recipe.rounds, count=count))
    if voided := store.void_open_rounds(run_id, VOID_REASON):
        _log.warning("voided the rounds that were in progress: %s", ", ".join(map(str, voided)))
    if task is not None and task.model.once:
        blobs.put(task.once_bytes)
    progress = _with_model(store, blobs, recipe, run_id, task)
    progress = _with_past(store, recipe, run_id, progress, opinions)
    if recipe.data.standardize and run.scaled:
        data = msgspec.json.decode(run.recipe, type=Recipe).data
        recipe = structs.replace(recipe, data=data)
    return OpenedRun(run_id, former is not None, progress, recipe)


def _former(store: Books, digest: str, config: CoordinatorConfig) -> RunRow | None:
    if config.new_run:
        return None
    former = store.read.open_run()
    if former is not None and former.recipe_digest != digest:
        raise RunConflictError(former.run_id, former.recipe_digest)
    return former or store.read.find_run(digest)


def _begun(store: Books, blobs: BlobStore, recipe: Recipe, config: CoordinatorConfig) -> RunRow:
    if config.more_rounds:
        hint = "leave it out, or give the recipe of the run to continue, with every --set"
        raise RefusedError("--more-rounds: this data directory has no run of this recipe", hint)
    origin = ""
    if config.init:
        if recipe.data.standardize:
            _log.warning(
                "--init: data.standardize computes new feature scales; the initial model was "
                "trained with other ones"
            )
        origin = blobs.put(read_first_model(config.init, blobs.folder, recipe))
    return store.begin_run(
        recipe_digest=recipe_digest(recipe),
        recipe=msgspec.json.encode(recipe).decode(),
        seed=recipe.seed,
        total_micro=recipe.budget.total_micro,
        origin=origin,
    )


def _gone_on(store: Books, run: RunRow, more_rounds: int) -> RunRow:
    if run.ended_ms is None:
        if more_rounds:
            _log.info(
                "run %s has not ended and continues as before; --more-rounds is for a run that "
                "has ended",
                run.run_id[:8],
            )
        return run
    if not more_rounds:
        reason = run.end_reason or "ended"
        raise RunFinishedError(run.run_id, reason, store.read.progress(run.run_id))
    count = store.extend_run(run.run_id, more_rounds)
    _log.info(
        "run %s continues for %d more rounds, up to round %d", run.run_id[:8], more_rounds, count
    )
    return store.read.run(run.run_id)


def _check_origin(blobs: BlobStore, recipe: Recipe, run: RunRow, init: str) -> None:
    """Refuse another model than the run began from; its file need not be there any more."""
    if not init:
        return
    began = run.origin
    try:
        data = read_first_model(init, blobs.folder, recipe)
    except RefusedError as error:
        if not began:
            raise
        _log.warning("%s; the run continues from what it has learnt without it", error.problem)
        return
    if digest_of(data) != began:
        named = f"model {began[:12]}" if began else "the seed's model"
        raise RefusedError(
            f"--init {init}: run {run.run_id[:8]} began from {named}",
            "leave it out to continue, or start another run with --new-run",
        )
    blobs.put(data)


def read_first_model(named: str, folder: Path, recipe: Recipe) -> bytes:
    """Return a model as a run keeps it; what is beside its tensors is left out.

    It is named by its file, or by 8 hex digits at least of its digest in `folder`.

    Raises:
        RefusedError: There is none, or it is no model of this recipe.
    """
    option, model = f"--init {named}", models.create(recipe.model)
    whole = model_manifest(recipe)
    exported = model.whole_manifest() if isinstance(model, Graph) else whole
    path = _path(option, named, folder)
    try:
        size = path.stat().st_size
        most = max(whole.max_file_bytes, exported.max_file_bytes)
        if size > most:
            problem = f"is {size} bytes, a model of this recipe at most {most}"
            raise RefusedError(f"{option}: {problem}", _EXPORT)
        data = path.read_bytes()
    except OSError as error:
        raise RefusedError(f"{option}: cannot be read ({error.strerror})", _EXPORT) from error
    try:
        tensors = model_tensors(data, model.manifest(), exported)
    except ProtocolError as error:
        raise RefusedError(f"{option}: is no model of this recipe: {error}", _EXPORT) from error
    for name, tensor in tensors.items():
        if not np.isfinite(tensor.astype(np.float64)).all():
            problem = f"tensor {name!r} has values that are not finite (nan, inf)"
            raise RefusedError(f"{option}: {problem}", "take another model")
    return encode_tensors(with_controls(tensors, whole))


def _path(option: str, named: str, folder: Path) -> Path:
    path = Path(named).expanduser()
    if path.is_file():
        return path
    kept = [file for file in folder.glob("*") if _DIGEST.fullmatch(file.name)]
    found = [file for file in kept if file.name.startswith(named)]
    if not _DIGEST.fullmatch(named) or not found:
        raise RefusedError(
            f"{option}: there is no such file, and no model with that digest here", _EXPORT
        )
    if len(found) > 1:
        problem = f"{len(found)} models begin with these digits"
        raise RefusedError(f"{option}: {problem}", "give more digits of `fedagent models list`")
    return found[0]


def _with_past(
    store: Books, recipe: Recipe, run_id: str, progress: Progress, mode: OpinionMode | None
) -> Progress:
    strategy = aggregation_of(recipe)
    windows = _windows(store, run_id, most_weight(strategy, recipe))
    if windows and strategy.every_round:
        # An edge's own control variates are no run's: it begins from the global model.
        store.forget(run_id, store.read.last_round(run_id), list(windows))
        windows = {}
    past = Evaluations() if mode is None else _past_evaluations(store, run_id, recipe, mode)
    if windows and past.pending is not None:
        # Edges hold what they learnt, not the model to be evaluated; the next merge asks again.
        past = replace(past, pending=None, count=past.every - 1)
    read, starts = store.read, store.read.client_starts(run_id)
    since = progress.next_round - recipe.aggregation.oldest_work
    return replace(
        progress,
        windows=windows,
        evaluations=past,
        paid_work=read.recent_work(run_id, since),
        updates=read.paid_updates(run_id) if recipe.privacy.wanted else {},
        client_starts=progress.client_starts if starts is None else starts,
    )


def _past_evaluations(store: Books, run_id: str, recipe: Recipe, mode: OpinionMode) -> Evaluations:
    """Return where the evaluations of a run stand; a lost one is booked without answers.

    A coordinator that died between the end of a round and its evaluation cannot know what
    clients thought: the books say so (``restart``) before anything is learnt from them.
    Volunteers are asked again, because nothing is learnt from who they were.
    """
    read = store.read
    evaluated = read.evaluations.rows(run_id)
    since = evaluated[-1].round if evaluated else 0
    found, latest = Evaluations.of(recipe, mode), read.evaluations.last_opinions(run_id)
    client, score = np.array(list(latest), np.int64), np.array(list(latest.values()), np.float64)
    found.opinions = by_client(client, score, int(client.max(initial=-1)) + 1)
    with read.whole(run_id, first=since + 1) as past:
        rounds = past.rounds(run_id, last=read.last_round(run_id) - since)
        done = [row for row in rounds if row.round > since and row.state == "done"]
        trained = {row.agent for row in past.outcomes(run_id, since=since) if row.used}
    progress, due, found.evaluated = read.progress(run_id), False, len(evaluated)
    for place, row in enumerate(done, start=1 + progress.rounds_done - len(done)):
        last = is_last(recipe, place)
        due = found.is_due(merges=merges(recipe, place), played=row.ordered > 0, last=last)
    found.pending = done[-1].round if due else None
    if mode is OpinionMode.REPORT and found.pending is not None:
        model, lost_of = read.models.last(run_id), found.pending
        digest = model.digest if model is not None and model.round == lost_of else ""
        clients = store.indices(run_id).sizes()[0]
        store.save_evaluation(run_id, without_answers(lost_of, len(evaluated) + 1, digest, clients))
        _log.warning("no opinions are counted for round %d: the coordinator was restarted", lost_of)
        found.evaluated, found.pending = len(evaluated) + 1, None
        return found
    if not evaluated and progress.rounds_done == 0:
        found.pending = 0
    if mode is OpinionMode.PEERS:
        answers = read.evaluations.answers(run_id, since)
        found.volunteers = frozenset(row.client for row in answers if row.score is None)
        found.trained = trained
    return found


def _with_model(
    store: Books, blobs: BlobStore, recipe: Recipe, run_id: str, task: TaskFile | None
) -> Progress:
    progress, origin = store.read.progress(run_id), store.read.run(run_id).origin
    if progress.state and not blobs.is_whole(progress.state):
        _log.warning("the state of the server optimiser is lost: it starts again")
        progress = replace(progress, state="")
    if progress.model and blobs.is_whole(progress.model):
        return progress
    if origin and not progress.model and blobs.is_whole(origin):
        store.save_model(run_id, 0, origin, blobs.size(origin))
        return store.read.progress(run_id)
    named = progress.model or origin
    if task is not None:
        data = _first(task.first_bytes, recipe)
    elif recipe.model.kind == "graph":
        raise lost_model(named or recipe.model.first, "missing")
    else:
        data = _first(encode_tensors(models.create(recipe.model).init(recipe.seed)), recipe)
    # An edge checks what it gets: a damaged model would be sent for ever, and no round begin.
    if named and (named != digest_of(data) or not progress.model):
        raise lost_model(named, "damaged" if blobs.has(named) else "missing")
    digest = blobs.put(data)
    if not progress.model:
        store.save_model(run_id, 0, digest, len(data))
    return store.read.progress(run_id)


def lost_model(digest: str, how: str) -> StoreDamagedError:
    """Return the error of a global model that is not on disk as it was written."""
    hint = (
        "restore that file from a backup of the data directory, or start a new run with --new-run"
    )
    return StoreDamagedError(f"the run's global model, models/{digest},", f"is {how}", hint)


def _first(data: bytes, recipe: Recipe) -> bytes:
    plain, whole = models.create(recipe.model).manifest(), model_manifest(recipe)
    if plain == whole:
        return data
    return encode_tensors(with_controls(model_tensors(data, plain), whole))


def _windows(store: Books, run_id: str, most: float) -> dict[str, Window]:
    """Return what edges have learnt, by the books, since the last merge."""
    last = store.read.models.last(run_id)
    since = last.round if last is not None else 0
    edges, found = store.read.edge_totals(run_id), dict[str, Window]()
    for row in store.read.edge_results(run_id, since=since):
        if row.round > max(since, edges[row.edge_id].forgotten) and row.model and not row.failed:
            said = (row.model, row.weight, row.local_steps, row.norm)
            window = found.get(row.edge_id, Window(""))
            found[row.edge_id] = window.after(*said, ordered=row.ordered, most=most)
    return found
