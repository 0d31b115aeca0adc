"""The coordinator without a network: engine, store and models in one object.

Synchronous. Disk effects are done at once and in order; what must leave the
process comes back as outward effects. A kill is the same as dropping the object:
another one on the same directory goes on (docs/coordinator.md).
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from fedagent_node.blobs import BlobMissingError, BlobStore
from fedagent_node.data_dir import write_private
from fedagent_protocol import topics
from fedagent_protocol.codec import Direction, decode_edge_to_coordinator, encode
from fedagent_protocol.errors import ProtocolError, TopicError
from fedagent_protocol.failpoints import Checkpoint
from fedagent_protocol.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    Chunk,
    CoordinatorBeacon,
    EdgeHello,
    EdgeStatus,
    GlobalModel,
    RoundReport,
    kind,
)
from fedagent_protocol.tensors import Manifest
from fedagent_protocol.transfer import Layout
from fedagent_task import models
from fedagent_task.recipe import frozen, task_digest
from fedagent_task.spec import Recipe

from .calls import mode_of
from .core import effects as fx
from .core.engine import Engine
from .core.outcomes import SILENT
from .core.readiness import DECLINED
from .database.connection import wall_clock_ms
from .database.learning import SNAPSHOT_EVERY
from .devices import DeviceBook
from .errors import ModelLostError
from .evaluation import HeldOutSet, held_out
from .jobs import (
    CheckPart,
    Evaluated,
    EvaluateModel,
    Job,
    JobResult,
    MergeDone,
    MergeModels,
    PartChecked,
)
from .run_status import RunStatus, next_round_at, write_run_status
from .runs import OpenedRun, decision_policies, open_run, settings_of, task_body
from .store import Store
from .summary import summarize

_log = logging.getLogger(__name__)

BEACON_MS = 5000
COLLECT_EVERY = 10
RESULT_FILE = "result.json"
END_FIELDS = (
    *("rounds_done", "accuracy", "loss", "primary_metric", "metrics", "spent_micro"),
    *("updates_used", "reason", "conclusion", "ledger_balanced"),
)
"""What the event of the end has of the result."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Say one message on one topic."""

    topic: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is over; say so to edges for a while, then leave.

    Attributes:
        nothing_learnt: No round used any update: the model is the one it began with.
        conclusion: Why it stopped before its last round, in one line; empty if it did not.
    """

    reason: str
    nothing_learnt: bool = False
    conclusion: str = ""


Outward = Publish | fx.CrashPoint | fx.Event | Job | Finished
"""What the shell does, in this order: publish, `checkpoint`, print, run, leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """What a coordinator is told at its start; see `config.CoordinatorConfig`.

    Attributes:
        boot: Names the clock of `now`: times that were kept under another mean nothing.
    """

    data_dir: Path
    coordinator: str
    recipe: Recipe
    site: str = "default"
    new_run: bool = False
    accept_lost_history: bool = False
    wait_edges: int = 1
    wait_agents: int = 1
    grace_s: float = 2.0
    boot: str = ""
    more_rounds: int = 0
    init: str = ""


class CoordinatorRuntime:
    """One coordinator's state, on disk and in memory.

    Args:
        options: What to do.
        checkpoint: Called with a name between any two disk effects.
        clock: Seconds, for durations.
        clock_ms: Wall clock for people, in the books.

    Attributes:
        run: The run it works on.
        engine: The round engine; its counters say what was refused.
        counters: What never came to the engine, by reason.
        store, blobs: What is on disk.

    Raises:
        CoordinatorError: Policy, placement, recipe, store or run do not allow a start.
        DatasetError: The held-out set cannot be read.
        RunFinishedError: The run of this recipe has ended.
    """

    def __init__(
        self,
        options: RuntimeOptions,
        *,
        checkpoint: Checkpoint,
        clock: Callable[[], float],
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        recipe = options.recipe
        self.options = options
        self.checkpoint = checkpoint
        self.counters: Counter[str] = Counter()
        self._clock, self._clock_ms = clock, clock_ms
        self._policies = decision_policies(recipe)
        self._opinions = mode_of(recipe, self._policies.policy)
        self._held_out: HeldOutSet | None = held_out(recipe)
        self._manifest: Manifest = models.create(recipe.model).manifest()
        self.store = Store(
            options.data_dir,
            accept_lost_history=options.accept_lost_history,
            checkpoint=checkpoint,
            clock_ms=clock_ms,
        )
        try:
            self.blobs = BlobStore(options.data_dir / "models")
            self.run: OpenedRun = self._open_run()
            if self.run.recipe.data != recipe.data:
                self._held_out = held_out(self.run.recipe)
            self._devices = DeviceBook(options.data_dir, self.run.run_id)
            self.engine = self._engine()
        except BaseException:
            self.store.close()
            raise
        self._evaluated: Evaluated | None = None
        self._jobs = 0
        self._end_reason = ""
        self._commits = 0
        self._labels: dict[str, str] = {}
        self._finished = self._fruitful = False
        self._waiting = RunStatus(run=self.run.run_id)
        self._others: tuple[str, ...] = ()

    def close(self) -> None:
        """Close the store. Idempotent."""
        self._devices.close(self._clock_ms())
        self.store.close()

    def _open_run(self) -> OpenedRun:
        options = self.options
        return open_run(
            self.store,
            self.blobs,
            options.recipe,
            new_run=options.new_run,
            opinions=self._opinions,
            more_rounds=options.more_rounds,
            init=options.init,
        )

    def _engine(self) -> Engine:
        """Return the engine, with a policy that knows what it had learnt."""
        options, run_id = self.options, self.run.run_id
        name = options.recipe.policy.name
        self.store.restore(run_id, name, self._policies)
        open_at = next_round_at(options.data_dir, run_id, options.boot)
        return Engine(
            settings=settings_of(
                self.run.recipe,
                run_id=run_id,
                coordinator=options.coordinator,
                wait_edges=options.wait_edges,
                wait_agents=options.wait_agents,
                grace_s=options.grace_s,
                load_limit_s=self._policies.control.load_limit_s,
                opinions=self._opinions,
            ),
            progress=replace(self.run.progress, open_at=open_at),
            policies=self._policies,
            indices=self.store.indices(run_id),
            in_books=self._was_settled,
            clock=self._clock,
        )

    def _was_settled(self, round_: int, edge: str) -> bool:
        rows = self.store.read.edge_results(self.run.run_id, round_)
        return any(row.edge_id == edge and row.failed != SILENT for row in rows)

    # ------------------------------------------------------------------ inputs

    def start(self, now: float) -> list[Outward]:
        """Begin; the beacon makes edges say hello."""
        return [self.beacon(), *self._perform(self.engine.start(now))]

    def receive(
        self, topic: str, payload: bytes, now: float, *, link_idle: bool = True
    ) -> list[Outward]:
        """Take in what came on a topic; foreign bytes are counted and change nothing.

        Args:
            topic: Where it came; its edge is the sender.
            payload: The bytes.
            now: Monotonic seconds, when it came.
            link_idle: Whether everything published before was acknowledged.

        Raises:
            CoordinatorError: The policy or the store failed; the process must end.
        """
        try:
            where = topics.parse(topic)
            if where.direction is not Direction.EDGE_TO_COORDINATOR:
                raise TopicError("not for the coordinator")
            message = (
                decode_edge_to_coordinator(payload)
                if where.version == PROTOCOL_VERSION
                else EdgeHello(edge=where.edge, epoch="", protocol=where.version)
            )
        except ProtocolError as error:
            self.counters[error.reason] += 1
            return []
        if isinstance(message, RoundReport):
            self.checkpoint("reported")
        elif isinstance(message, EdgeStatus):
            self._devices.note(where.edge, message, self._clock_ms())
            self._devices.write(now)
        effects = self.engine.receive(where.edge, message, now, link_idle=link_idle)
        return self._perform(effects)

    def tick(self, now: float) -> list[Outward]:
        """Do what is due; see `next_due`.

        Raises:
            CoordinatorError: The policy or the store failed; the process must end.
        """
        return self._perform(self.engine.tick(now))

    def next_due(self) -> float | None:
        """Return when `tick` is wanted; None while only messages matter."""
        return self.engine.next_due()

    def job_done(self, result: JobResult, now: float) -> list[Outward]:
        """Take in the result of a job."""
        self._jobs -= 1
        match result:
            case PartChecked():
                effects = self.engine.part_checked(result.digest, intact=result.intact, now=now)
                return self._perform(effects)
            case MergeDone():
                for digest, why in result.refused.items():
                    _log.warning("edge model %s is left out: %s", digest[:12], why)
                    self.counters["model_refused"] += 1
                return self._perform(self.engine.merged(result.round, result.digest, now))
            case Evaluated():
                return [*self._on_held_out(result), *self._perform([])]

    def beacon(self) -> Publish:
        """Return the heartbeat to all edges, due every `BEACON_MS`."""
        self._devices.write(self._clock())
        me = self.options.coordinator
        message = CoordinatorBeacon(run=self.run.run_id, coordinator=me, period_ms=BEACON_MS)
        return Publish(topics.coordinator_beacon(self.options.site, me), encode(message))

    def goodbye(self) -> list[Outward]:
        """Return the end of the run, said again to every edge that is there."""
        return [self._to_edge(send.edge, send.message) for send in self.engine.farewell()]

    # ----------------------------------------------------------------- effects

    def _perform(self, effects: list[fx.Effect]) -> list[Outward]:
        """Do disk effects in order; return what is left for the shell."""
        outward: list[Outward] = []
        for effect in effects:
            outward += self._perform_one(effect)
        if self._end_reason and self._jobs == 0 and not self._finished:
            # A process that came back at the very end has not evaluated the last model.
            outward += self._evaluate_last() or self._finish()
        return outward

    def _perform_one(self, effect: fx.Effect) -> list[Outward]:
        match effect:
            case fx.Send():
                return [self._to_edge(effect.edge, effect.message)]
            case fx.SendGlobal():
                return [self._offer(effect)]
            case fx.SendChunks():
                return self._chunks(effect)
            case fx.CrashPoint():
                return [effect]
            case fx.Event():
                self._label(effect)
                self._note(effect)
                return [effect]
            case fx.StorePart():
                self.blobs.write_part(effect.digest, effect.offset, effect.data)
                return []
            case fx.FinishPart():
                return self._job(CheckPart(self.blobs, effect.digest, effect.size))
            case fx.Merge():
                return self._job(
                    MergeModels(
                        self.blobs, self._manifest, effect.round, effect.models, effect.size
                    )
                )
            case fx.Evaluate():
                return self._evaluate(effect.round, effect.digest, effect.size)
            case fx.Standardize():
                return self._standardize(effect)
            case fx.End():
                self._end_reason = effect.reason
                return []
            case _:
                self._book(effect)
                return []

    def _book(self, effect: fx.Booked) -> None:
        """Write one step of a round, with crash points around it."""
        run_id, began = self.run.run_id, self._clock()
        match effect:
            case fx.Reserve():
                self.checkpoint("decided")
                self.store.reserve(run_id, effect, policy=self.options.recipe.policy.name)
                self._took(effect.timing_ms, "reserve", began)
                if self._waiting.waiting or self.options.recipe.rounds.every_s:
                    self._waiting = RunStatus(run=run_id)
                    self._write_run_status()
                self.checkpoint("reserved")
            case fx.Settle():
                self.checkpoint("settling")
                self.store.settle(run_id, effect)
                self._fruitful = bool(effect.feedback.used.any())
                self._took(effect.timing_ms, "settle", began)
                self.checkpoint("settled")
            case fx.Learn():
                self._policies.learn(effect.feedback, effect.controls)
                self.checkpoint("learnt")
                if effect.round % SNAPSHOT_EVERY == 0:
                    name = self.options.recipe.policy.name
                    self.store.snapshot(run_id, effect.round, name, self._policies.state())
                    self.checkpoint("snapshot")
            case fx.BookOpinions() | fx.BookVolunteers():
                self.checkpoint("evaluating")
                self.store.evaluate(run_id, effect)
                self.checkpoint("evaluated")
            case fx.CommitModel():
                self.checkpoint("merged")
                self.store.save_model(
                    run_id, effect.round, effect.digest, self.blobs.size(effect.digest)
                )
                self.checkpoint("committed")
                self._collect()
            case fx.Forget():
                self.store.forget(run_id, effect.round, effect.edges)

    def _standardize(self, effect: fx.Standardize) -> list[Outward]:
        """Keep what features are scaled by, then go on with a task that says it."""
        recipe, found = self.run.recipe, effect.moments
        data = frozen(recipe.data, found.means(), found.deviations())
        recipe = msgspec.structs.replace(recipe, data=data)
        self.checkpoint("standardizing")
        self.store.standardize(
            self.run.run_id,
            msgspec.json.encode(recipe).decode(),
            agents=effect.agents,
            samples=found.count,
        )
        self.checkpoint("standardized")
        self.run = replace(self.run, recipe=recipe)
        self._held_out = held_out(recipe)
        told = {"features": len(data.features), "agents": effect.agents, "samples": found.count}
        body = task_body(recipe)
        effects = self.engine.standardized(task_digest(body), body, effect.now)
        return [fx.Event("standardized", told), *self._perform(effects)]

    def _collect(self) -> None:
        """Remove old models now and then; the newest and the best stay."""
        self._commits += 1
        if self._commits % COLLECT_EVERY == 0:
            self.blobs.collect(self.store.read.models.to_keep())

    def _took(self, timing_ms: dict[str, float], step: str, began: float) -> None:
        timing_ms[step] = round(1000.0 * (self._clock() - began), 3)

    # ------------------------------------------------------------- to the edges

    def _to_edge(self, edge: str, message: AnyMessage) -> Publish:
        topic = topics.edge_down(self.options.site, edge, kind(message))
        return Publish(topic, encode(message))

    def _offer(self, effect: fx.SendGlobal) -> Publish:
        layout = effect.layout
        message = GlobalModel(
            run=self.run.run_id,
            round=effect.round,
            digest=effect.digest,
            size=layout.size,
            chunk_bytes=layout.chunk_bytes,
            first=self._piece(effect.digest, layout, 0),
        )
        return self._to_edge(effect.edge, message)

    def _chunks(self, effect: fx.SendChunks) -> list[Outward]:
        out: list[Outward] = []
        for index in effect.indices:
            data = self._piece(effect.digest, effect.layout, index)
            chunk = Chunk(run=self.run.run_id, digest=effect.digest, index=index, data=data)
            out.append(self._to_edge(effect.edge, chunk))
        return out

    def _piece(self, digest: str, layout: Layout, index: int) -> bytes:
        start, stop = layout.span(index)
        try:
            return self.blobs.read(digest, start, stop - start)
        except BlobMissingError as error:
            raise ModelLostError(self.run.run_id, digest, "missing") from error

    def _label(self, event: fx.Event) -> None:
        """Keep the name that people gave an edge."""
        edge, name = str(event.fields.get("edge", "")), str(event.fields.get("name", ""))
        if event.name == "edge_joined" and name != edge and self._labels.get(edge) != name:
            self._labels[edge] = name
            self.store.indices(self.run.run_id).label_edge(edge, name)

    def _note(self, event: fx.Event) -> None:
        """Keep for people who is there, and what is waited for."""
        if event.name == "waiting":
            self._waiting = _as_run_status(self.run.run_id, event.fields)
        elif event.name == DECLINED:
            if self._fruitful:
                return  # the others go on
            # Until a round begins with others.
            why = str(event.fields["reason"])
            self._waiting = RunStatus(run=self.run.run_id, waiting=DECLINED, detail=why)
        elif event.name == "edge_lost":
            self._devices.lose(str(event.fields["edge"]), self._clock_ms())
        elif event.name != "edge_joined":
            return
        self._write_run_status()

    def others_are(self, others: tuple[str, ...]) -> None:
        """Keep for people which other coordinators are at this site."""
        self._others = others
        self._write_run_status()

    def _write_run_status(self) -> None:
        now = msgspec.structs.replace(
            self._waiting,
            others=self._others,
            edges_live=len(self.engine.edges.live()),
            next_at=self.engine.not_before,
            boot=self.options.boot,
        )
        write_run_status(self.options.data_dir, now)

    # ------------------------------------------------------- evaluating, and the end

    def _job(self, job: Job) -> list[Outward]:
        self._jobs += 1
        return [job]

    def _evaluate(self, round_: int, digest: str, size: int) -> list[Outward]:
        if self._held_out is None:
            return self._on_held_out(Evaluated(round_, digest))
        return self._job(EvaluateModel(self.blobs, self._held_out, round_, digest, size))

    def _evaluate_last(self) -> list[Outward]:
        """Evaluate the last model unless this process has done so."""
        last = self.store.read.models.last(self.run.run_id)
        if last is None or self._held_out is None:
            return []
        if self._evaluated is not None and self._evaluated.digest == last.digest:
            return []
        return self._evaluate(last.round, last.digest, self.engine.models.size)

    def _on_held_out(self, found: Evaluated) -> list[Outward]:
        self._evaluated = found
        if found.metrics:
            self.store.save_metrics(self.run.run_id, found.round, found.digest, found.metrics)
        named: dict[str, fx.Value] = {"accuracy": None, "loss": None, **found.metrics}
        return [fx.Event("model", {"round": found.round, "digest": found.digest, **named})]

    def _finish(self) -> list[Outward]:
        """Write the report, then end the run in the books: in this order a crash repeats it."""
        self._finished = True
        read = self.store.read
        summary = summarize(read, read.run(self.run.run_id), reason=self._end_reason)
        result = {**summary.record(), "ledger_balanced": read.ledger.verify().balanced}
        self.checkpoint("ending")
        path = self.options.data_dir / RESULT_FILE
        write_private(path, msgspec.json.format(msgspec.json.encode(result), indent=2))
        self.checkpoint("reported-result")
        self.store.end_run(self.run.run_id, self._end_reason)
        end = fx.Event("end", {name: result[name] for name in END_FIELDS})
        finished = Finished(
            self._end_reason,
            nothing_learnt=not summary.updates_used,
            conclusion=summary.conclusion,
        )
        return [end, finished]


def _as_run_status(run: str, waiting: Mapping[str, fx.Value]) -> RunStatus:
    """Return what is waited for, as its event says it."""
    why = str(waiting["reason"])
    return RunStatus(
        run=run,
        waiting=why,
        detail=str(waiting.get("detail", "")),
        found=int(str(waiting.get(why, 0))),
        wanted=int(str(waiting.get("wanted", 0))),
    )
