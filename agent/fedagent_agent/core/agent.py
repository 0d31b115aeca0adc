"""The agent as a pure state machine: a session with every edge, and one training at a time.

docs/protocol.md has the order of things. A message that does not fit is counted by reason and
changes nothing else.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fedagent_agent.peers.core.selection import OpenPeers, PeerSelection
from fedagent_agent.trainer.frames import Evaluated, Failed, Masked, Open, Opened, Reply, Trained
from fedagent_node import effects as fx
from fedagent_node.effects import Effect, Emit, Input, Send
from fedagent_node.timers import Timers
from fedagent_protocol import SOFTWARE
from fedagent_protocol import messages as m
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.signed import SignAnswer

from . import effects as own
from .device import DeviceState
from .download import Download
from .effects import DropOutput, Key, Survived
from .evaluator import Evaluator
from .masking import Masking, OpenMember
from .opinions import NO_LIMITS
from .orders import Orders
from .session import Claims, Session, Sessions
from .tasks import Jobs, Tasks
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
        counters, jobs, timers = self.counters, Jobs(), Timers()
        self._jobs, self._timers = jobs, timers
        self.peers = PeerSelection(counters, timers, peering, sign)
        device = self.device = DeviceState(
            config.price,
            load_limit_s=config.load_limit_s,
            position=config.position,
            extra_s=config.slow_s,
        )
        greeting = m.Hello(software=SOFTWARE, name=config.name)
        sessions = self.sessions = Sessions(
            greeting, device, survived.boots, counters, claim, timers, self._lost, self._working
        )
        held = {update.key: Upload.of(update) for update in survived.updates}
        self.uploads = Uploads(held, sessions, pending, counters, timers)
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
        tasks = Tasks(device, stream, jobs, counters, self._vouching, sessions, timers)
        self._tasks, self._masking = tasks, Masking(masking, sessions, counters, timers)
        self.orders = Orders(
            device,
            tasks,
            self.uploads,
            self._masking,
            jobs,
            counters,
            timers,
            dict(survived.releases),
            (*survived.answered, *held),
        )
        self.evaluator = Evaluator(
            device,
            self.orders,
            tasks,
            jobs,
            counters,
            timers,
            self.peers,
            config.privacy,
            survived.opinions,
            idle_opinions,
            sign,
        )
        replies = Opened, Trained, Masked, Evaluated, Failed
        self._inputs: dict[type[Input], Callable[[Any, float], list[Effect]]] = {
            fx.Received: self._on_message,
            fx.LinkUp: sessions.link_up,
            fx.LinkDown: sessions.link_down,
            own.EdgesFound: sessions.edges_found,
            own.Measured: self._on_measured,
            fx.Revoked: self._on_revoked,
            own.TrainerEnded: self._on_trainer_ended,
            **dict.fromkeys(replies, self._on_reply),
            own.ModelOpened: self._on_model,
            fx.ModelFinished: self._on_model,
            own.Stopping: lambda event, _: sessions.end(event.reason),
            own.UpdateStored: self._on_stored,
            own.OpinionStored: lambda event, now: self.evaluator.stored(event.answer, now),
            own.DiskFailed: self._on_disk_failed,
        }
        self._messages: dict[type[m.AnyMessage], Callable[[Session, Any, float], list[Effect]]] = {
            m.EdgeBeacon: self._on_beacon,
            m.Welcome: self._on_welcome,
            m.TrainOrder: self._on_order,
            m.TaskBody: self._on_task,
            m.Chunk: self._on_chunk,
            m.Need: self.uploads.need,
            m.Receipt: self.uploads.receipt,
            m.RoundClosed: self._on_closed,
            m.MaskRoster: self._masking.receive,
            m.MaskDelivery: self._masking.receive,
            m.MaskAsk: self._masking.receive,
            m.Probe: self._on_probe,
            m.ProbeReply: sessions.probe_reply,
            m.Revocations: sessions.take_revocations,
            m.OpinionCall: self._on_call,
            m.Neighbours: self._on_peers,
            m.PeerDeliver: self._on_peers,
        }

    def receive(self, event: Input, now: float) -> list[Effect]:
        """Take an input."""
        handle = self._inputs.get(type(event))
        return handle(event, now) if handle is not None else []

    # -------------------------------------------------------------- messages

    def _on_message(self, event: fx.Received, now: float) -> list[Effect]:
        effects: list[Effect] = []
        message, now = event.message, event.at
        if isinstance(message, m.PeerDeliver):  # unsigned, so no sign of life
            session = self.sessions.open(event.sender)
        else:
            session, effects = self.sessions.hear(
                event.sender, event.link, now, welcomes=isinstance(message, m.Welcome)
            )
        if session is None:
            return effects
        handle = self._messages.get(type(message))
        try:
            if handle is None:
                self.counters["malformed"] += 1
            else:
                effects += handle(session, message, now)
        except ProtocolError as error:
            self.counters[error.reason] += 1
        return effects + self._go_on(now)

    def _on_beacon(self, session: Session, beacon: m.EdgeBeacon, now: float) -> list[Effect]:
        effects = self.sessions.beacon(session, beacon, now)
        return effects + self._tasks.named(session, beacon, now, busy=self._busy)

    def _on_welcome(self, session: Session, welcome: m.Welcome, now: float) -> list[Effect]:
        edge = session.edge
        if welcome.edge != edge:
            return []
        self.orders.welcomed(welcome.run, welcome.round)
        effects = self.sessions.welcome(session, welcome)
        if effects is None:
            return []
        effects += self._tasks.named(session, welcome, now, busy=self._busy)
        if session.reported is None:
            effects.append(Send(edge, self.sessions.report(session, now)))
        effects += self.uploads.reconnected(edge, now)
        for one in self._downloads():
            if one.key.edge == edge:
                effects += one.resume(now)
        return effects + self.sessions.probe(session, now)

    def _on_order(self, session: Session, order: m.TrainOrder, now: float) -> list[Effect]:
        """Train, offer again what was trained, ask for the word on the task, or decline."""
        key, uploads = Key(session.edge, order.run, order.round), self.uploads
        effects = uploads.receipt(session, order.receipt, now) if order.receipt else []
        if (upload := uploads.by_key.get(key)) is not None:
            self.peers.ordered(order)
            return effects + uploads.offer(upload, now)
        if (unsigned := self._unsigned(key, order, now)) is not None:
            asked, why = unsigned
            reason = m.DeclineReason.UNSIGNED
            return effects + asked + (self.orders.refuse(key, reason, why) if why else [])
        self.peers.ordered(order)
        followed, accepted = self.orders.order(key, order, session, now)
        if accepted:
            self.sessions.wake(session)
            if self.evaluator.pending is not None:
                self.evaluator.make_room()
            # A newer order ends what the edge ordered before.
            before = [one for one in uploads.by_key if one.edge == key.edge and one != key]
            return effects + uploads.end(before) + followed
        effects += followed
        if self.orders.outranked(key):
            # Its orders and our rounds do not fit together: its welcome says where it is.
            effects += self.sessions.hello(session, now)
        if self.device.price_micro != order.price:
            effects += self.sessions.look(session, now)
        return effects

    def _on_call(self, session: Session, call: m.OpinionCall, now: float) -> list[Effect]:
        """Evaluate and let the neighbours take part, or ask for the word on the task."""
        key = Key(session.edge, call.run, call.round)
        if (unsigned := self._unsigned(key, call, now)) is not None:
            return unsigned[0]
        return self._on_peers(session, call, now) + self.evaluator.call(session, call, now)

    def _unsigned(
        self, key: Key, wanted: m.TrainOrder | m.OpinionCall, now: float
    ) -> tuple[list[Effect], str] | None:
        """Ask for the coordinator's word, or return why it is none; None: all of it is signed."""
        if not self._vouching.stands(key, wanted.task, now):
            why = self._tasks.distrust(key, wanted.task, now)
            return [] if why else self._tasks.want(wanted.task, key, now), why
        if self._vouching.is_made(key, wanted):
            return None
        what = "order" if isinstance(wanted, m.TrainOrder) else "call"
        self.counters[f"{what}_unsigned"] += 1
        text = f"{what} of round {key.round} refused: {UNASSIGNED}"
        return self._vouching.warn(key.edge, text), UNASSIGNED

    def _on_task(self, session: Session, message: m.TaskBody, now: float) -> list[Effect]:
        return self._tasks.receive(session.edge, message, now, busy=self._busy)

    def _on_chunk(self, session: Session, chunk: m.Chunk, now: float) -> list[Effect]:
        for fetch in self._downloads(chunk.digest):
            if fetch.key.edge == session.edge:
                return fetch.receive(chunk, now)
        self.counters["chunk_unasked"] += 1
        return []

    def _on_closed(self, session: Session, message: m.RoundClosed, now: float) -> list[Effect]:
        key = Key(session.edge, message.run, message.round)
        self._masking.closed(key)
        effects = self.orders.closed(key, now, kept=message.kept)
        return effects + self.uploads.closed(key, kept=message.kept)

    def _on_probe(self, session: Session, probe: m.Probe, now: float) -> list[Effect]:  # noqa: ARG002
        padding = bytes(probe.reply_bytes)
        return [Send(session.edge, m.ProbeReply(nonce=probe.nonce, data=padding))]

    def _on_peers(
        self, session: Session, message: m.OpinionCall | m.Neighbours | m.PeerDeliver, now: float
    ) -> list[Effect]:
        return self.sessions.to_open(self.peers.receive(session.edge, message, now))

    # --------------------------------------------- results, and what is measured

    def _on_measured(self, event: own.Measured, now: float) -> list[Effect]:
        readings = self.device.readings = event.readings
        self.peers.available = readings.available
        effects = [] if readings.available else self.orders.abort(readings.reason)
        return effects + self.sessions.measured(now) + self._go_on(now)

    def _on_trainer_ended(self, event: own.TrainerEnded, now: float) -> list[Effect]:  # noqa: ARG002
        self.device.cold, self._samples = True, {}
        return self.sessions.measured(now)

    def _on_model(self, event: own.ModelOpened | fx.ModelFinished, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for fetch in self._downloads(event.digest):
            session = self.sessions.get(fetch.key.edge)
            link = session.measured if session is not None else None
            if isinstance(event, own.ModelOpened):
                effects += fetch.opened(event, link, now)
            else:
                effects += fetch.finished(event, link, now)
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
        taker = self._jobs.pop(reply.job, None)
        if taker is None:
            return [*effects, DropOutput(reply.job)]
        return effects + taker(reply, now) + self._go_on(now)

    def _on_stored(self, event: own.UpdateStored, now: float) -> list[Effect]:
        self.orders.stored(event.update.key)
        return self.uploads.stored(event, now)

    def _on_disk_failed(self, event: own.DiskFailed, now: float) -> list[Effect]:
        problem = f"disk: {event.detail}"
        match event.effect:
            case own.OpenModel() | fx.WriteModel() | own.FinishModel() as effect:
                for fetch in self._downloads(effect.digest):
                    fetch.problem = problem
                return self._go_on(now)
            case own.MakeIdleUpdate() | own.StoreUpdate() | own.CarryUpdate() as effect:
                return self.orders.store_failed(effect, problem)
            case own.StoreOpinion():
                return self.evaluator.answer_none(problem, now)
            case _:
                self.counters["disk_failed"] += 1
                return []

    def _on_revoked(self, revoked: fx.Revoked, now: float) -> list[Effect]:
        """Leave edges that were revoked; what they ordered is for nobody."""
        active, effects = self.orders.active, list[Effect]()
        keys = {*self.uploads.by_key, *([active.key] if active is not None else ())}
        for key in sorted(key for key in keys if key.edge in revoked.ids):
            effects += self.orders.closed(key, now, kept=False)
            effects += self.uploads.closed(key, kept=False)
        return effects + self.sessions.revoked(revoked)

    def _lost(self, edge: str) -> None:
        """Let go of what only the session with this edge was for."""
        self._tasks.lost(edge)
        self.evaluator.lost(edge)

    # ------------------------------------------------------------------ time

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        return self.sessions.to_open(self._timers.tick(now)) + self._go_on(now)

    def next_due(self) -> float | None:
        """Return when `tick` is wanted; None while nothing is going on."""
        due = self._timers.next_due()
        return due if due < math.inf else None

    def urgent(self) -> bool:
        """Return whether an order is open, or an update is under way."""
        return self._working() or self.uploads.urgent

    def _working(self) -> bool:
        return self.orders.active is not None

    @property
    def _busy(self) -> bool:
        return self.orders.active is not None or self.evaluator.pending is not None

    def _go_on(self, now: float) -> list[Effect]:
        """Do whatever nothing stands in the way of any more."""
        effects = self._tasks.go_on(now)
        if self.orders.active is not None:
            effects += self.orders.go_on(now)
        if self.evaluator.pending is not None:
            effects += self.evaluator.go_on(now)
        return effects

    def _downloads(self, digest: str = "") -> list[Download]:
        """Return what is fetched; with a digest what of it is on its way."""
        works = self.evaluator.pending, self.orders.active, self._tasks.task
        fetches = [work.fetch for work in works if work is not None and work.fetch is not None]
        if digest:
            fetches = [one for one in fetches if one.loading and one.digest == digest]
        return fetches
