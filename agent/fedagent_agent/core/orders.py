"""Orders and calls of edges: followed once what the coordinator signed of them is here."""

from collections import Counter
from functools import partial

from fedagent_agent.peers.core.selection import PeerSelection
from fedagent_node.effects import Effect, Send
from fedagent_protocol.messages import DeclineReason, OpinionCall, TaskBody, TrainOrder

from .device import DeviceState
from .effects import Key
from .evaluator import Evaluator
from .session import Session, Sessions
from .training_queue import TrainingQueue
from .uploads import Uploads
from .voucher import UNASSIGNED
from .vouching import Vouching


class Orders:
    """Passes orders on to the queue, and calls to the evaluator and the neighbours."""

    def __init__(
        self,
        device: DeviceState,
        sessions: Sessions,
        vouching: Vouching,
        *,
        queue: TrainingQueue,
        evaluator: Evaluator,
        uploads: Uploads,
        peers: PeerSelection,
        counters: Counter[str],
    ) -> None:
        self._device = device
        self._sessions = sessions
        self._vouching = vouching
        self._queue = queue
        self._evaluator = evaluator
        self._uploads = uploads
        self._peers = peers
        self._counters = counters

    def follow(self, session: Session, order: TrainOrder, now: float) -> list[Effect]:
        """Train, offer again what was trained, hold the order, or decline it."""
        key = Key(session.edge, order.run, order.round)
        if (offer := self._uploads.offer_again(key, now)) is not None:
            self._peers.ordered(order)
            return offer
        if not self._vouching.stands(key, order.task, now):
            return self._hold(key, order, now)
        if not self._vouching.is_assigned(key, order.task, order.assigned):
            warned = self._vouching.unmade(key, "order")
            return warned + self._queue.refuse(key, DeclineReason.UNSIGNED, UNASSIGNED)
        self._peers.ordered(order)
        carry = partial(self._uploads.carry, key, order)
        effects, accepted = self._queue.order(key, order, session, now, carry=carry)
        if accepted:
            return [*self._evaluator.make_room(), *self._uploads.end_others(key, now), *effects]
        if self._queue.outranked(key):
            effects += self._sessions.ask_welcome(session, now)
        if self._device.price_micro != order.price and session.report_wanted(self._device, now):
            effects.append(Send(session.edge, self._sessions.report(session, now)))
        return effects

    def call(self, session: Session, call: OpinionCall, now: float) -> list[Effect]:
        """Evaluate and let the neighbours take part, or hold the call."""
        key = Key(session.edge, call.run, call.round)
        if not self._vouching.stands(key, call.task, now):
            return self._hold(key, call, now)
        if not self._vouching.is_called(key, call):
            return self._vouching.unmade(key, "call")
        effects = self._sessions.to_open(self._peers.receive(session.edge, call, now))
        return effects + self._evaluator.call(session, call, now)

    def released(self, session: Session, body: TaskBody, now: float) -> list[Effect]:
        """Go on with what was held until the coordinator's word on its task came."""
        match self._vouching.release(session.edge, body, now):
            case TrainOrder() as order:
                return self.follow(session, order, now)
            case OpinionCall() as call:
                return self.call(session, call, now)
        return []

    def _hold(self, key: Key, message: TrainOrder | OpinionCall, now: float) -> list[Effect]:
        refusal = self._vouching.refusal(key, message.task, now)
        if refusal is None:
            return self._vouching.hold(key, message, now)
        if isinstance(message, OpinionCall):
            self._counters["opinion_task_refused"] += 1
            return []
        return self._queue.refuse(key, DeclineReason.UNSIGNED, f"{refusal}: {refusal.hint}")
