"""The agent's core with its disk: synchronous, without clock, thread or network.

The daemon, and the virtual testbed, feed it messages and perform what it returns.
A kill between any two disk effects is a `checkpoint` that does not return.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fedagent_protocol import topics
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import AgentToEdge, Chunk, EdgeToAgent, Hello, PeerSend, kind
from fedagent_protocol.passwords import hide_password
from fedagent_protocol.transfer import Layout

from .core.agent import AgentCore
from .core.device import Readings
from .core.effects import (
    DropUpdate,
    Effect,
    Event,
    FinishModel,
    Key,
    MakeIdleUpdate,
    OpenModel,
    Relink,
    Route,
    Send,
    SendChunk,
    SendOffer,
    StoreOpinion,
    StoreSlot,
    StoreUpdate,
    SubscribeModel,
    Unroute,
    UnsubscribeModel,
    WriteModel,
)
from .errors import OpinionBookError, OutboxError
from .models_cache import ModelsCache
from .opinion_book import OpinionBook
from .outbox import MAX_BYTES, Outbox
from .outward import Outward, Publish, Subscribe, Unsubscribe
from .peers.device import PeerDevice
from .trainer.frames import Cancel, Evaluate, Failed, Open, Reply, Train
from .trainer.idle_update import idle_reply, idle_update

if TYPE_CHECKING:
    from fedagent_node.identity import Identity

    from .config import AgentConfig

FLUSH_S = 2.0
"""How long a deletion may wait for a commit to ride in."""
FLUSH_AGAIN_S = 30.0


class AgentRuntime:
    """One agent on one data directory.

    Args:
        config: Settings of the device.
        agent: Id of the agent.
        identity: Signs the card that neighbours are shown; None: there are no neighbours.
        pending_bytes: Bytes that a link holds unacknowledged, by the link's name.
        own_address: The device's address on a link, for people; by the link's name.
        checkpoint: Called between any two disk effects.
        outbox_bytes: Maximum of all updates together.
        idle_opinions: See `Evaluator`.

    Raises:
        OutboxError: The outbox cannot be used.
        OpinionBookError: The record of opinions cannot be used.
    """

    def __init__(
        self,
        config: "AgentConfig",
        agent: str,
        *,
        identity: "Identity | None" = None,
        pending_bytes: Callable[[str], int],
        own_address: Callable[[str], str] = lambda _: "",
        checkpoint: Checkpoint = hit,
        outbox_bytes: int = MAX_BYTES,
        idle_opinions: bool = False,
    ) -> None:
        self._agent, self._site = agent, config.site
        self._stream = hide_password(config.stream)
        self._own_address = own_address
        self._checkpoint = checkpoint
        self._routes: dict[str, str] = {}
        self._pending_bytes = pending_bytes
        directory = Path(config.data_dir)
        self._outbox = Outbox(directory / "outbox", max_bytes=outbox_bytes, checkpoint=checkpoint)
        self._models = ModelsCache(directory / "models", checkpoint=checkpoint)
        self._book = OpinionBook(directory / "opinions.json", checkpoint=checkpoint)
        self._outs: dict[int, Path] = {}
        self._idle_body = b""
        self._flush_at: float | None = None
        self._peers = PeerDevice(
            directory, identity, config.neighbours(), seed=config.seed_of(agent)
        )
        self.core = AgentCore(
            config,
            agent=agent,
            boots=self._outbox.boots,
            updates=self._outbox.load(),
            answered=self._outbox.answered(),
            opinions=self._book.record,
            pending=self._pending,
            peering=self._peers.open,
            idle_opinions=idle_opinions,
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
        """Take a message of an edge; `now` is the network thread's stamp."""
        return self._run(self.core.message(link, edge, message, now), now)

    def subscribed(self, edge: str, digest: str, now: float, *, ok: bool = True) -> list[Outward]:
        """Take the end of a `Subscribe`."""
        return self._run(self.core.subscribed(edge, digest, now, ok=ok), now)

    def measured(self, readings: Readings, now: float, *, report: bool = False) -> list[Outward]:
        """Take what was measured of the device; `report` it however little has changed."""
        return self._run(self.core.measured(readings, now, report=report), now)

    def trainer_ended(self, now: float) -> list[Outward]:
        """Note that the trainer's process has ended."""
        return self._run(self.core.trainer_ended(now), now)

    def replied(self, reply: Reply, now: float) -> list[Outward]:
        """Take the trainer's reply to `Open`, `Train` or `Evaluate`."""
        outward = self._run(self.core.replied(reply, now), now)
        if (out := self._outs.pop(reply.job, None)) is not None:
            out.unlink(missing_ok=True)  # of a training that is not wanted any more
        return outward

    def tick(self, now: float) -> list[Outward]:
        """Do what is due."""
        outward = self._run(self.core.tick(now), now)
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
        times = [due for due in (self.core.next_due(), self._flush_at) if due is not None]
        return min(times, default=None)

    def bye(self, reason: str, now: float) -> list[Outward]:
        """Close all sessions in good order."""
        return self._run(self.core.bye(reason, now), now)

    def close(self) -> None:
        """Commit what waits, and close the disk."""
        self._outbox.close()
        self._peers.close()

    def crash(self) -> None:
        """Close the disk as a kill would leave it; for the testbed."""
        self._outbox.abandon()
        self._peers.close()

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
                    if (link := self._routes.get(effect.edge)) is not None:
                        topic = self._model_topic(effect)
                        outward.append(Subscribe(link, topic, effect.edge, effect.digest))
                case UnsubscribeModel():
                    if (link := self._routes.get(effect.edge)) is not None:
                        outward.append(Unsubscribe(link, self._model_topic(effect)))
                case Open():
                    offset = self._outbox.offset(self._stream)
                    outward.append(replace(effect, offset=offset))
                case Relink() | Cancel() | Event():
                    outward.append(effect)
                case _:
                    queue.extendleft(reversed(self._disk(effect, outward, now)))
        return outward

    def _disk(self, effect: Effect, outward: list[Outward], now: float) -> list[Effect]:
        match effect:
            case OpenModel() | WriteModel() | FinishModel():
                return self._take_model(effect, now)
            case Train() | Evaluate():
                return self._use_model(effect, outward, now)
            case MakeIdleUpdate():
                body = idle_update(self._models.read(effect.model), effect.round)
                self._idle_body = body or b""
                seconds, iterations = self.core.device.slow_s, effect.iterations
                reply = idle_reply(effect.job, body, iterations=iterations, seconds=seconds)
                return self.core.replied(reply, now)
            case StoreUpdate():
                return self._store_update(effect, now)
            case StoreOpinion():
                try:
                    self._book.keep(effect.answer, effect.spent)
                except OpinionBookError as error:
                    return self.core.opinion_stored(effect.answer, now, refused=error.reason)
                return self.core.opinion_stored(effect.answer, now)
            case DropUpdate():
                self._outbox.drop(effect.key)
                if self._outbox.unflushed and self._flush_at is None:
                    self._flush_at = now + FLUSH_S
            case StoreSlot():
                if not self._peers.keep(effect):
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
            message = replace(message, address=self._own_address(link)[:64])
        topic = topics.agent_up(self._site, self._agent, edge, kind(message))
        qos = 0 if isinstance(message, PeerSend) else 1
        outward.append(Publish(link, topic, message, qos))

    def _offer(self, outward: list[Outward], effect: SendOffer) -> None:
        offer = effect.offer
        if effect.first:
            key = Key(effect.edge, offer.run, offer.round)
            body = self._outbox.read(key, 0, min(offer.size, offer.chunk_bytes))
            offer = replace(offer, first=body or b"")
        self._publish(outward, effect.edge, offer)

    def _chunk(self, outward: list[Outward], effect: SendChunk) -> None:
        key, offer = effect.update.key, effect.update.offer
        start, stop = Layout(offer.size, offer.chunk_bytes).span(effect.index)
        data = self._outbox.read(key, start, stop)
        if data is None:
            self.core.counters["update_unreadable"] += 1
            return
        chunk = Chunk(
            run=key.run, round=key.round, digest=offer.digest, index=effect.index, data=data
        )
        self._publish(outward, key.edge, chunk)

    def _model_topic(self, effect: SubscribeModel | UnsubscribeModel) -> str:
        return topics.model(self._site, effect.edge, effect.digest)

    def _pending(self, edge: str) -> int:
        link = self._routes.get(edge)
        return self._pending_bytes(link) if link is not None else 0

    # -------------------------------------------------------------- training

    def _use_model(
        self, request: Train | Evaluate, outward: list[Outward], now: float
    ) -> list[Effect]:
        """Hand a request to the trainer, with paths instead of names."""
        try:
            model = str(self._models.path(request.model)) if request.model else ""
        except OSError as error:
            failed = Failed(job=request.job, reason="disk", detail=_in_words(error))
            return self.core.replied(failed, now)
        if isinstance(request, Train):
            out = self._outs[request.job] = self._outbox.path(request.out)
            outward.append(replace(request, model=model, out=str(out)))
        else:
            outward.append(replace(request, model=model))
        return []

    def _store_update(self, effect: StoreUpdate, now: float) -> list[Effect]:
        update = effect.update
        out = self._outs.pop(effect.job, None)
        offset = (self._stream, effect.offset) if out is not None else None
        body, self._idle_body = self._idle_body, b""
        try:
            self._outbox.put(update, out if out is not None else body, offset=offset)
        except OutboxError as error:
            if out is not None:
                out.unlink(missing_ok=True)
            return self.core.store_failed(update.key, error.reason)
        self._flush_at = None
        for key in self._outbox.over_limit():
            self._outbox.drop(key)
            self.core.expired(key)
        self._checkpoint("agent.before-offer")
        return self.core.stored(update, now)


def _in_words(error: OSError) -> str:
    return error.strerror or "the disk failed"
