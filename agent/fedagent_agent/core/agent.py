"""The agent as a pure state machine: a session with every edge, and one training at a time.

docs/protocol.md tells the order of things. Messages, events and the time go in;
effects come out. A message that does not fit is counted by reason and changes
nothing else.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec import structs

from fedagent_agent.trainer_wire import EvaluationResult, Failed, Trained
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import (
    Bye,
    Chunk,
    ContextReport,
    DeclineReason,
    EdgeBeacon,
    EdgeToAgent,
    Hello,
    Need,
    Neighbours,
    OpinionCall,
    PeerDeliver,
    Probe,
    ProbeReply,
    Receipt,
    RoundClosed,
    TaskBody,
    TrainOrder,
    Welcome,
)

from .calls import NO_LIMITS, NO_OPINIONS, OpinionRecord, PrivacyLimits
from .effects import Effect, Event, Key, OpinionAnswer, PendingUpdate, Relink, Route, Send, Unroute
from .evaluator import Evaluator
from .order_history import OrderHistory
from .peer_door import Make, PeerDoor
from .reporting import FREE, DeviceState, Price, Readings
from .session import Session, SessionState
from .tasks import Tasks
from .training_queue import TrainingQueue
from .upload import Upload, Uploads

MAX_SESSIONS = 64
FIRST_SEQ_BITS = 32
"""A report's seq is boots << 32 | n: it grows over restarts."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What the core is told of the configuration."""

    agent: str
    boots: int
    price: Price = FREE
    software: str = ""
    name: str = ""
    load_limit_s: float = 0.0
    position: tuple[float, float] | None = None
    privacy: PrivacyLimits = NO_LIMITS

    @property
    def greeting(self) -> Hello:
        """How the agent introduces itself."""
        return Hello(agent=self.agent, software=self.software, name=self.name)


class AgentCore:
    """The agent's decisions.

    Args:
        settings: What the configuration says.
        kept: The outbox as it survived the last process.
        answered: Orders that were answered with an update before.
        said: Opinions that were given before.
        pending: Bytes that the link to an edge holds unacknowledged.
        peering: Makes what talks with neighbours, when it is first needed; None: nothing does.
    """

    def __init__(
        self,
        settings: AgentSettings,
        *,
        kept: Iterable[PendingUpdate] = (),
        answered: Iterable[Key] = (),
        said: OpinionRecord = NO_OPINIONS,
        pending: Callable[[str], int],
        peering: Make | None = None,
    ) -> None:
        self.settings = settings
        self.greeting = settings.greeting
        self.counters: Counter[str] = Counter()
        self.peers = PeerDoor(self.counters, *([peering] if peering is not None else []))
        self.device = DeviceState(
            settings.price, load_limit_s=settings.load_limit_s, position=settings.position
        )
        self.sessions: dict[str, Session] = {}
        self.uploads = Uploads()
        self._pending = pending
        self._seq = settings.boots << FIRST_SEQ_BITS
        history = OrderHistory()
        self._tasks = Tasks(self.device, self.counters)
        self.queue = TrainingQueue(self.device, history, self._tasks, self.counters)
        self.evaluator = Evaluator(
            self.device,
            self.queue,
            self._tasks,
            self.counters,
            limits=settings.privacy,
            said=said,
        )
        self.evaluator.peering = self.peers
        for key in answered:
            history.note_order(key)
            history.note_answer(key, None)
        for update in kept:
            history.note_order(update.key)
            history.note_answer(update.key, None)
            self.uploads.add(update)

    # -------------------------------------------------------------- the links

    def link_up(self, link: str, now: float) -> list[Effect]:
        """A link is connected (again): greet its edges without waiting for beacons."""
        effects: list[Effect] = []
        for session in self._on(link):
            session.reconnect()
            effects += session.hello(self.greeting, now)
        return effects

    def link_down(self, link: str) -> list[Effect]:
        """A link is known to be down; its sessions end by silence, unless it comes back."""
        for session in self._on(link):
            session.state = SessionState.CUT
        return []

    def expect(self, edge: str, link: str, now: float) -> list[Effect]:
        """Greet an edge that is said to be behind a link, without waiting for its beacon."""
        if edge in self.sessions or len(self.sessions) >= MAX_SESSIONS:
            return []
        return self._hear(edge, link, now)[1]

    # -------------------------------------------------------------- messages

    def message(self, link: str, edge: str, message: EdgeToAgent, now: float) -> list[Effect]:
        """Take in what an edge sent."""
        session, effects = self._hear(edge, link, now)
        if session is None:
            return effects
        try:
            effects += self._dispatch(session, message, now)
        except ProtocolError as error:
            self.counters[error.reason] += 1
        return effects + self.evaluator.go_on(now)

    def _hear(self, edge: str, link: str, now: float) -> tuple[Session | None, list[Effect]]:
        """Note a sign of life; a silent edge may come back on another link."""
        session = self.sessions.get(edge)
        if session is None:
            if len(self.sessions) >= MAX_SESSIONS:
                self.counters["too_many_edges"] += 1
                return None, []
            session = self.sessions[edge] = Session(edge, link, now)
            greeting = session.hello(self.greeting, now)
            return session, [Route(edge, link), *greeting]
        if session.link == link:
            session.heard_at = now
            return session, []
        if session.state is SessionState.OPEN and now < session.link_silent_at:
            # The same broker under two addresses: one path is enough.
            self.counters["other_link"] += 1
            return None, []
        session.link, session.heard_at = link, now
        session.reconnect()
        greeting = session.hello(self.greeting, now)
        return session, [Route(edge, link), *greeting]

    def _dispatch(self, session: Session, message: EdgeToAgent, now: float) -> list[Effect]:
        edge = session.edge
        match message:
            case EdgeBeacon():
                return self._on_beacon(session, message, now)
            case Welcome():
                return self._on_welcome(session, message, now)
            case TrainOrder():
                return self._on_order(session, message, now)
            case TaskBody():
                return self._tasks.body(message)
            case Chunk():
                taker = self.evaluator if self.evaluator.has(message.digest) else self.queue
                return taker.chunk(edge, message, now)
            case Need():
                return self._on_need(edge, message, now)
            case Receipt():
                return self._on_receipt(session, message, now)
            case RoundClosed():
                return self._on_closed(Key(edge, message.run, message.round))
            case Probe():
                padding = bytes(message.reply_bytes)
                return [Send(edge, ProbeReply(nonce=message.nonce, data=padding))]
            case ProbeReply():
                return self._on_probe_reply(session, message, now)
            case OpinionCall():
                effects = self._sideways(self.peers.called(edge, message, now))
                return effects + self.evaluator.call(session, message, now)
            case Neighbours() | PeerDeliver():
                return self._sideways(self.peers.message(edge, message, now))

    def _on_beacon(self, session: Session, beacon: EdgeBeacon, now: float) -> list[Effect]:
        if beacon.edge != session.edge:
            self.counters["beacon_as_another"] += 1
            return []
        session.beacon(beacon.period_ms, beacon.epoch)
        if session.state is SessionState.OPEN:
            return []
        return session.hello(self.greeting, now)

    def _on_welcome(self, session: Session, welcome: Welcome, now: float) -> list[Effect]:
        if welcome.edge != session.edge or not session.welcomed(welcome.context_ms):
            return []
        effects: list[Effect] = []
        if not session.announced:
            session.announced = True
            said = {"edge": session.edge, "name": welcome.name, "address": session.link}
            effects.append(Event("edge_joined", {**said}))
        effects.append(Send(session.edge, self._report(session, now)))
        for upload in self.uploads.of(session.edge):
            upload.reconnected()
            effects += self._offer(upload, session, now)
        effects += self.queue.reconnected(session.edge, now)
        effects += self.evaluator.reconnected(session.edge, now)
        if self.queue.active_order is None:
            effects += session.probe(now)
        return effects

    def _on_order(self, session: Session, order: TrainOrder, now: float) -> list[Effect]:
        self.peers.ordered(order)
        key = Key(session.edge, order.run, order.round)
        upload = self.uploads.by_key.get(key)
        if upload is not None:
            self.counters["order_repeated"] += 1
            return self._offer(upload, session, now)
        effects, accepted = self.queue.order(key, order, session, now)
        if accepted:
            return [*self.evaluator.make_room(), *self.uploads.end_others(key), *effects]
        if self.device.price_micro != order.price and session.report_wanted(self.device, now):
            effects.append(Send(session.edge, self._report(session, now)))
        return effects

    def _on_need(self, edge: str, need: Need, now: float) -> list[Effect]:
        upload = self.uploads.by_key.get(Key(edge, need.run, need.round))
        if upload is None or upload.kept.offer.digest != need.digest:
            self.counters["need_unknown"] += 1
            return []
        return upload.need(need.ranges, lambda: self._pending(edge), now)

    def _on_receipt(self, session: Session, receipt: Receipt, now: float) -> list[Effect]:
        key = Key(session.edge, receipt.run, receipt.round)
        upload = self.uploads.by_key.get(key)
        if upload is None or upload.kept.offer.digest != receipt.digest:
            self.counters["receipt_unknown"] += 1
            return []
        self.counters[f"receipt_{receipt.status}"] += 1
        if (measured := upload.measured(now)) is not None:
            session.measured.note_upload(*measured)
        said = {
            "round": key.round,
            "edge": key.edge,
            "status": str(receipt.status),
            "reason": receipt.reason,
        }
        return [*self.uploads.end(key), Event("receipt", said)]

    def _on_closed(self, key: Key) -> list[Effect]:
        effects = self.queue.closed(key)
        if key in self.uploads.by_key:
            self.counters["closed_unreceipted"] += 1
            said = {"round": key.round, "edge": key.edge, "reason": "closed"}
            effects += [*self.uploads.end(key), Event("abandoned", said)]
        return effects

    def _on_probe_reply(self, session: Session, reply: ProbeReply, now: float) -> list[Effect]:
        if not session.probe_reply(reply, now):
            self.counters["probe_reply_unknown"] += 1
            return []
        return session.probe(now) if self.queue.active_order is None else []

    # ----------------------------------------------- answers from the surroundings

    def measured(self, readings: Readings, now: float) -> list[Effect]:
        """Take in what was measured of the device."""
        self.device.readings = readings
        self.peers.allow(work=readings.available)
        effects = [] if readings.available else self.queue.abort(readings.reason)
        for session in self.sessions.values():
            session.look_again(now)
        return effects + self._report_changes(now) + self.evaluator.go_on(now)

    def trainer_ended(self, now: float) -> list[Effect]:
        """Take in that the trainer's process has ended, with what its learner remembered."""
        self.device.cold = True
        for session in self.sessions.values():
            session.look_again(now)
        return self._report_changes(now)

    def subscribed(self, edge: str, digest: str, now: float, *, ok: bool) -> list[Effect]:
        """Take in the broker's answer to `SubscribeModel`."""
        if self.evaluator.has(digest):
            return self.evaluator.subscribed(edge, digest, now, ok=ok)
        return self.queue.subscribed(edge, digest, now, ok=ok) + self.evaluator.go_on(now)

    def model_opened(self, digest: str, have: frozenset[int] | None, now: float) -> list[Effect]:
        """Take in which chunks are on disk; None: the whole model is here."""
        if self.evaluator.has(digest):
            return self.evaluator.model_opened(digest, have, now)
        return self.queue.model_opened(digest, have, now) + self.evaluator.go_on(now)

    def model_unwritable(self, digest: str, detail: str, now: float) -> list[Effect]:
        """Take in that the disk has no room for a model."""
        if self.evaluator.has(digest):
            return self.evaluator.model_unwritable(digest, detail, now)
        return self.queue.model_unwritable(digest, detail) + self.evaluator.go_on(now)

    def model_finished(self, digest: str, now: float, *, ok: bool) -> list[Effect]:
        """Take in whether the model hashes to its name."""
        evaluating = self.evaluator.has(digest)
        current = self.evaluator.current if evaluating else self.queue.active_order
        session = self.sessions.get(current.key.edge) if current is not None else None
        link = session.measured if session is not None else None
        if evaluating:
            return self.evaluator.model_finished(digest, link, now, ok=ok)
        return self.queue.model_finished(digest, link, now, ok=ok) + self.evaluator.go_on(now)

    def task_opened(
        self,
        digest: str,
        now: float,
        *,
        refused: str = "",
        reason: DeclineReason = DeclineReason.SCHEMA,
    ) -> list[Effect]:
        """Take in whether the stream fits the task; `refused` says what does not, if not."""
        if not self._tasks.settle(digest, now, refused=refused, reason=reason):
            return []
        return self.queue.task_settled(now) + self.evaluator.go_on(now)

    def task_spoilt(self, digest: str, now: float) -> None:
        """Take in that the task's body does not hash to its name."""
        self._tasks.spoilt(digest, now)

    def trained(self, job: int, result: Trained | Failed, now: float) -> list[Effect]:
        """Take in how a training ended."""
        if isinstance(result, Trained) and self.settings.privacy != NO_LIMITS:
            # On the same samples this score would be the opinion, without noise.
            result = structs.replace(result, score=0.0, score_n=0)
        return self.queue.trained(job, result, now)

    def evaluated(self, job: int, result: EvaluationResult | Failed, now: float) -> list[Effect]:
        """Take in how a scoring ended."""
        effects = self.queue.note_samples(result.counters) if result.counters else []
        return effects + self.evaluator.evaluated(job, result, now)

    def opinion_stored(
        self, answer: OpinionAnswer, now: float, *, refused: str = ""
    ) -> list[Effect]:
        """Take in that an opinion with noise is durable; `refused` says why it is not."""
        return self.evaluator.opinion_stored(answer, now, refused=refused)

    def kept(self, kept: PendingUpdate, now: float) -> list[Effect]:
        """Take in that an update is durable: now it may be offered."""
        effects = self.queue.finished(kept.key)
        upload = self.uploads.add(kept)
        session = self.sessions.get(kept.key.edge)
        if session is not None and session.state is SessionState.OPEN:
            effects += self._offer(upload, session, now)
        said = {
            "round": kept.key.round,
            "edge": kept.key.edge,
            "size": kept.offer.size,
            "num_samples": kept.offer.num_samples,
            "lc_ms": kept.offer.lc_ms,
        }
        return [*effects, Event("update", said)]

    def store_failed(self, key: Key, detail: str) -> list[Effect]:
        """Take in that the disk refused an update."""
        return self.queue.store_failed(key, detail)

    def expired(self, key: Key) -> None:
        """Take in that the outbox had to drop an update to make room."""
        self.counters["outbox_full"] += 1
        self.uploads.by_key.pop(key, None)

    # ------------------------------------------------------------------ time

    def tick(self, now: float) -> list[Effect]:
        """Let time pass."""
        effects: list[Effect] = []
        for session in list(self.sessions.values()):
            if now >= session.silent_at:
                effects += self._lose(session)
                effects += self.evaluator.lost(session.edge, now)
        effects += self.queue.tick(now)
        effects += self._sideways(self.peers.tick(now))
        effects += self.evaluator.tick(now)
        for upload in self.uploads.by_key.values():
            effects += self._tick_upload(upload, now)
        effects += self._report_changes(now)
        if self.queue.active_order is None:
            for session in self.sessions.values():
                if now >= session.probe_at:
                    effects += session.probe(now)
        return effects

    def next_due(self) -> float | None:
        """Return when `tick` is wanted; None while nothing is going on."""
        times = []
        for session in self.sessions.values():
            times.append(session.silent_at)
            if session.state is SessionState.OPEN:
                times.append(session.report_at)
                if self.queue.active_order is None:
                    times.append(session.probe_at)
        for upload in self.uploads.by_key.values():
            uploader = self.sessions.get(upload.kept.key.edge)
            if uploader is not None and uploader.state is SessionState.OPEN:
                times.append(upload.repeat_at)
                if upload.poll_at is not None:
                    times.append(upload.poll_at)
        times += self.queue.dues()
        if self.peers.due < math.inf:
            times.append(self.peers.due)
        times += self.evaluator.dues()
        return min(times, default=None)

    def bye(self, why: str, now: float) -> list[Effect]:
        """Close all sessions in good order."""
        effects = self.peers.leave(now)
        return effects + [
            Send(session.edge, Bye(run=session.run, reason=why))
            for session in self.sessions.values()
            if session.state is SessionState.OPEN
        ]

    def _sideways(self, effects: list[Effect]) -> list[Effect]:
        """Leave out what no open session would take; neighbours are told again."""
        return [
            effect
            for effect in effects
            if not isinstance(effect, Send)
            or (
                (session := self.sessions.get(effect.edge)) is not None
                and session.state is SessionState.OPEN
            )
        ]

    def _tick_upload(self, upload: Upload, now: float) -> list[Effect]:
        edge = upload.kept.key.edge
        session = self.sessions.get(edge)
        if session is None or session.state is not SessionState.OPEN:
            return []
        effects: list[Effect] = []
        if upload.poll_at is not None and now >= upload.poll_at:
            effects += upload.pump(lambda: self._pending(edge), now)
        if now >= upload.repeat_at:
            effects += self._offer(upload, session, now)
        return effects

    def _lose(self, session: Session) -> list[Effect]:
        del self.sessions[session.edge]
        effects: list[Effect] = [Unroute(session.edge)]
        if session.announced:
            effects.append(Event("edge_lost", {"edge": session.edge}))
        if session.state is not SessionState.CUT and not self._on(session.link):
            self.counters["relinks"] += 1
            effects.append(Relink(session.link))
        return effects

    def _report_changes(self, now: float) -> list[Effect]:
        return [
            Send(session.edge, self._report(session, now))
            for session in self.sessions.values()
            if session.report_wanted(self.device, now)
        ]

    def _offer(self, upload: Upload, session: Session, now: float) -> list[Effect]:
        if session.state is not SessionState.OPEN:
            return []
        busy = upload.offers > 0 and self._pending(session.edge) > 0
        return upload.offer(self._report(session, now), now, busy=busy)

    def _report(self, session: Session, now: float) -> ContextReport:
        self._seq += 1
        return session.report(self.device, self._seq, now)

    def _on(self, link: str) -> list[Session]:
        return [session for session in self.sessions.values() if session.link == link]
