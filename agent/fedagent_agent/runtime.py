"""The agent's core with its disk: synchronous, without clock, thread or network.

The daemon, and the virtual testbed, feed it messages and perform what it returns.
A kill between any two disk effects is a `checkpoint` that does not return.
"""

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from fedagent_protocol import topics
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import (
    AgentToEdge,
    Chunk,
    DeclineReason,
    EdgeToAgent,
    Hello,
    PeerSend,
    kind,
)
from fedagent_protocol.passwords import hide_password
from fedagent_protocol.transfer import Layout
from fedagent_task.errors import TaskFormatError
from fedagent_task.recipe import parse_task

from .core.agent import AgentCore, AgentSettings
from .core.calls import NO_LIMITS, PrivacyLimits
from .core.effects import (
    CancelTraining,
    DropUpdate,
    Effect,
    EvaluateOnDevice,
    Event,
    FinishModel,
    Key,
    OpenModel,
    OpenTask,
    Relink,
    Route,
    Send,
    SendChunk,
    SendOffer,
    StoreOpinion,
    StoreSlot,
    StoreUpdate,
    SubscribeModel,
    Train,
    Unroute,
    UnsubscribeModel,
    WriteModel,
)
from .core.reporting import FREE, Price, Readings
from .core.training_queue import REASONS
from .errors import OpinionBookError, OutboxError
from .models_cache import ModelsCache
from .opinion_book import OpinionBook
from .outbox import MAX_BYTES, Outbox
from .outward import (
    OpenStream,
    Outward,
    Publish,
    StartEvaluation,
    StartTraining,
    Subscribe,
    Unsubscribe,
)
from .peer_desk import PeerDesk
from .trainer_wire import EvaluationResult, Failed, Opened, Refused, Trained
from .wire_bench import idle_update

if TYPE_CHECKING:
    from fedagent_node.identity import Identity

__all__ = [
    "AgentRuntime",
    "OpenStream",
    "Outward",
    "Publish",
    "RuntimeSettings",
    "StartEvaluation",
    "StartTraining",
    "Subscribe",
    "Unsubscribe",
]

FLUSH_S = 2.0
"""How long a deletion may wait for a commit to ride in."""
FLUSH_AGAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """What the runtime is told of the configuration.

    Attributes:
        identity: Signs the card that neighbours are shown; None: there are no neighbours.
        neighbours: Those that the owner declares, and how far they are in kilometres.
        position: x and y in kilometres, as the owner declares it.
        idle_evaluated: Whoever performs `StartEvaluation` has a score even where the task learns
            nothing; the virtual testbed does.
    """

    agent: str
    site: str
    stream: str
    seed: int
    price: Price = FREE
    slow_s: float = 0.0
    software: str = ""
    name: str = ""
    outbox_bytes: int = MAX_BYTES
    load_limit_s: float = 0.0
    identity: "Identity | None" = None
    neighbours: dict[str, float] = field(default_factory=dict)
    position: tuple[float, float] | None = None
    privacy: PrivacyLimits = NO_LIMITS
    held_out: str = ""
    idle_evaluated: bool = False


@dataclass(slots=True)
class _Job:
    """A training and where its update will be."""

    key: Key
    out: Path
    body: bytes | None = None
    offset: int | None = None
    ready_at: float = 0.0
    result: Trained | None = None


class AgentRuntime:
    """One agent on one data directory.

    Args:
        directory: Where outbox and models are.
        settings: What the configuration says.
        now: The caller's monotonic clock.
        pending_bytes: Bytes that a link holds unacknowledged, by the link's name.
        own_address: The device's address on a link, for people; by the link's name.
        checkpoint: Called between any two disk effects.

    Raises:
        OutboxError: The outbox cannot be used.
        OpinionBookError: The record of opinions cannot be used.
    """

    def __init__(
        self,
        directory: Path,
        settings: RuntimeSettings,
        *,
        now: float,
        pending_bytes: Callable[[str], int],
        own_address: Callable[[str], str] = lambda _: "",
        checkpoint: Checkpoint = hit,
    ) -> None:
        self.settings = settings
        self._own_address = own_address
        self._now = now
        self._checkpoint = checkpoint
        self._routes: dict[str, str] = {}
        self._pending_bytes = pending_bytes
        self._outbox = Outbox(
            directory / "outbox", max_bytes=settings.outbox_bytes, checkpoint=checkpoint
        )
        self._models = ModelsCache(directory / "models", checkpoint=checkpoint)
        self._book = OpinionBook(directory / "opinions.json", checkpoint=checkpoint)
        self._jobs: dict[int, _Job] = {}
        self._idle: str = ""
        self._flush_at: float | None = None
        self._peer_desk = PeerDesk(
            directory, settings.identity, settings.neighbours, seed=settings.seed
        )
        self.core = AgentCore(
            AgentSettings(
                settings.agent,
                self._outbox.boots,
                settings.price,
                settings.software,
                settings.name,
                settings.load_limit_s,
                settings.position,
                settings.privacy,
            ),
            kept=self._outbox.load(),
            answered=self._outbox.answered(),
            said=self._book.record,
            pending=self._pending,
            peering=self._peer_desk.make,
        )

    # ------------------------------------------------------------- events in

    def link_up(self, link: str, now: float) -> list[Outward]:
        """A link is connected, for the first time or again."""
        return self._run(self.core.link_up(link, now), now)

    def link_down(self, link: str, now: float) -> list[Outward]:
        """A link is known to be down."""
        return self._run(self.core.link_down(link), now)

    def expect(self, link: str, edge: str, now: float) -> list[Outward]:
        """An advert names an edge behind a link that is up."""
        return self._run(self.core.expect(edge, link, now), now)

    def message(self, link: str, edge: str, message: EdgeToAgent, now: float) -> list[Outward]:
        """Take in what an edge sent; `now` is the network thread's stamp."""
        return self._run(self.core.message(link, edge, message, now), now)

    def subscribed(self, edge: str, digest: str, now: float, *, ok: bool = True) -> list[Outward]:
        """Take in the end of a `Subscribe`."""
        return self._run(self.core.subscribed(edge, digest, now, ok=ok), now)

    def measured(self, readings: Readings, now: float) -> list[Outward]:
        """Take in what was measured of the device."""
        return self._run(self.core.measured(readings, now), now)

    def stream_opened(
        self, digest: str, reply: Opened | Refused | Failed, now: float
    ) -> list[Outward]:
        """Take in the end of an `OpenStream`."""
        match reply:
            case Opened():
                effects = self.core.task_opened(digest, now)
            case Refused():
                effects = self.core.task_opened(digest, now, refused=reply.detail or reply.key)
            case Failed():
                said = f"trainer {reply.reason}: {reply.detail}".rstrip(": ")
                why = REASONS.get(reply.reason, DeclineReason.ERROR)
                effects = self.core.task_opened(digest, now, refused=said, reason=why)
        return self._run(effects, now)

    def trainer_ended(self, now: float) -> list[Outward]:
        """Take in that the trainer's process has ended."""
        return self._run(self.core.trainer_ended(now), now)

    def trained(self, job: int, result: Trained | Failed, now: float) -> list[Outward]:
        """Take in the end of a `StartTraining`."""
        known = self._jobs.get(job)
        if known is not None and known.body is None and isinstance(result, Trained):
            known.offset = result.offset
        outward = self._run(self.core.trained(job, result, now), now)
        self._forget(job)
        return outward

    def evaluated(self, job: int, result: EvaluationResult | Failed, now: float) -> list[Outward]:
        """Take in the end of a `StartEvaluation`."""
        return self._run(self.core.evaluated(job, result, now), now)

    def tick(self, now: float) -> list[Outward]:
        """Let time pass."""
        outward = self._run(self.core.tick(now), now)
        for job, idle in list(self._jobs.items()):
            if idle.result is not None and now >= idle.ready_at:
                outward += self.trained(job, idle.result, now)
        if self._flush_at is not None and now >= self._flush_at:
            self._flush_at = self._flush(now)
        return outward

    def _flush(self, now: float) -> float | None:
        """Commit deletions; return when to try again, as nothing is lost without them."""
        try:
            self._outbox.flush()
        except OutboxError:
            self.core.counters["outbox_flush_failed"] += 1
            return now + FLUSH_AGAIN_S
        return None

    def next_due(self) -> float | None:
        """Return when `tick` is wanted; None while nothing is going on."""
        times = [job.ready_at for job in self._jobs.values() if job.result is not None]
        times += [due for due in (self.core.next_due(), self._flush_at) if due is not None]
        return min(times, default=None)

    def bye(self, why: str, now: float) -> list[Outward]:
        """Close all sessions in good order."""
        return self._run(self.core.bye(why, now), now)

    def close(self) -> None:
        """Commit what waits, and close the disk."""
        self._outbox.close()
        self._peer_desk.close()

    def crash(self) -> None:
        """Close the disk as a kill would leave it; for the testbed."""
        self._outbox.abandon()
        self._peer_desk.close()

    # --------------------------------------------------------------- effects

    def _run(self, effects: list[Effect], now: float) -> list[Outward]:
        """Perform disk effects in order, and what follows from them at their place."""
        outward: list[Outward] = []
        queue = deque(effects)
        while queue:
            effect = queue.popleft()
            match effect:
                case Send():
                    self._publish(outward, effect.edge, effect.message)
                case SendOffer():
                    self._offer(outward, effect)
                case SendChunk():
                    self._chunk(outward, effect)
                case Route():
                    self._routes[effect.edge] = effect.link
                case Unroute():
                    self._routes.pop(effect.edge, None)
                case SubscribeModel():
                    self._subscribe(outward, effect)
                case UnsubscribeModel():
                    if (link := self._routes.get(effect.edge)) is not None:
                        outward.append(Unsubscribe(link, self._model_topic(effect)))
                case CancelTraining():
                    self._cancel(outward, effect)
                case Relink() | Event():
                    outward.append(effect)
                case _:
                    queue.extendleft(reversed(self._disk(effect, outward, now)))
        return outward

    def _disk(self, effect: Effect, outward: list[Outward], now: float) -> list[Effect]:
        match effect:
            case OpenModel() | WriteModel() | FinishModel():
                return self._take_model(effect, now)
            case OpenTask():
                return self._open_task(effect, outward, now)
            case Train():
                return self._train(effect, outward, now)
            case StoreUpdate():
                return self._keep(effect, now)
            case EvaluateOnDevice():
                return self._evaluate(effect, outward, now)
            case StoreOpinion():
                return self._keep_answer(effect, now)
            case DropUpdate():
                self._outbox.drop(effect.key)
                if self._outbox.unflushed and self._flush_at is None:
                    self._flush_at = now + FLUSH_S
            case StoreSlot():
                if not self._peer_desk.keep(effect):
                    self.core.counters["peer_not_kept"] += 1
        return []

    def _take_model(self, effect: OpenModel | WriteModel | FinishModel, now: float) -> list[Effect]:
        """Do a step of a model that comes in; a disk that refuses ends its order."""
        try:
            match effect:
                case OpenModel():
                    have = self._models.open(effect.digest, effect.size, effect.chunk_bytes)
                    return self.core.model_opened(effect.digest, have, now)
                case WriteModel():
                    self._models.write(effect.digest, effect.index, effect.data)
                    return []
                case FinishModel():
                    ok = self._models.finish(effect.digest)
                    return self.core.model_finished(effect.digest, now, ok=ok)
        except OSError as error:
            self._models.discard(effect.digest)
            return self.core.model_unwritable(effect.digest, _in_words(error), now)

    # --------------------------------------------------------------- network

    def _publish(self, outward: list[Outward], edge: str, message: AgentToEdge) -> None:
        link = self._routes.get(edge)
        if link is None:
            self.core.counters["no_route"] += 1
            return
        if isinstance(message, Hello):
            message = structs.replace(message, address=self._own_address(link)[:64])
        topic = topics.agent_up(self.settings.site, self.settings.agent, edge, kind(message))
        qos = 0 if isinstance(message, PeerSend) else 1
        outward.append(Publish(link, topic, message, qos))

    def _offer(self, outward: list[Outward], effect: SendOffer) -> None:
        offer = effect.offer
        if effect.first:
            key = Key(effect.edge, offer.run, offer.round)
            body = self._outbox.read(key, 0, min(offer.size, offer.chunk_bytes))
            offer = structs.replace(offer, first=body or b"")
        self._publish(outward, effect.edge, offer)

    def _chunk(self, outward: list[Outward], effect: SendChunk) -> None:
        upload = self.core.uploads.by_key.get(effect.key)
        if upload is None:
            return
        offer = upload.kept.offer
        start, stop = Layout(offer.size, offer.chunk_bytes).span(effect.index)
        data = self._outbox.read(effect.key, start, stop)
        if data is None:
            self.core.counters["update_unreadable"] += 1
            return
        chunk = Chunk(
            run=effect.key.run,
            round=effect.key.round,
            digest=effect.digest,
            index=effect.index,
            data=data,
        )
        self._publish(outward, effect.key.edge, chunk)

    def _subscribe(self, outward: list[Outward], effect: SubscribeModel) -> None:
        link = self._routes.get(effect.edge)
        if link is not None:
            topic = self._model_topic(effect)
            outward.append(Subscribe(link, topic, effect.edge, effect.digest))

    def _model_topic(self, effect: SubscribeModel | UnsubscribeModel) -> str:
        return topics.model(self.settings.site, effect.edge, effect.digest)

    def _pending(self, edge: str) -> int:
        link = self._routes.get(edge)
        return self._pending_bytes(link) if link is not None else 0

    # -------------------------------------------------------------- training

    def _open_task(self, effect: OpenTask, outward: list[Outward], now: float) -> list[Effect]:
        if hashlib.sha256(effect.body).hexdigest() != effect.digest:
            self.core.task_spoilt(effect.digest, now)
            return []
        try:
            task = parse_task(effect.body)
        except TaskFormatError as error:
            return self.core.task_opened(effect.digest, now, refused=str(error))
        self.core.peers.task(effect.digest, task.peers)
        if task.learner.name == "none":
            self._idle = effect.digest
            return self.core.task_opened(effect.digest, now)
        settings = self.settings
        offset = self._outbox.offset(hide_password(settings.stream))
        outward.append(
            OpenStream(
                effect.digest,
                effect.body,
                settings.stream,
                settings.seed,
                offset,
                settings.slow_s,
                settings.held_out,
            )
        )
        return []

    def _train(self, effect: Train, outward: list[Outward], now: float) -> list[Effect]:
        key = effect.key
        job = self._jobs[effect.job] = _Job(key, self._outbox.file_for(key))
        said = {"round": key.round, "edge": key.edge, "run": key.run, "recipe": effect.recipe}
        outward.append(Event("training", {**said}))
        if effect.task == self._idle:
            return self._train_idly(effect, job, now)
        try:
            model = self._models.path(effect.model)
        except OSError as error:
            del self._jobs[effect.job]
            failed = Failed(job=effect.job, reason="disk", detail=_in_words(error))
            return self.core.trained(effect.job, failed, now)
        outward.append(
            StartTraining(
                effect.job,
                model,
                job.out,
                effect.iterations,
                effect.timeout_s,
                effect.load_limit_s,
            )
        )
        return []

    def _evaluate(
        self, effect: EvaluateOnDevice, outward: list[Outward], now: float
    ) -> list[Effect]:
        if effect.task == self._idle and not self.settings.idle_evaluated:
            idle = Failed(job=effect.job, reason="idle", detail="the task learns nothing")
            return self.core.evaluated(effect.job, idle, now)
        if effect.moments:
            outward.append(StartEvaluation(effect.job, Path(), moments=True))
            return []
        try:
            model = self._models.path(effect.model)
        except OSError as error:
            failed = Failed(job=effect.job, reason="disk", detail=_in_words(error))
            return self.core.evaluated(effect.job, failed, now)
        outward.append(StartEvaluation(effect.job, model))
        return []

    def _keep_answer(self, effect: StoreOpinion, now: float) -> list[Effect]:
        try:
            self._book.keep(effect.answer, effect.spent)
        except OpinionBookError as error:
            return self.core.opinion_stored(effect.answer, now, refused=error.reason)
        return self.core.opinion_stored(effect.answer, now)

    def _train_idly(self, effect: Train, job: _Job, now: float) -> list[Effect]:
        model = self._models.read(effect.model)
        body = idle_update(model, effect.key.round) if model is not None else None
        if body is None:
            del self._jobs[effect.job]
            failed = Failed(job=effect.job, reason="model", detail="not float32 safetensors")
            return self.core.trained(effect.job, failed, now)
        job.body = body
        result = Trained(
            job=effect.job,
            digest=hashlib.sha256(body).hexdigest(),
            size=len(body),
            num_samples=1,
            iterations=max(1, effect.iterations),
            seconds=self.settings.slow_s,
            seconds_per_iteration=0.0,
            arrivals=0,
            loss=0.0,
            norm=0.0,
        )
        if self.settings.slow_s > 0:
            job.result, job.ready_at = result, now + self.settings.slow_s
            return []
        return self.core.trained(effect.job, result, now)

    def _keep(self, effect: StoreUpdate, now: float) -> list[Effect]:
        job = self._jobs.pop(effect.job)
        kept = effect.kept
        body = job.body if job.body is not None else job.out
        stream = hide_password(self.settings.stream)
        offset = (stream, job.offset) if job.offset is not None else None
        try:
            self._outbox.put(kept, body, offset=offset)
        except OutboxError as error:
            job.out.unlink(missing_ok=True)
            return self.core.store_failed(kept.key, error.reason)
        self._flush_at = None
        for key in self._outbox.over_limit():
            self._outbox.drop(key)
            self.core.expired(key)
        self._checkpoint("agent.before-offer")
        return self.core.kept(kept, now)

    def _cancel(self, outward: list[Outward], effect: CancelTraining) -> None:
        job = self._jobs.get(effect.job)
        if job is not None and job.body is not None:
            del self._jobs[effect.job]
        else:
            # Forgotten when the trainer answers: only then it writes no more.
            outward.append(effect)

    def _forget(self, job: int) -> None:
        """Remove what a training nobody wants any more has left."""
        old = self._jobs.pop(job, None)
        if old is not None and old.body is None:
            old.out.unlink(missing_ok=True)


def _in_words(error: OSError) -> str:
    return error.strerror or "the disk failed"
