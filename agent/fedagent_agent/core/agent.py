"""The agent as a pure state machine: a session with every edge, and one training at a time.

docs/protocol.md has the order of things. Messages, events and the time go in; effects
come out. A message that does not fit is counted by reason and changes nothing else.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fedagent_agent.peers.core.selection import OpenPeers, PeerSelection
from fedagent_agent.trainer.frames import Evaluated, Failed, Open, Opened, Refused, Trained
from fedagent_node.effects import (
    Effect,
    Emit,
    Input,
    LinkDown,
    LinkUp,
    OtherVersion,
    Received,
    Send,
    Warn,
)
from fedagent_protocol import SOFTWARE
from fedagent_protocol.errors import MalformedError, ProtocolError
from fedagent_protocol.messages import (
    AnyMessage,
    Bye,
    Chunk,
    ContextReport,
    EdgeBeacon,
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
    kind,
)
from fedagent_protocol.versions import OtherVersions

from .device import DeviceState
from .effects import (
    DropOutput,
    EdgesFound,
    FlushFailed,
    FlushOutbox,
    Jobs,
    Key,
    Measured,
    ModelFailed,
    ModelFinished,
    ModelOpened,
    OpinionStored,
    PendingUpdate,
    Relink,
    SlotFailed,
    Stopping,
    StoreFailed,
    Subscribed,
    TrainerEnded,
    UpdateStored,
)
from .evaluator import Evaluator
from .fetch import Fetch, Tasks
from .opinions import NO_LIMITS, NO_OPINIONS, OpinionRecord
from .orders import OrderHistory
from .session import Session, SessionState
from .training_queue import TrainingQueue
from .uploads import Upload, Uploads

if TYPE_CHECKING:
    from fedagent_agent.config import AgentConfig

MAX_SESSIONS = 64
FIRST_SEQ_BITS = 32
"""A report's seq is boots << 32 | n: it grows over restarts."""
FLUSH_S = 2.0
"""How long a removal from the outbox may wait for a commit to ride in."""
FLUSH_AGAIN_S = 30.0


class AgentCore:
    """The agent's decisions.

    Args:
        config: Settings of the device.
        agent: Id of the agent.
        boots: How often it was started on its data directory.
        updates: The outbox as it survived the last process.
        answered: Orders that were answered with an update before.
        opinions: Opinions that were given before.
        pending: Bytes that a link holds unacknowledged, by its name.
        peering: Opens keys towards neighbours, when they are first needed; None: there are none.
        idle_opinions: There are opinions even where the task learns nothing; see `Evaluator`.
    """

    def __init__(
        self,
        config: "AgentConfig",
        *,
        agent: str,
        boots: int,
        updates: Iterable[PendingUpdate] = (),
        answered: Iterable[Key] = (),
        opinions: OpinionRecord = NO_OPINIONS,
        pending: Callable[[str], int],
        peering: OpenPeers | None = None,
        idle_opinions: bool = False,
    ) -> None:
        self._greeting = Hello(agent=agent, software=SOFTWARE, name=config.name)
        self._private = config.privacy != NO_LIMITS
        self.counters: Counter[str] = Counter()
        self.peers = PeerSelection(self.counters, peering)
        self.device = DeviceState(
            config.price,
            load_limit_s=config.load_limit_s,
            position=config.position,
            extra_s=config.slow_s,
        )
        self.sessions: dict[str, Session] = {}
        self._links_up: set[str] = set()
        self._found: dict[str, tuple[str, ...]] = {}
        self._others = OtherVersions("agent")
        self._refused: dict[str, str] = {}
        self.uploads = Uploads()
        self._flush_at: float | None = None
        self._pending_bytes = pending
        self._seq = boots << FIRST_SEQ_BITS
        history, jobs = OrderHistory(), Jobs()
        stream = Open(
            job=0,
            task=b"",
            stream=config.stream,
            seed=config.seed_of(agent),
            slow_s=config.slow_s,
            held_out=config.held_out,
        )
        self._tasks = Tasks(self.device, stream, jobs, self.counters)
        self.queue = TrainingQueue(self.device, history, self._tasks, jobs, self.counters)
        self.evaluator = Evaluator(
            self.device,
            self.queue,
            self._tasks,
            jobs,
            self.counters,
            limits=config.privacy,
            record=opinions,
            idle_opinions=idle_opinions,
        )
        self.evaluator.peering = self.peers
        for update in updates:
            self.uploads.add(update)
        for key in (*answered, *self.uploads.by_key):
            history.note_order(key)
            history.note_answer(key, None)

    # ----------------------------------------------------------------- inputs

    def receive(self, event: Input, now: float) -> list[Effect]:
        """Take an input."""
        match event:
            case Received(at=at):
                effects = self._on_message(event.link, event.sender, event.message, at)
            case LinkUp() | LinkDown() | EdgesFound() | OtherVersion():
                effects = self._on_link(event, now)
            case Measured():
                effects = self._on_measured(event, now)
            case TrainerEnded():
                effects = self._on_trainer_ended(now)
            case Opened() | Refused() | Trained() | Evaluated() | Failed():
                effects = self._on_reply(event, now)
            case Subscribed() | ModelOpened() | ModelFinished() | ModelFailed():
                effects = self._on_model(event, now)
            case Stopping(reason=reason):
                effects = self._on_stopping(reason, now)
            case _:
                effects = self._on_stored(event, now)
        self._plan_flush(now)
        return effects

    def link_of(self, edge: str) -> str:
        """Return the name of the link to an edge; empty if there is none."""
        session = self.sessions.get(edge)
        return session.link if session is not None else self._refused.get(edge, "")

    def uses(self, link: str) -> bool:
        """Whether a session stands on a link."""
        return any(session.link == link for session in self.sessions.values())

    # -------------------------------------------------------------- the links

    def _on_link(
        self, event: LinkUp | LinkDown | EdgesFound | OtherVersion, now: float
    ) -> list[Effect]:
        match event:
            case LinkUp(link=link):
                self._links_up.add(link)
                effects: list[Effect] = []
                for session in self._on(link):
                    session.reconnect()
                    effects += session.hello(self._greeting, now)
                return effects + self._greet_found(link, now)
            case LinkDown(link=link):
                self._links_up.discard(link)
                # Silence ends the sessions, unless the link comes back.
                for session in self._on(link):
                    session.state = SessionState.CUT
                return []
            case EdgesFound(link=link):
                self._found[link] = event.edges
                return self._greet_found(link, now) if link in self._links_up else []
            case OtherVersion():
                return self._refuse(event)

    def _greet_found(self, link: str, now: float) -> list[Effect]:
        """Greet edges that adverts place behind a link, without waiting for their beacons."""
        effects: list[Effect] = []
        for edge in self._found.get(link, ()):
            if edge not in self.sessions and len(self.sessions) < MAX_SESSIONS:
                effects += self._hear(edge, link, now)[1]
        return effects

    def _refuse(self, heard: OtherVersion) -> list[Effect]:
        """Refuse an edge of another protocol version; greet it once, so that it says so too."""
        line = self._others.refuse(heard.sender, heard.version)
        if not line:
            return []
        self.counters["protocol_version"] += 1
        self._refused[heard.sender] = heard.link
        hello = Send(heard.sender, self._greeting, version=heard.version)
        return [Warn(f"edge {heard.sender}", line), hello]

    # -------------------------------------------------------------- messages

    def _on_message(self, link: str, edge: str, message: AnyMessage, now: float) -> list[Effect]:
        session, effects = self._hear(edge, link, now)
        if session is None:
            return effects
        try:
            effects += self._dispatch(session, message, now)
        except ProtocolError as error:
            self.counters[error.reason] += 1
        return effects + self._go_on(now)

    def _hear(self, edge: str, link: str, now: float) -> tuple[Session | None, list[Effect]]:
        """Note a sign of life; a silent edge may come back on another link."""
        session = self.sessions.get(edge)
        if session is None:
            if len(self.sessions) >= MAX_SESSIONS:
                self.counters["too_many_edges"] += 1
                return None, []
            session = self.sessions[edge] = Session(edge, link, now)
        elif session.link == link:
            session.heard_at = now
            return session, []
        elif session.state is SessionState.OPEN and now < session.link_silent_at:
            # The same broker under two addresses: one path is enough.
            self.counters["other_link"] += 1
            return None, []
        else:
            session.link, session.heard_at = link, now
            session.reconnect()
        return session, session.hello(self._greeting, now)

    def _dispatch(self, session: Session, message: AnyMessage, now: float) -> list[Effect]:
        edge = session.edge
        match message:
            case EdgeBeacon():
                return self._on_beacon(session, message, now)
            case Welcome():
                return self._on_welcome(session, message, now)
            case TrainOrder():
                return self._on_order(session, message, now)
            case TaskBody():
                return self._on_task(message, now)
            case Chunk():
                return self._on_chunk(edge, message, now)
            case Need():
                return self._on_need(edge, message, now)
            case Receipt():
                return self._on_receipt(session, message, now)
            case RoundClosed():
                return self._on_closed(Key(edge, message.run, message.round))
            case Probe() | ProbeReply():
                return self._on_probe(session, message, now)
            case OpinionCall():
                effects = self._to_peers(self.peers.receive(edge, message, now))
                return effects + self.evaluator.call(session, message, now)
            case Neighbours() | PeerDeliver():
                return self._to_peers(self.peers.receive(edge, message, now))
            case _:
                raise MalformedError(f"{kind(message)} to an agent")

    def _on_beacon(self, session: Session, beacon: EdgeBeacon, now: float) -> list[Effect]:
        if beacon.edge != session.edge:
            self.counters["beacon_as_another"] += 1
            return []
        session.beacon(beacon.period_ms, beacon.epoch)
        if session.state is SessionState.OPEN:
            return []
        return session.hello(self._greeting, now)

    def _on_welcome(self, session: Session, welcome: Welcome, now: float) -> list[Effect]:
        edge = session.edge
        if welcome.edge != edge or not session.welcomed(welcome.context_ms):
            return []
        effects: list[Effect] = []
        if not session.announced:
            session.announced = True
            fields = {"edge": edge, "name": welcome.name, "address": session.link}
            effects.append(Emit("edge_joined", fields))
        effects.append(Send(edge, self._report(session, now)))
        for upload in self.uploads.of(edge):
            upload.reconnected()
            effects += self._offer(upload, session, now)
        for fetch in (self.queue.fetch, self.evaluator.fetch):
            if fetch is not None and fetch.key.edge == edge:
                effects += fetch.reconnected(now)
        return effects + self._probe(session, now)

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

    def _on_task(self, message: TaskBody, now: float) -> list[Effect]:
        effects = self._tasks.receive(message, now)
        if (rules := self._tasks.peers(message.digest)) is not None:
            self.peers.task(message.digest, rules)
        return effects

    def _on_chunk(self, edge: str, chunk: Chunk, now: float) -> list[Effect]:
        fetch = self._loading(chunk.digest)
        if fetch is None or fetch.key.edge != edge:
            self.counters["chunk_unasked"] += 1
            return []
        return fetch.receive(chunk, now)

    def _on_need(self, edge: str, need: Need, now: float) -> list[Effect]:
        upload = self.uploads.by_key.get(Key(edge, need.run, need.round))
        if upload is None or upload.update.offer.digest != need.digest:
            self.counters["need_unknown"] += 1
            return []
        return upload.need(need.ranges, lambda: self._pending(edge), now)

    def _on_receipt(self, session: Session, receipt: Receipt, now: float) -> list[Effect]:
        key = Key(session.edge, receipt.run, receipt.round)
        upload = self.uploads.by_key.get(key)
        if upload is None or upload.update.offer.digest != receipt.digest:
            self.counters["receipt_unknown"] += 1
            return []
        self.counters[f"receipt_{receipt.status}"] += 1
        if (measured := upload.measured(now)) is not None:
            session.measured.note_upload(*measured)
        fields = {
            "round": key.round,
            "edge": key.edge,
            "status": str(receipt.status),
            "reason": receipt.reason,
        }
        return [*self.uploads.end(key), Emit("receipt", fields)]

    def _on_closed(self, key: Key) -> list[Effect]:
        effects = self.queue.closed(key)
        if key in self.uploads.by_key:
            self.counters["closed_unreceipted"] += 1
            fields = {"round": key.round, "edge": key.edge, "reason": "closed"}
            effects += [*self.uploads.end(key), Emit("abandoned", fields)]
        return effects

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
        for session in self.sessions.values():
            session.look_again(now)
        effects += self._reports(now, forced=event.report)
        return effects + self._go_on(now)

    def _on_trainer_ended(self, now: float) -> list[Effect]:
        self.device.cold = True
        for session in self.sessions.values():
            session.look_again(now)
        return self._reports(now)

    def _on_model(
        self, event: Subscribed | ModelOpened | ModelFinished | ModelFailed, now: float
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
                    effects = fetch.finished(link, now, ok=event.ok)
                case ModelFailed():
                    fetch.problem = f"disk: {event.detail}"
        return effects + self._go_on(now)

    def _on_reply(
        self, reply: Opened | Refused | Trained | Evaluated | Failed, now: float
    ) -> list[Effect]:
        if isinstance(reply, Opened | Refused) or self._tasks.is_opening(reply.job):
            assert not isinstance(reply, Trained | Evaluated)
            self._tasks.replied(reply, now)
            return self._go_on(now)
        order, pending = self.queue.active_order, self.evaluator.pending
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
            reply = replace(reply, score=0.0, score_n=0)
        effects += self.queue.trained(reply, now)
        return effects if isinstance(reply, Trained) else [*effects, DropOutput(reply.job)]

    def _on_stored(self, event: Input, now: float) -> list[Effect]:
        match event:
            case UpdateStored():
                return self._on_update(event, now)
            case StoreFailed():
                return self.queue.store_failed(event.key, event.detail)
            case OpinionStored():
                return self.evaluator.opinion_stored(event.answer, now, refused=event.refused)
            case FlushFailed():
                self.counters["outbox_flush_failed"] += 1
                self._flush_at = now + FLUSH_AGAIN_S
            case SlotFailed():
                self.counters["peer_not_kept"] += 1
        return []

    def _on_update(self, event: UpdateStored, now: float) -> list[Effect]:
        """Offer an update that is durable."""
        self._flush_at, self.uploads.dropped = None, False
        for old in event.expired:
            self.counters["outbox_full"] += 1
            self.uploads.by_key.pop(old, None)
        key, offer = event.update.key, event.update.offer
        self.queue.stored(key)
        upload = self.uploads.add(event.update)
        session = self.sessions.get(key.edge)
        effects = self._offer(upload, session, now) if session is not None else []
        fields = {
            "round": key.round,
            "edge": key.edge,
            "size": offer.size,
            "num_samples": offer.num_samples,
            "lc_ms": offer.lc_ms,
        }
        return [*effects, Emit("update", fields)]

    # ------------------------------------------------------------------ time

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        if self._flush_at is not None and now >= self._flush_at:
            self._flush_at, self.uploads.dropped = None, False
            effects.append(FlushOutbox())
        for session in list(self.sessions.values()):
            if now >= session.silent_at:
                effects += self._lose(session)
                effects += self.evaluator.lost(session.edge, now)
        effects += self.queue.tick(now)
        effects += self._to_peers(self.peers.tick(now))
        effects += self.evaluator.tick(now)
        for upload in self.uploads.by_key.values():
            effects += self._tick_upload(upload, now)
        effects += self._reports(now)
        for session in self.sessions.values():
            if now >= session.probe_at:
                effects += self._probe(session, now)
        self._plan_flush(now)
        return effects

    def next_due(self) -> float | None:
        """Return when `tick` is wanted; None while nothing is going on."""
        times = [*self.queue.dues(), *self.evaluator.dues()]
        for session in self.sessions.values():
            times.append(session.silent_at)
            if session.state is SessionState.OPEN:
                times.append(session.report_at)
                if self.queue.active_order is None:
                    times.append(session.probe_at)
        for upload in self.uploads.by_key.values():
            if self._open_session(upload.update.key.edge) is not None:
                times.append(upload.repeat_at)
                if upload.poll_at is not None:
                    times.append(upload.poll_at)
        if self.peers.due < math.inf:
            times.append(self.peers.due)
        if self._flush_at is not None:
            times.append(self._flush_at)
        return min(times, default=None)

    def _plan_flush(self, now: float) -> None:
        """Plan to commit removals from the outbox, unless another commit takes them along."""
        if self.uploads.dropped and self._flush_at is None:
            self._flush_at = now + FLUSH_S

    def _on_stopping(self, reason: str, now: float) -> list[Effect]:
        """Close all sessions in good order."""
        effects = self.peers.end(now)
        return effects + [
            Send(session.edge, Bye(run=session.run, reason=reason))
            for session in self.sessions.values()
            if session.state is SessionState.OPEN
        ]

    def _go_on(self, now: float) -> list[Effect]:
        """Do the next steps of the order and the evaluation under way."""
        return self.queue.go_on(now) + self.evaluator.go_on(now)

    def _loading(self, digest: str) -> Fetch | None:
        """Return whose model with this name is coming in: there is one at most."""
        for fetch in (self.evaluator.fetch, self.queue.fetch):
            if fetch is not None and fetch.loading and fetch.model == digest:
                return fetch
        return None

    def _open_session(self, edge: str) -> Session | None:
        session = self.sessions.get(edge)
        return session if session is not None and session.state is SessionState.OPEN else None

    def _to_peers(self, effects: list[Effect]) -> list[Effect]:
        """Leave out what no open session would take; neighbours repeat themselves."""
        return [
            effect
            for effect in effects
            if not isinstance(effect, Send) or self._open_session(effect.to) is not None
        ]

    def _probe(self, session: Session, now: float) -> list[Effect]:
        """Measure the path, unless that would disturb an order."""
        return session.probe(now) if self.queue.active_order is None else []

    def _tick_upload(self, upload: Upload, now: float) -> list[Effect]:
        edge = upload.update.key.edge
        session = self._open_session(edge)
        if session is None:
            return []
        effects: list[Effect] = []
        if upload.poll_at is not None and now >= upload.poll_at:
            effects += upload.pump(lambda: self._pending(edge), now)
        if now >= upload.repeat_at:
            effects += self._offer(upload, session, now)
        return effects

    def _lose(self, session: Session) -> list[Effect]:
        del self.sessions[session.edge]
        effects: list[Effect] = []
        if session.announced:
            effects.append(Emit("edge_lost", {"edge": session.edge}))
        if session.state is not SessionState.CUT and not self._on(session.link):
            self.counters["relinks"] += 1
            effects.append(Relink(session.link))
        return effects

    def _reports(self, now: float, *, forced: bool = False) -> list[Effect]:
        return [
            Send(session.edge, self._report(session, now))
            for session in self.sessions.values()
            if session.report_wanted(self.device, now)
            or (forced and session.state is SessionState.OPEN)
        ]

    def _offer(self, upload: Upload, session: Session, now: float) -> list[Effect]:
        if session.state is not SessionState.OPEN:
            return []
        busy = upload.offers > 0 and self._pending(session.edge) > 0
        return upload.offer(self._report(session, now), now, busy=busy)

    def _pending(self, edge: str) -> int:
        link = self.link_of(edge)
        return self._pending_bytes(link) if link else 0

    def _report(self, session: Session, now: float) -> ContextReport:
        self._seq += 1
        return session.report(self.device, self._seq, now)

    def _on(self, link: str) -> list[Session]:
        return [session for session in self.sessions.values() if session.link == link]
