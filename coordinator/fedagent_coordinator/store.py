"""The disk of a coordinator: the database, the models of its run, and files for people.

Checkpoints, with those of `store` between them: ``decided``, ``reserved``; ``settling``,
``settled``, ``learnt``, ``snapshot``, ``pruned``; ``evaluating``, ``evaluated``; ``merged``,
``committed``; ``standardizing``, ``standardized``; ``ending``, ``reported-result``. The core marks
``orders.half`` and ``reported``.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from fedagent_coordinator.books.database import wall_clock_ms
from fedagent_coordinator.books.write import SNAPSHOT_EVERY, Books
from fedagent_coordinator.config import CoordinatorConfig
from fedagent_coordinator.core import effects as fx
from fedagent_coordinator.core.engine import Engine
from fedagent_coordinator.core.outcomes import SILENT
from fedagent_coordinator.core.settings import Progress, Settings, milliseconds
from fedagent_coordinator.errors import StoreFailedError
from fedagent_coordinator.held_out import HeldOutSet, held_out
from fedagent_coordinator.merged_models import merge_files
from fedagent_coordinator.picture.status_files import DeviceBook, RunStatus
from fedagent_coordinator.picture.summary import summarize
from fedagent_coordinator.run_settings import (
    aggregation_of,
    decision_policies,
    model_manifest,
    opinion_mode,
    robust_of,
)
from fedagent_coordinator.runs import OpenedRun, lost_model, open_run
from fedagent_coordinator.site.standing import learn_list
from fedagent_node.blobs import BlobStore
from fedagent_node.data_dir import Identity, write_private
from fedagent_node.driver import Job
from fedagent_node.effects import FinishModel, Input, Mark, ModelFinished, RunJob, Write, WriteModel
from fedagent_protocol.errors import DigestError, FedagentError
from fedagent_protocol.failpoints import Checkpoint
from fedagent_protocol.messages import (
    CHUNK_BYTES,
    AnyMessage,
    Chunk,
    EdgeWelcome,
    GlobalModel,
    ReportReceipt,
)
from fedagent_task.aggregation.sums import rules_of
from fedagent_task.recipe.spec import Recipe
from fedagent_task.recipe.text import frozen, task_bytes, task_digest
from fedagent_task.task_file import TaskFile

_log = logging.getLogger(__name__)

COLLECT_EVERY = 10
CLOSE_ROUNDS = 2 * SNAPSHOT_EVERY
"""At a time; closing them holds the event loop up for about 0.1 s."""
ROLE = "coordinator"
"""Who prunes while a run goes on."""
RESULT_FILE = "result.json"
GRAPHS = "graphs"
"""Folder of the ONNX graphs that tasks have brought, by run: for exports."""
END_FIELDS = (
    *("rounds_done", "accuracy", "loss", "primary_metric", "metrics", "spent_micro"),
    *("updates_used", "reason", "conclusion", "ledger_balanced"),
)
"""What the event of the end has of the result."""
MEASURED_S = 1.0
"""How long what was measured of a model waits for the next round to be written with."""
SMALL_BYTES = 1 << 20
"""Below this a job takes less time than handing it to a thread and back."""


class RunStore:
    """One coordinator's data directory, with the run that it works on.

    Args:
        config: The process's settings.
        recipe: What to run, or to go on with.
        boot: Names the clock of the core's times: those of another boot mean nothing.
        checkpoint: Called with a name between any two disk effects.
        clock: Seconds, for durations.
        clock_ms: Wall clock for people.
        task: What a model of kind graph begins from.
        identity: Signs the ledger; None where nobody is to be convinced (virtual time).

    Raises:
        CoordinatorError: Policy, placement, recipe, store or run do not allow a start.
        DatasetError: The held-out set cannot be read.
        RunFinishedError: The run of this recipe has ended.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        recipe: Recipe,
        *,
        boot: str,
        checkpoint: Checkpoint,
        clock: Callable[[], float],
        clock_ms: Callable[[], int] = wall_clock_ms,
        task: TaskFile | None = None,
        identity: Identity | None = None,
    ) -> None:
        self._task = task
        self.learning = decision_policies(recipe)
        self.opinions = opinion_mode(recipe, self.learning.policy)
        self.strategy, self.robust = aggregation_of(recipe), robust_of(recipe)
        self.held_out = held_out(recipe, task)
        self._config, self._folder = config, Path(config.data_dir)
        self._checkpoint, self._clock, self._clock_ms = checkpoint, clock, clock_ms
        self._collected, self._proofs = 0, identity is not None
        self._measured: list[fx.HeldOutEvaluated] = []
        self._measured_at = 0.0
        self.database = Books(
            self._folder,
            accept_lost_history=config.accept_lost_history,
            checkpoint=checkpoint,
            clock_ms=clock_ms,
            identity=identity,
        )
        try:
            self.blobs = BlobStore(self._folder / "models")
            self.run = self._open_run(config, recipe)
            self._unsaved = self.database.read.restore(self.run.run_id, self.learning)
            self._manifest = model_manifest(self.run.recipe)
            self._devices = DeviceBook(self._folder, self.run.run_id)
            self._status = RunStatus(run=self.run.run_id, boot=boot)
            self._performs = self._handlers()
        except BaseException:
            self.database.close()
            raise

    def _open_run(self, config: CoordinatorConfig, recipe: Recipe) -> OpenedRun:
        run = open_run(
            self.database, self.blobs, recipe, config, opinions=self.opinions, task=self._task
        )
        if self._task is not None and self._task.onnx:
            graphs = self._folder / GRAPHS
            graphs.mkdir(mode=0o700, exist_ok=True)
            write_private(graphs / f"{run.run_id}.onnx", self._task.onnx)
        if run.recipe.data != recipe.data:
            self.held_out = held_out(run.recipe, self._task)
        return run

    def engine(self, coordinator: str) -> Engine:
        """Return the engine of the run, which knows what it had learnt.

        Raises:
            CoordinatorError: The policy does not allow a start.
        """
        try:
            return Engine(
                settings=self._settings(coordinator),
                progress=self._progress(),
                learning=self.learning,
                indices=self.database.indices(self.run.run_id),
                paid_at=self._paid_at,
                witness=self.database.check_witness,
                clock=self._clock,
            )
        except BaseException:
            self.database.close()
            raise

    def _handlers(self) -> Mapping[type[Write], Callable[[Any], Input | None]]:
        run_id, devices, write_part = self.run.run_id, self._devices, self.blobs.write_part
        return {
            Mark: lambda e: self._checkpoint(e.name),
            WriteModel: lambda e: write_part(e.digest, e.offset, e.data),
            fx.Reserve: self._reserve,
            fx.Settle: self._settle,
            fx.Learn: self._learn,
            fx.CommitModel: self._commit_model,
            fx.SaveMetrics: self._save_metrics,
            fx.BookEvaluation: self._book_evaluation,
            fx.Forget: lambda e: self.database.forget(run_id, e.round, e.edges),
            fx.Standardize: self._standardize,
            fx.End: self._end,
            fx.ShowStatus: self._show,
            fx.NoteDevices: self._note_devices,
            fx.NoteWork: lambda e: devices.worked(e.edge, e.agents),
            fx.KeepMembers: lambda e: devices.keep(e.ids, e.members, self._clock_ms()),
            fx.LearnRevocations: lambda e: learn_list(self._folder, e.edge, e.crl),
        }

    def _settings(self, coordinator: str) -> Settings:
        config, recipe, limit_s = self._config, self.run.recipe, self.learning.control.load_limit_s
        body = task_bytes(recipe)
        return Settings(
            run=self.run.run_id,
            coordinator=coordinator,
            recipe=recipe,
            task=task_digest(body),
            body=body,
            wait_edges=config.wait_edges,
            wait_agents=config.wait_agents,
            grace_s=config.grace_s,
            linger_s=config.linger_s,
            held_out=self.held_out is not None,
            load_limit_ms=max(1, round(1000 * limit_s)) if limit_s > 0 else 0,
            opinions=self.opinions,
            strategy=self.strategy,
            robust=self.robust,
            rules=rules_of(recipe.model),
            proofs=self._proofs,
            site=config.site,
        )

    def _progress(self) -> Progress:
        """Return where the run stands; a former process of this boot may have begun a round."""
        found, ours = RunStatus.read(self._folder), (self._status.run, self._status.boot)
        same = found is not None and (found.run, found.boot) == ours
        return replace(self.run.progress, open_at=found.next_at if found and same else 0.0)

    def _paid_at(self, round_: int, edge: str) -> frozenset[str] | None:
        read, run = self.database.read, self.run.run_id
        results = read.edge_results(run, round_)
        if not any(row.edge_id == edge and row.failed != SILENT for row in results):
            return None
        rows = (row for row in read.outcomes(run, round_) if row.edge_id == edge)
        return frozenset(row.agent for row in rows if row.status in ("arrived", "late"))

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._devices.close(self._clock_ms())
        with suppress(StoreFailedError):
            self._save_measured()
        self.database.close()

    def flush(self) -> None:
        """Write what waits for people."""
        now = self._clock()
        self._devices.write(now)
        if now >= self._measured_at + MEASURED_S:
            self._save_measured()

    def _save_measured(self) -> None:
        if self._measured:
            self.database.save_metrics(self.run.run_id, *self._measured)
            self._measured = []

    def others_are(self, others: tuple[str, ...]) -> None:
        """Keep for people which other coordinators are at this site."""
        self._status = structs.replace(self._status, others=others)
        self._status.write(self._folder)

    def complete(self, message: AnyMessage, nbytes: int) -> AnyMessage:
        """Return a message with its piece of the global model, or with the head of the ledger.

        Raises:
            StoreDamagedError: The model is not on disk any more.
        """
        match message:
            case GlobalModel():
                return structs.replace(message, first=self._piece(message.digest, 0, nbytes))
            case Chunk():
                data = self._piece(message.digest, message.index * CHUNK_BYTES, nbytes)
                return structs.replace(message, data=data)
            case EdgeWelcome() | ReportReceipt():
                return structs.replace(message, head=self.database.head)
            case _:
                return message

    def _piece(self, digest: str, start: int, nbytes: int) -> bytes:
        try:
            return self.blobs.read(digest, start, nbytes)
        except DigestError as error:
            raise lost_model(digest, "missing") from error

    # ------------------------------------------------------------ disk effects

    def write(self, effect: Write, now: float) -> Input | None:  # noqa: ARG002 - agents need `now`
        """Perform a disk effect.

        Raises:
            CoordinatorError: The policy or the database failed; the process must end.
        """
        return self._performs[type(effect)](effect)

    def _reserve(self, effect: fx.Reserve) -> None:
        began = self._clock()
        self._checkpoint("decided")
        self.database.reserve(self.run.run_id, effect, policy=self.run.recipe.policy.name)
        effect.timing_ms["reserve"] = milliseconds(self._clock() - began)
        self._checkpoint("reserved")

    def _settle(self, effect: fx.Settle) -> None:
        began = self._clock()
        self._checkpoint("settling")
        if self.database.settle(self.run.run_id, effect, self._measured):
            self._measured = []
        effect.timing_ms["settle"] = milliseconds(self._clock() - began)
        self._checkpoint("settled")

    def _learn(self, effect: fx.Learn) -> None:
        run_id = self.run.run_id
        self.learning.learn(effect.feedback, effect.controls)
        self._checkpoint("learnt")
        # Rounds are counted: their numbers may leave some out, also on the word of an edge.
        self._unsaved += 1
        if self._unsaved < SNAPSHOT_EVERY:
            return
        self.database.snapshot(run_id, effect.round, self.learning.state())
        self._unsaved = 0
        self._checkpoint("snapshot")
        if keep := self._config.keep_rounds:
            few = CLOSE_ROUNDS
            self.database.prune(run_id, keep_rounds=keep, least=few, most=few, by=ROLE)
            self._checkpoint("pruned")

    def _commit_model(self, effect: fx.CommitModel) -> None:
        self._checkpoint("merged")
        self.blobs.sync(*filter(None, (effect.digest, effect.state)))
        size = self.blobs.size(effect.digest)
        self.database.save_model(self.run.run_id, effect.round, effect.digest, size, effect.state)
        self._checkpoint("committed")
        # By the round's number: a process that is killed again and again collects as well.
        if (due := effect.round // COLLECT_EVERY) != self._collected:
            self._collected = due
            self.blobs.collect(self.database.read.models.to_keep())

    def _save_metrics(self, effect: fx.SaveMetrics) -> None:
        self._measured_at = self._clock()
        self._measured.append(effect.found)

    def _book_evaluation(self, effect: fx.BookEvaluation) -> None:
        self._checkpoint("evaluating")
        self.database.save_evaluation(self.run.run_id, effect)
        self._checkpoint("evaluated")

    def _note_devices(self, effect: fx.NoteDevices) -> None:
        if effect.status is None:
            self._devices.lose(effect.edge, self._clock_ms())
        else:
            self._devices.note(effect.edge, effect.status, self._clock_ms())

    def _show(self, status: fx.ShowStatus) -> None:
        self._status = structs.replace(self._status, **structs.asdict(status))
        self._status.write(self._folder)

    def _standardize(self, effect: fx.Standardize) -> fx.Standardized:
        recipe, found = self.run.recipe, effect.moments
        data = frozen(recipe.data, found.means(), found.deviations(), found.names or ())
        recipe = structs.replace(recipe, data=data)
        self._checkpoint("standardizing")
        text = msgspec.json.encode(recipe).decode()
        agents, samples = effect.agents, found.count
        self.database.standardize(self.run.run_id, text)
        self._checkpoint("standardized")
        self.run = replace(self.run, recipe=recipe)
        self.held_out = held_out(recipe, self._task)
        body = task_bytes(recipe)
        fields = {"features": len(data.features), "agents": agents, "samples": samples}
        return fx.Standardized(task_digest(body), body, fields)

    def _end(self, effect: fx.End) -> fx.RunClosed:
        """Write the result, then end the run in the books: in this order a crash repeats it."""
        read, run_id, reason = self.database.read, self.run.run_id, effect.reason
        self._save_measured()
        summary = summarize(read, read.run(run_id), reason=reason)
        result = {**summary.record(), "ledger_balanced": read.ledger.verify().balanced}
        self._checkpoint("ending")
        text = msgspec.json.format(msgspec.json.encode(result), indent=2)
        write_private(self._folder / RESULT_FILE, text)
        self._checkpoint("reported-result")
        self.database.end_run(run_id, reason)
        return fx.RunClosed({name: result[name] for name in END_FIELDS})

    # -------------------------------------------------------------------- jobs

    def job(self, effect: RunJob) -> Job:
        """Return a job, which touches nothing but model files."""
        name = type(effect).__name__
        match effect:
            case FinishModel(size=size):
                work: Callable[[], Input] = partial(self._finish_model, effect)
            case fx.Merge(size=size):
                scored, judge = self.held_out, None
                if scored is not None and scored.judging:
                    judge = scored.judge
                    size = self._scoring_size(size, sum(len(y) for _, y in scored.judging))
                size *= len(effect.models)
                merge = partial(merge_files, self.blobs, self._manifest, effect, self.strategy)
                work = partial(merge, self.robust, judge)
            case fx.EvaluateHeldOut(size=size):
                scored = self.held_out
                size = self._scoring_size(size, 0 if scored is None else len(scored.y))
                work = partial(_evaluate, scored, self.blobs, effect)
            case _:
                raise TypeError(name)
        return Job(name, work, small=size <= SMALL_BYTES)

    def _scoring_size(self, size: int, samples: int) -> int:
        """Return what stands for how long it takes to score a model of so many bytes."""
        # Of a graph its bytes do not tell.
        graph = self.run.recipe.model.kind == "graph"
        return SMALL_BYTES + 1 if graph else size * samples // 64

    def _finish_model(self, model: FinishModel) -> ModelFinished:
        try:
            self.blobs.finish_part(model.digest, durable=False)
        except DigestError as error:
            return ModelFinished(model.digest, model.size, str(error))
        return ModelFinished(model.digest, model.size)


def _evaluate(
    scored: HeldOutSet | None, blobs: BlobStore, effect: fx.EvaluateHeldOut
) -> fx.HeldOutEvaluated:
    metrics: Mapping[str, float] = {}
    if scored is not None:
        with suppress(FedagentError):
            metrics = scored.evaluate(blobs.get(effect.digest)).metrics()
    return fx.HeldOutEvaluated(effect.round, effect.digest, metrics)
