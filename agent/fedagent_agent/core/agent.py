"""The agent as a pure state machine: a session with every edge, and one training at a time.

docs/protocol.md has the order of things. A message that does not fit is counted by reason and
changes nothing else.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fedagent_agent.peers.core.selection import OpenPeers, PeerSelection
from fedagent_agent.trainer.frames import (
    Evaluated,
    Failed,
    Masked,
    Open,
    Opened,
    Reply,
    Trained,
)
from fedagent_node.effects import (
    Effect,
    Emit,
    Input,
    LinkDown,
    LinkUp,
    ModelFinished,
    Received,
    Revoked,
    Send,
    WriteModel,
)
from fedagent_protocol import SOFTWARE
from fedagent_protocol.errors import MalformedError, ProtocolError
from fedagent_protocol.messages import (
    AnyMessage,
    Chunk,
    DeclineReason,
    EdgeBeacon,
    Hello,
    MaskAsk,
    MaskDelivery,
    MaskRoster,
    Need,
    Neighbours,
    OpinionCall,
    PeerDeliver,
    Probe,
    ProbeReply,
    Receipt,
    Revocations,
    RoundClosed,
    TaskBody,
    TrainOrder,
    Welcome,
    kind,
)
from fedagent_protocol.signed import SignAnswer

from .device import DeviceState
from .download import Download
from .effects import (
    CarryUpdate,
    DiskFailed,
    DropOutput,
    EdgesFound,
    FinishModel,
    Key,
    MakeIdleUpdate,
    Measured,
    ModelOpened,
    OpenModel,
    OpinionStored,
    Stopping,
    StoreOpinion,
    StoreUpdate,
    Survived,
    Timer,
    TrainerEnded,
    UpdateStored,
)
from .evaluator import Evaluator
from .masking import Masking, OpenMember
from .opinions import NO_LIMITS
from .session import Claims, Session, Sessions
from .tasks import Jobs, Preparation, Tasks
from .training_queue import TrainingQueue
from .uploads import Upload, Uploads
from .vouching import UNASSIGNED, Voucher, Vouching

if TYPE_CHECKING:
    from fedagent_agent.config import AgentConfig


class AgentCore:
    """The agent's decisions.

    `claim` signs the terms in a report, `sign` an opinion, or that the device volunteers. `pending`
    are the bytes that a link holds unacknowledged. Without a `voucher`, which knows what the
    coordinator of the site has signed, every edge is believed. With `idle_opinions` tasks that
    learn nothing have opinions too.
    """

    def __init__(
        self,
        config: "AgentConfig",
        *,
        agent: str,
        survived: Survived,
        masking: OpenMember,
        claim: Claims,
        sign: SignAnswer,
        pending: Callable[[str], int],
        peering: OpenPeers,
        voucher: Voucher | None,
        idle_opinions: bool,
    ) -> None:
        self._private = config.privacy != NO_LIMITS
        self._samples: Mapping[str, int] = {}
        """Those that were not learnt from since the stream was opened, by reason."""
        self.counters: Counter[str] = Counter()
        counters, jobs = self.counters, Jobs()
        self._jobs = jobs
        self.peers = PeerSelection(counters, peering, sign)
        device = self.device = DeviceState(
            config.price,
            load_limit_s=config.load_limit_s,
            position=config.position,
            extra_s=config.slow_s,
        )
        greeting = Hello(software=SOFTWARE, name=config.name)
        sessions = self.sessions = Sessions(greeting, device, survived.boots, counters, claim)
        held = {update.key: Upload(update) for update in survived.updates}
        self.uploads = Uploads(held, sessions, pending, counters)
        stream = Open(
            job=0,
            task=b"",
            stream=config.stream,
            seed=config.seed_of(agent),
            slow_s=config.slow_s,
            held_out=config.held_out,
            # More threads use up a limit of computation sooner, and gain nothing.
            threads=1 if config.load_limit_s > 0 else 0,
        )
        self._vouching = Vouching(agent, voucher, sessions, counters)
        tasks = self._tasks = Tasks(device, stream, jobs, counters, self._vouching)
        self.preparation = Preparation(device, tasks, sessions)
        self.masking = Masking(masking, sessions, counters)
        self.queue = TrainingQueue(
            device,
            tasks,
            self.uploads,
            self.masking,
            jobs,
            counters,
            dict(survived.releases),
            (*survived.answered, *held),
        )
        self.evaluator = Evaluator(
            device,
            self.queue,
            tasks,
            jobs,
            counters,
            self.peers,
            config.privacy,
            survived.opinions,
            idle_opinions,
            sign,
        )
        self._timed = (
            self.queue.timers,
            self.masking.timers,
            self.preparation.timers,
            self.evaluator.timers,
            self.uploads.timers,
        )
        self._inputs: dict[type[Input], Callable[[Any, float], list[Effect]]] = {
            Received: self._on_message,
            LinkUp: sessions.link_up,
            LinkDown: sessions.link_down,
            EdgesFound: sessions.edges_found,
            Measured: self._on_measured,
            Revoked: self._on_revoked,
            TrainerEnded: self._on_trainer_ended,
            **dict.fromkeys((Opened, Trained, Masked, Evaluated, Failed), self._on_reply),
            **dict.fromkeys((ModelOpened, ModelFinished), self._on_model),
            Stopping: lambda event, _: sessions.end(event.reason),
            UpdateStored: self._on_stored,
            OpinionStored: lambda event, now: self.evaluator.stored(event.answer, now),
            DiskFailed: self._on_disk_failed,
        }
        self._messages: dict[type[AnyMessage], Callable[[Session, Any, float], list[Effect]]] = {
            EdgeBeacon: self._on_beacon,
            Welcome: self._on_welcome,
            TrainOrder: self._on_order,
            TaskBody: self._on_task,
            Chunk: self._on_chunk,
            Need: self.uploads.need,
            Receipt: self.uploads.receipt,
            RoundClosed: self._on_closed,
            MaskRoster: self.masking.receive,
            MaskDelivery: self.masking.receive,
            MaskAsk: self.masking.receive,
            Probe: self._on_probe,
            ProbeReply: self._on_probe_reply,
            Revocations: lambda session, said, _: sessions.take_revocations(session, said),
            OpinionCall: self._on_call,
            Neighbours: self._on_peers,
            PeerDeliver: self._on_peers,
        }

    def receive(self, event: Input, now: float) -> list[Effect]:
        """Take an input."""
        handle = self._inputs.get(type(event))
        return handle(event, now) if handle is not None else []

    # -------------------------------------------------------------- messages

    def _on_message(self, event: Received, now: float) -> list[Effect]:
        effects: list[Effect] = []
        message, now = event.message, event.at
        if isinstance(message, PeerDeliver):  # unsigned, so no sign of life
            session = self.sessions.open(event.sender)
        else:
            session, effects = self.sessions.hear(
                event.sender, event.link, now, welcomes=isinstance(message, Welcome)
            )
        if session is None:
            return effects
        try:
            handle = self._messages.get(type(message))
            if handle is None:
                raise MalformedError(f"{kind(message)} to an agent")
            effects += handle(session, message, now)
        except ProtocolError as error:
            self.counters[error.reason] += 1
        return effects + self._go_on(now)

    def _on_beacon(self, session: Session, beacon: EdgeBeacon, now: float) -> list[Effect]:
        effects = self.sessions.beacon(session, beacon, now)
        return effects + self.preparation.named(session, beacon, now, busy=self._busy)

    def _on_welcome(self, session: Session, welcome: Welcome, now: float) -> list[Effect]:
        edge = session.edge
        if welcome.edge != edge:
            return []
        self.queue.welcomed(welcome.run, welcome.round)
        effects = self.sessions.welcome(session, welcome)
        if effects is None:
            return []
        effects += self.preparation.named(session, welcome, now, busy=self._busy)
        if session.reported is None:
            effects.append(Send(edge, self.sessions.report(session, now)))
        effects += self.uploads.reconnected(edge, now)
        for one in self._downloads():
            if one.key.edge == edge:
                effects += one.resume(now)
        return effects + self._probe(session, now)

    @property
    def _busy(self) -> bool:
        return self.queue.active_order is not None or self.evaluator.pending is not None

    def _on_order(self, session: Session, order: TrainOrder, now: float) -> list[Effect]:
        """Train, offer again what was trained, ask for the word on the task, or decline."""
        key = Key(session.edge, order.run, order.round)
        before = self.uploads.receipt(session, order.receipt, now) if order.receipt else []
        return before + self._ordered(session, key, order, now)

    def _ordered(self, session: Session, key: Key, order: TrainOrder, now: float) -> list[Effect]:
        if (offer := self.uploads.offer_again(key, now)) is not None:
            self.peers.ordered(order)
            return offer
        if (unsigned := self._unsigned(key, order, now)) is not None:
            effects, why = unsigned
            return effects + (self.queue.refuse(key, DeclineReason.UNSIGNED, why) if why else [])
        self.peers.ordered(order)
        effects, accepted = self.queue.order(key, order, session, now)
        if accepted:
            session.wake()
            self.evaluator.make_room()
            return [*self.uploads.end_others(key), *effects]
        if self.queue.outranked(key):
            # Its orders and our rounds do not fit together: its welcome says where it is.
            effects += self.sessions.hello(session, now)
        if self.device.price_micro != order.price and session.report_wanted(self.device, now):
            effects.append(Send(session.edge, self.sessions.report(session, now)))
        return effects

    def _on_call(self, session: Session, call: OpinionCall, now: float) -> list[Effect]:
        """Evaluate and let the neighbours take part, or ask for the word on the task."""
        key = Key(session.edge, call.run, call.round)
        if (unsigned := self._unsigned(key, call, now)) is not None:
            return unsigned[0]
        return self._on_peers(session, call, now) + self.evaluator.call(session, call, now)

    def _unsigned(
        self, key: Key, wanted: TrainOrder | OpinionCall, now: float
    ) -> tuple[list[Effect], str] | None:
        """Ask for the coordinator's word, or return why it is none; None: all of it is signed."""
        if not self._vouching.stands(key, wanted.task, now):
            why = self._tasks.refusal(key, wanted.task, now)
            return [] if why else self._tasks.want(wanted.task, key, now), why
        if self._vouching.is_made(key, wanted):
            return None
        what = "order" if isinstance(wanted, TrainOrder) else "call"
        self.counters[f"{what}_unsigned"] += 1
        text = f"{what} of round {key.round} refused: {UNASSIGNED}"
        return self._vouching.warn(key.edge, text), UNASSIGNED

    def _on_task(self, session: Session, message: TaskBody, now: float) -> list[Effect]:
        effects = self._tasks.receive(session.edge, message, now, busy=self._busy)
        if (spec := self._tasks.spec(message.digest)) is not None:
            self.peers.task(message.digest, spec.peers)
        return effects

    def _on_chunk(self, session: Session, chunk: Chunk, now: float) -> list[Effect]:
        fetch = self._loading(chunk.digest)
        if fetch is None or fetch.key.edge != session.edge:
            self.counters["chunk_unasked"] += 1
            return []
        return fetch.receive(chunk, now)

    def _on_closed(self, session: Session, message: RoundClosed, now: float) -> list[Effect]:
        key = Key(session.edge, message.run, message.round)
        self.masking.closed(key)
        effects = self.queue.closed(key, now, kept=message.kept)
        return effects + self.uploads.closed(key, kept=message.kept)

    def _on_probe(self, session: Session, probe: Probe, now: float) -> list[Effect]:  # noqa: ARG002
        padding = bytes(probe.reply_bytes)
        return [Send(session.edge, ProbeReply(nonce=probe.nonce, data=padding))]

    def _on_probe_reply(self, session: Session, reply: ProbeReply, now: float) -> list[Effect]:
        measured = self.sessions.probe_reply(session, reply, now)
        return self._probe(session, now) if measured else []

    def _on_peers(
        self, session: Session, message: OpinionCall | Neighbours | PeerDeliver, now: float
    ) -> list[Effect]:
        return self.sessions.to_open(self.peers.receive(session.edge, message, now))

    # --------------------------------------------- results, and what is measured

    def _on_measured(self, event: Measured, now: float) -> list[Effect]:
        readings = self.device.readings = event.readings
        self.peers.available = readings.available
        effects = [] if readings.available else self.queue.abort(readings.reason)
        return effects + self.sessions.measured(now) + self._go_on(now)

    def _on_trainer_ended(self, event: TrainerEnded, now: float) -> list[Effect]:  # noqa: ARG002
        self.device.cold, self._samples = True, {}
        return self.sessions.measured(now)

    def _on_model(self, event: ModelOpened | ModelFinished, now: float) -> list[Effect]:
        fetch, effects = self._loading(event.digest), list[Effect]()
        if fetch is not None:
            session = self.sessions.get(fetch.key.edge)
            link = session.measured if session is not None else None
            if isinstance(event, ModelOpened):
                effects = fetch.opened(event, link, now)
            else:
                effects = fetch.finished(event, link, now)
        return effects + self._go_on(now)

    def _on_reply(self, reply: Reply, now: float) -> list[Effect]:
        """Hand an answer of the trainer to who wants it."""
        effects: list[Effect] = []
        if isinstance(reply, Trained | Evaluated | Failed) and reply.counters != self._samples:
            self._samples = reply.counters
            effects.append(Emit("samples", {"counters": reply.counters}))
        if isinstance(reply, Trained) and self._private:
            # On the same samples this score would be the opinion, without noise.
            reply = replace(reply, stats=replace(reply.stats, score=0.0, score_n=0))
        taken = self._jobs.answer(reply, now)
        if taken is None:
            return [*effects, DropOutput(reply.job)]
        return effects + taken + self._go_on(now)

    def _on_stored(self, event: UpdateStored, now: float) -> list[Effect]:
        self.queue.stored(event.update.key)
        return self.uploads.stored(event, now)

    def _on_disk_failed(self, event: DiskFailed, now: float) -> list[Effect]:
        problem = f"disk: {event.detail}"
        match event.effect:
            case OpenModel() | WriteModel() | FinishModel() as effect:
                if (fetch := self._loading(effect.digest)) is not None:
                    fetch.problem = problem
                return self._go_on(now)
            case MakeIdleUpdate() | StoreUpdate() | CarryUpdate() as effect:
                return self.queue.store_failed(effect, problem)
            case StoreOpinion():
                return self.evaluator.answer_none(problem, now)
            case _:
                self.counters["disk_failed"] += 1
                return []

    def _on_revoked(self, revoked: Revoked, now: float) -> list[Effect]:
        """Leave edges that were revoked; what they ordered is for nobody."""
        active, effects = self.queue.active_order, list[Effect]()
        keys = {*self.uploads.by_key, *([active.key] if active is not None else ())}
        for key in sorted(key for key in keys if key.edge in revoked.ids):
            effects += self.queue.closed(key, now, kept=False)
            effects += self.uploads.closed(key, kept=False)
        for session in self.sessions.revoked(revoked):
            effects += self._lose(session, now)
        return effects

    # ------------------------------------------------------------------ time

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        for due, do in self._timers():
            if now >= due:
                effects += self.sessions.to_open(do(now))
        return effects + self.sessions.to_open(self.peers.tick(now)) + self._go_on(now)

    def next_due(self) -> float | None:
        """Return when `tick` is wanted; None while nothing is going on."""
        due = min((self.peers.due, *(due for due, _ in self._timers())))
        return due if due < math.inf else None

    def urgent(self) -> bool:
        """Return whether an order is open, or an update is under way."""
        return self.queue.active_order is not None or self.uploads.urgent

    def _timers(self) -> Iterator[Timer]:
        for session in list(self.sessions.values()):
            yield session.silent_at, partial(self._lose, session)
        for timers in (*(one.timers for one in self._downloads()), *self._timed):
            yield from timers()
        yield from self.sessions.timers(probing=self.queue.active_order is None)

    def _go_on(self, now: float) -> list[Effect]:
        effects = self._tasks.go_on(now) + self.preparation.tick(now)
        return effects + self.queue.go_on(now) + self.evaluator.go_on(now)

    def _lose(self, session: Session, now: float) -> list[Effect]:  # noqa: ARG002 - a timer
        self._tasks.lost(session.edge)
        self.evaluator.lost(session.edge)
        return self.sessions.lose(session)

    def _downloads(self) -> Iterator[Download]:
        for one in (self.evaluator.fetch, self.queue.fetch, self._tasks.once):
            if one is not None:
                yield one

    def _loading(self, digest: str) -> Download | None:
        loading = (one for one in self._downloads() if one.loading and one.digest == digest)
        return next(loading, None)

    def _probe(self, session: Session, now: float) -> list[Effect]:
        """Measure the path, unless that would disturb an order."""
        return self.sessions.probe(session, now) if self.queue.active_order is None else []
