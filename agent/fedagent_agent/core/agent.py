"""The agent as a pure state machine: a session with every edge, and one training at a time.

docs/protocol.md has the order of things. A message that does not fit is counted by reason and
changes nothing else.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fedagent_agent.peers.core.selection import OpenPeers, PeerSelection
from fedagent_agent.trainer.frames import (
    Evaluated,
    Failed,
    Masked,
    Open,
    Opened,
    Refused,
    Trained,
)
from fedagent_node.effects import (
    Effect,
    Emit,
    Input,
    LinkDown,
    LinkUp,
    ModelFinished,
    OtherVersion,
    Received,
    Revoked,
    Send,
    Write,
    WriteModel,
)
from fedagent_protocol import SOFTWARE
from fedagent_protocol.errors import MalformedError, ProtocolError
from fedagent_protocol.messages import (
    AnyMessage,
    Chunk,
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
    FlushOutbox,
    Key,
    Measured,
    ModelOpened,
    OpenModel,
    OpinionStored,
    PendingUpdate,
    Stopping,
    StoreOpinion,
    StoreUpdate,
    Subscribed,
    TrainerEnded,
    UpdateStored,
)
from .evaluator import Evaluator
from .fetch import Tasks
from .masking import Masking, OpenMember
from .opinions import NO_LIMITS, OpinionRecord
from .orders import Orders
from .preparation import Preparation
from .session import Claims, Session, Sessions
from .training_queue import TrainingQueue
from .uploads import Uploads
from .voucher import Voucher
from .vouching import Vouching

if TYPE_CHECKING:
    from fedagent_agent.config import AgentConfig


class AgentCore:
    """The agent's decisions.

    Args:
        boots: How often the agent was started on its data directory.
        answered: Orders that were answered with an update before.
        releases: Updates that have cost privacy, by run.
        claim: Signs the terms in a report to an edge.
        sign: Signs an opinion, or that the device volunteers.
        pending: Bytes that a link holds unacknowledged.
        quiet: Seconds since anything came over a link, parts of messages too.
        peering: Opens keys towards neighbours at the first need.
        voucher: Knows what the coordinator of the site has signed.
        idle_opinions: There are opinions even where the task learns nothing.
    """

    def __init__(
        self,
        config: "AgentConfig",
        *,
        agent: str,
        boots: int,
        updates: Iterable[PendingUpdate],
        answered: Iterable[Key],
        opinions: OpinionRecord,
        releases: Mapping[str, int],
        masking: OpenMember,
        claim: Claims,
        sign: SignAnswer,
        pending: Callable[[str], int],
        quiet: Callable[[str], float],
        peering: OpenPeers,
        voucher: Voucher,
        idle_opinions: bool,
    ) -> None:
        self._private = config.privacy != NO_LIMITS
        self._quiet_s = quiet
        self.counters: Counter[str] = Counter()
        self.peers = PeerSelection(self.counters, peering, sign)
        self.device = DeviceState(
            config.price,
            load_limit_s=config.load_limit_s,
            position=config.position,
            extra_s=config.slow_s,
        )
        greeting = Hello(agent=agent, software=SOFTWARE, name=config.name, prepares=True)
        self.sessions = Sessions(greeting, self.device, boots, self.counters, claim)
        self.uploads = Uploads(updates, self.sessions, pending, self.counters)
        jobs = count(1)
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
        self._vouching = Vouching(agent, voucher, self.sessions.link_of, self.counters)
        self._tasks = Tasks(self.device, stream, jobs, self.counters, self._vouching)
        self.preparation = Preparation(self.device, self._tasks, self.sessions)
        self.masking = Masking(masking, self.sessions, self.counters)
        known = (*answered, *self.uploads.by_key)
        self.queue = TrainingQueue(
            self.device, self._tasks, jobs, self.counters, known, releases, self.masking
        )
        self.evaluator = Evaluator(
            self.device,
            self.queue,
            self._tasks,
            jobs,
            self.counters,
            peers=self.peers,
            limits=config.privacy,
            record=opinions,
            idle_opinions=idle_opinions,
            sign=sign,
        )
        self._orders = Orders(
            self.device,
            self.sessions,
            self._vouching,
            queue=self.queue,
            evaluator=self.evaluator,
            uploads=self.uploads,
            peers=self.peers,
            counters=self.counters,
        )

    # ----------------------------------------------------------------- inputs

    def receive(self, event: Input, now: float) -> list[Effect]:
        """Take an input."""
        match event:
            case Received():
                return self._on_message(event, event.at)
            case LinkUp() | LinkDown() | EdgesFound() | OtherVersion():
                return self.sessions.receive(event, now)
            case Measured():
                return self._on_measured(event, now)
            case Revoked():
                return self._revoked(event, now)
            case TrainerEnded():
                self.device.cold = True
                return self.sessions.measured(now)
            case Opened() | Refused() | Trained() | Masked() | Evaluated() | Failed():
                return self._on_reply(event, now)
            case Subscribed() | ModelOpened() | ModelFinished():
                return self._on_model(event, now)
            case Stopping(reason=reason):
                return self.peers.end(now) + self.sessions.end(reason)
            case UpdateStored():
                self.queue.stored(event.update.key)
                return self.uploads.stored(event, now)
            case OpinionStored():
                return self.evaluator.stored(event.answer, now)
            case DiskFailed():
                return self._on_disk_failed(event.effect, f"disk: {event.detail}", now)
        return []

    # -------------------------------------------------------------- messages

    def _on_message(self, event: Received, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(event.message, PeerDeliver):  # unsigned, so no sign of life
            session = self.sessions.open(event.sender)
        else:
            session, effects = self.sessions.hear(event.sender, event.link, now)
        if session is None:
            return effects
        try:
            effects += self._dispatch(session, event.message, now)
        except ProtocolError as error:
            self.counters[error.reason] += 1
        return effects + self._go_on(now)

    def _dispatch(self, session: Session, message: AnyMessage, now: float) -> list[Effect]:
        edge = session.edge
        match message:
            case EdgeBeacon() | Welcome():
                return self._on_greeting(session, message, now)
            case TrainOrder():
                return self._orders.follow(session, message, now)
            case TaskBody():
                return self._on_task(session, message, now)
            case Chunk():
                return self._on_chunk(edge, message, now)
            case Need():
                return self.uploads.need(edge, message, now)
            case Receipt():
                return self.uploads.receipt(session, message, now)
            case RoundClosed():
                key = Key(edge, message.run, message.round)
                self.masking.closed(key)
                kept = message.kept
                effects = self.queue.closed(key, now, kept=kept)
                return effects + self.uploads.closed(key, now, kept=kept)
            case MaskRoster() | MaskDelivery() | MaskAsk():
                return self.masking.receive(edge, message, now)
            case Probe() | ProbeReply():
                return self._on_probe(session, message, now)
            case Revocations():
                return self.sessions.take_revocations(session, message)
            case OpinionCall():
                return self._orders.call(session, message, now)
            case Neighbours() | PeerDeliver():
                return self.sessions.to_open(self.peers.receive(edge, message, now))
            case _:
                raise MalformedError(f"{kind(message)} to an agent")

    def _on_greeting(
        self, session: Session, message: EdgeBeacon | Welcome, now: float
    ) -> list[Effect]:
        if isinstance(message, Welcome):
            return self._on_welcome(session, message, now)
        effects = self.sessions.beacon(session, message, now)
        effects += self.sessions.ask_revocations(session, message, now)
        return effects + self._named(session, message, now)

    def _on_welcome(self, session: Session, welcome: Welcome, now: float) -> list[Effect]:
        edge = session.edge
        if welcome.edge != edge:
            return []
        session.round = welcome.round
        self.queue.welcomed(welcome.run, welcome.round)
        if not session.welcomed(welcome.context_ms):
            return []
        effects: list[Effect] = []
        if not session.announced:
            session.announced = True
            fields = {"edge": edge, "name": welcome.name, "address": session.link}
            effects.append(Emit("edge_joined", fields))
        session.measured.position = welcome.place
        effects += self._named(session, welcome, now)
        if session.reported is None:
            effects.append(Send(edge, self.sessions.report(session, now)))
        effects += self.uploads.reconnected(edge, now)
        for fetch in (self.queue.fetch, self.evaluator.fetch):
            if fetch is not None and fetch.key.edge == edge:
                effects += fetch.reconnected(now)
        if (once := self._tasks.once) is not None and once.key.edge == edge:
            effects += once.resume()
        return effects + self._probe(session, now)

    def _named(self, session: Session, message: Welcome | EdgeBeacon, now: float) -> list[Effect]:
        return self.preparation.named(session, message, now, busy=self._busy)

    def _on_task(self, session: Session, message: TaskBody, now: float) -> list[Effect]:
        effects = self._tasks.receive(session.edge, message, now, busy=self._busy)
        if (rules := self._tasks.peers(message.digest)) is not None:
            self.peers.task(message.digest, rules)
        return effects + self._orders.released(session, message, now)

    @property
    def _busy(self) -> bool:
        return self.queue.active_order is not None or self.evaluator.pending is not None

    def _on_chunk(self, edge: str, chunk: Chunk, now: float) -> list[Effect]:
        fetch = self._loading(chunk.digest)
        if fetch is None or fetch.key.edge != edge:
            self.counters["chunk_unasked"] += 1
            return []
        return fetch.receive(chunk, now)

    def _on_probe(self, session: Session, reply: Probe | ProbeReply, now: float) -> list[Effect]:
        if isinstance(reply, Probe):
            padding = bytes(reply.reply_bytes)
            return [Send(session.edge, ProbeReply(nonce=reply.nonce, data=padding))]
        if not session.probe_reply(reply, now):
            self.counters["probe_reply_unknown"] += 1
            return []
        return self._probe(session, now)

    # --------------------------------------------- results, and what is measured

    def _on_measured(self, event: Measured, now: float) -> list[Effect]:
        readings = self.device.readings = event.readings
        self.peers.available = readings.available
        effects = [] if readings.available else self.queue.abort(readings.reason)
        return effects + self.sessions.measured(now, forced=event.report) + self._go_on(now)

    def _on_model(
        self, event: Subscribed | ModelOpened | ModelFinished, now: float
    ) -> list[Effect]:
        fetch, effects = self._loading(event.digest), []
        if fetch is not None:
            match event:
                case Subscribed():
                    effects = fetch.subscribed(event.edge, now, ok=event.ok)
                case ModelOpened():
                    effects = fetch.opened(event.have, now)
                case ModelFinished():
                    session = self.sessions.get(fetch.key.edge)
                    link = session.measured if session is not None else None
                    effects = fetch.finished(event, link, now)
        return effects + self._go_on(now)

    def _on_reply(
        self, reply: Opened | Refused | Trained | Masked | Evaluated | Failed, now: float
    ) -> list[Effect]:
        if isinstance(reply, Opened | Refused) or self._tasks.is_opening(reply.job):
            assert not isinstance(reply, Trained | Masked | Evaluated)
            self._tasks.replied(reply, now)
            return self._go_on(now)
        order, pending = self.queue.active_order, self.evaluator.pending
        if isinstance(reply, Masked):
            if order is None or order.job != reply.job:
                return [DropOutput(reply.job)]
            return self.queue.masked(reply, now)
        if pending is not None and pending.job == reply.job and not isinstance(reply, Trained):
            effects = self.queue.note_samples(reply.counters) if reply.counters else []
            return effects + self.evaluator.evaluated(reply, now) + self._go_on(now)
        effects = self.queue.note_samples(reply.counters)
        if isinstance(reply, Evaluated):
            self.counters["opinion_unwanted"] += 1
            return effects
        if order is None or order.job != reply.job:
            self.counters["training_unwanted"] += 1
            return [*effects, DropOutput(reply.job)]
        if isinstance(reply, Trained) and self._private:
            # On the same samples this score would be the opinion, without noise.
            reply = replace(reply, stats=replace(reply.stats, score=0.0, score_n=0))
        effects += self.queue.trained(reply, now)
        return effects if isinstance(reply, Trained) else [*effects, DropOutput(reply.job)]

    def _on_disk_failed(self, effect: Write, problem: str, now: float) -> list[Effect]:
        match effect:
            case OpenModel() | WriteModel() | FinishModel():
                if (fetch := self._loading(effect.digest)) is not None:
                    fetch.problem = problem
                return self._go_on(now)
            case StoreUpdate():
                return self.queue.store_failed(effect.update.key, problem)
            case CarryUpdate():
                return self.queue.carry_failed(effect.update.key, problem)
            case StoreOpinion():
                return self.evaluator.store_failed(effect.answer, problem, now)
            case FlushOutbox():
                return self.uploads.flush_failed(now)
            case _:
                self.counters["disk_failed"] += 1
                return []

    # ------------------------------------------------------------------ time

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        for session in list(self.sessions.values()):
            if now >= session.silent_at and not self._comes_slowly(session, now):
                effects += self._lose(session, now)
        if (once := self._tasks.once) is not None:
            effects += once.look(now)
        effects += self._vouching.tick(now)
        effects += self.queue.tick(now)
        effects += self.masking.tick(now)
        effects += self.preparation.go_on(now)
        effects += self.sessions.to_open(self.peers.tick(now))
        effects += self.evaluator.tick(now)
        effects += self.uploads.tick(now)
        effects += self.sessions.reports(now)
        for session in self.sessions.values():
            if now >= session.probe_at:
                effects += self._probe(session, now)
        return effects

    def _revoked(self, revoked: Revoked, now: float) -> list[Effect]:
        """Leave edges that were revoked; what they ordered is for nobody."""
        active, effects = self.queue.active_order, list[Effect]()
        keys = {*self.uploads.by_key, *([active.key] if active is not None else ())}
        for key in sorted(key for key in keys if key.edge in revoked.ids):
            effects += self.queue.closed(key, now, kept=False)
            effects += self.uploads.closed(key, now, kept=False)
        for session in self.sessions.revoked(revoked):
            effects += self._lose(session, now)
        return effects

    def _comes_slowly(self, session: Session, now: float) -> bool:
        """Whether a chunk is on its way that takes longer than silence is allowed to."""
        fetches = (self.evaluator.fetch, self.queue.fetch, self._tasks.once)
        loads = any(
            one is not None and one.loading and one.key.edge == session.edge for one in fetches
        )
        return loads and session.spare(self._quiet_s(session.link), now)

    def _lose(self, session: Session, now: float) -> list[Effect]:
        effects = self.sessions.lose(session) + self._tasks.lost(session.edge)
        return effects + self.evaluator.lost(session.edge, now)

    def next_due(self) -> float | None:
        """Return when `tick` is wanted; None while nothing is going on."""
        times = [*self.queue.dues(), *self.evaluator.dues(), *self.uploads.dues()]
        times += [*self.masking.dues(), *self._vouching.dues()]
        times += self.sessions.dues(probing=self.queue.active_order is None)
        times += [due for due in (self.peers.due, self.preparation.until) if due < math.inf]
        if (once := self._tasks.once) is not None and once.due is not None:
            times.append(once.due)
        return min(times, default=None)

    def urgent(self) -> bool:
        """Return whether an order is open, or an update is under way."""
        return self.queue.active_order is not None or bool(self.uploads.by_key)

    def _go_on(self, now: float) -> list[Effect]:
        prepared = self._tasks.go_on(now) + self.preparation.go_on(now)
        return prepared + self.queue.go_on(now) + self.evaluator.go_on(now)

    def _loading(self, digest: str) -> Download | None:
        for one in (self.evaluator.fetch, self.queue.fetch, self._tasks.once):
            if one is not None and one.loading and one.digest == digest:
                return one
        return None

    def _probe(self, session: Session, now: float) -> list[Effect]:
        """Measure the path, unless that would disturb an order."""
        return session.probe(now) if self.queue.active_order is None else []
