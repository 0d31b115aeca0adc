"""The edge's core with its disk: synchronous, without clock, thread or network.

The daemon, and the virtual testbed, feed it messages and perform what it returns.
A kill between any two disk effects is a `checkpoint` that does not return.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedagent_protocol.errors import DigestError
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import (
    AgentToEdge,
    Chunk,
    CoordinatorToEdge,
    EdgeToAgent,
    EdgeToCoordinator,
    UpdateOffer,
)
from fedagent_protocol.tensors import Manifest, decode_tensors, encode_tensors, locate, tensor_at
from fedagent_protocol.transfer import Layout
from fedagent_protocol.transport.blobs import BlobMissingError, BlobStore

from .aggregation.mean import RunningMean
from .core.admission import Verdict, check_content
from .core.edge import EdgeCore, EdgeSettings, Memory
from .core.effects import (
    Admit,
    AdoptRun,
    Check,
    Commit,
    DropSpool,
    Effect,
    Event,
    FinishModel,
    ForgetReport,
    OpenModel,
    OpenSpool,
    Publish,
    SaveReport,
    SaveRound,
    SendChunk,
    ToAgent,
    ToCoordinator,
    WriteModel,
    WriteSpool,
)
from .core.round import Restored
from .spool import Head, Spool
from .state import OpenRound, State, StateFile

KEPT_MODELS = 4


@dataclass(frozen=True, slots=True)
class SendAgent:
    """Publish to an agent, or as beacon to everybody when `agent` is empty."""

    agent: str
    message: EdgeToAgent


@dataclass(frozen=True, slots=True)
class SendCoordinator:
    """Publish to the coordinator."""

    message: EdgeToCoordinator


@dataclass(frozen=True, slots=True)
class PublishModel:
    """Publish a chunk on the model's topic."""

    digest: str
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Job:
    """Work of `size` bytes; run it, anywhere but in order, and hand the result to `done`."""

    name: str
    size: int
    work: Callable[[], object]
    done: Callable[[object, float], "list[Outward]"]


Outward = SendAgent | SendCoordinator | PublishModel | Job | Event


class EdgeRuntime:
    """One edge on one data directory.

    Args:
        directory: Where state, models and spool are.
        settings: Of the core.
        now: The caller's monotonic clock.
        boot: Id of the boot that `now` belongs to.
        checkpoint: Called between any two disk effects.
    """

    def __init__(
        self,
        directory: Path,
        settings: EdgeSettings,
        *,
        now: float,
        boot: str,
        checkpoint: Checkpoint = hit,
    ) -> None:
        self._checkpoint = checkpoint
        self._boot = boot
        self._file = StateFile(directory / "state.msgpack")
        self._blobs = BlobStore(directory / "models")
        self._spool = Spool(directory / "spool")
        self._mean = RunningMean()
        self._manifest: Manifest | None = None
        self._manifest_run = ""
        self._models: list[str] = []
        self._open_round: OpenRound | None = None
        stored = self._file.load() or State(boot=boot)
        self.core = EdgeCore(settings, self._memory(stored))
        self._resume(stored, now)

    # ------------------------------------------------------------------ inputs

    def lan_up(self, now: float) -> list[Outward]:
        """The agents' broker is connected."""
        return self._perform(self.core.lan_up(now))

    def wan_up(self, now: float) -> list[Outward]:
        """The coordinator's broker is connected."""
        return self._perform(self.core.wan_up(now))

    def from_agent(
        self, agent: str, message: AgentToEdge, now: float, *, at: float, link_idle: bool
    ) -> list[Outward]:
        """Take in a message of an agent."""
        return self._perform(self.core.from_agent(agent, message, now, at=at, link_idle=link_idle))

    def from_coordinator(
        self, coordinator: str, message: CoordinatorToEdge, now: float, *, link_idle: bool
    ) -> list[Outward]:
        """Take in a message of the coordinator."""
        effects = self.core.from_coordinator(coordinator, message, now, link_idle=link_idle)
        return self._perform(effects)

    def tick(self, now: float) -> list[Outward]:
        """Do what is due."""
        return self._perform(self.core.tick(now))

    def next_due(self, now: float) -> float:
        """Return when `tick` is wanted."""
        return self.core.next_due(now)

    def close(self) -> None:
        """Close all files."""
        self._spool.close()

    # ------------------------------------------------------------ disk effects

    def _perform(self, effects: list[Effect]) -> list[Outward]:
        outward: list[Outward] = []
        for effect in effects:
            outward += self._one(effect)
        return outward

    def _one(self, effect: Effect) -> list[Outward]:
        match effect:
            case ToAgent():
                return [SendAgent(effect.agent, effect.message)]
            case ToCoordinator():
                return [SendCoordinator(effect.message)]
            case Publish():
                return [PublishModel(effect.digest, self._chunk(effect.digest, effect.index))]
            case SendChunk():
                chunk = self._chunk(effect.digest, effect.index)
                if effect.agent:
                    return [SendAgent(effect.agent, chunk)]
                return [SendCoordinator(chunk)]
            case WriteSpool():
                offer = self._offer(effect.key)
                layout = Layout(offer.size, offer.chunk_bytes)
                self._spool.write(effect.key, effect.index, effect.data, layout)
            case OpenSpool():
                self._spool.open(effect.key, effect.offer)
            case Check():
                return [self._check(effect)]
            case Admit():
                return [self._admit(effect)]
            case Commit():
                return [self._commit(effect)]
            case FinishModel():
                return [self._finish_model(effect)]
            case Event():
                return [effect]
            case _:
                self._keep(effect)
        return []

    def _keep(self, effect: Effect) -> None:
        """Perform what changes the state file or the spool."""
        match effect:
            case SaveRound():
                self._begin_round(effect)
            case DropSpool():
                self._spool.drop(effect.key)
            case SaveReport():
                self._open_round = None
                self._save()
                self._checkpoint("edge.reported")
                self._spool.clear()
                self._mean = RunningMean()
            case ForgetReport():
                # Not worth a sync: a report that is sent again is only receipted again.
                pass
            case AdoptRun():
                self._spool.clear()
                self._mean, self._open_round = RunningMean(), None
                self._save()
            case OpenModel():
                self._blobs.drop_part(effect.digest)
            case WriteModel():
                layout = self._layout_of_pull(effect.digest)
                self._blobs.write_part(effect.digest, layout.span(effect.index)[0], effect.data)
            case _:
                raise AssertionError(effect)

    def _begin_round(self, effect: SaveRound) -> None:
        self._spool.clear()
        self._mean = RunningMean()
        self._open_round = OpenRound(order=effect.order, base=effect.base, began_at=effect.began_at)
        self._save()
        self._checkpoint("edge.round_saved")

    # -------------------------------------------------------------------- jobs

    def _check(self, effect: Check) -> Job:
        offer = effect.offer
        manifest = self._expected()

        def work() -> Verdict:
            with self._spool.content(effect.key, offer.size) as data:
                return check_content(
                    data, digest=offer.digest, manifest=manifest, norm_limit=effect.norm_limit
                )

        def done(result: object, now: float) -> list[Outward]:
            assert isinstance(result, Verdict)
            return self._perform(self.core.checked(effect.key, result, now))

        return Job("check", offer.size, work, done)

    def _admit(self, effect: Admit) -> Job:
        def work() -> None:
            self._checkpoint("edge.complete")
            self._spool.admit(effect)
            self._checkpoint("edge.spooled")
            if effect.weight > 0:
                self._add(effect.key, effect.offer.size, effect.weight)

        def done(_result: object, now: float) -> list[Outward]:
            outward = self._perform(self.core.admitted(effect.key, now))
            self._checkpoint("edge.admitted")
            return outward

        return Job("admit", effect.offer.size, work, done)

    def _add(self, key: tuple[str, int, str], size: int, weight: float) -> None:
        with self._spool.content(key, size) as data:
            self._mean.add({i.spec.name: tensor_at(data, i) for i in locate(data)}, weight)

    def _commit(self, effect: Commit) -> Job:
        def work() -> tuple[str, int, bytes]:
            base = self._blobs.get(effect.base)
            tensors = self._mean.apply(decode_tensors(base, self._expected()))
            if not all(np.isfinite(array).all() for array in tensors.values()):
                return "", 0, b""
            data = encode_tensors(tensors)
            digest = self._blobs.put(data)
            self._checkpoint("edge.committed")
            return digest, len(data), data[: self.core.settings.chunk_bytes]

        def done(result: object, now: float) -> list[Outward]:
            assert isinstance(result, tuple)
            digest, size, first = result
            if digest:
                self._adopt(digest)
            core = self.core
            effects = core.committed(effect.run, effect.round, digest, size, now, first=first)
            return self._perform(effects)

        return Job("commit", self.core.memory.model_bytes, work, done)

    def _finish_model(self, effect: FinishModel) -> Job:
        def work() -> int:
            try:
                self._blobs.finish_part(effect.digest)
                return self._blobs.size(effect.digest)
            except (DigestError, BlobMissingError):
                return 0

        def done(result: object, now: float) -> list[Outward]:
            assert isinstance(result, int)
            if result:
                self._adopt(effect.digest)
            outward = self._perform(self.core.model_ready(effect.digest, result, now))
            self._save()
            return outward

        return Job("model", self.core.memory.model_bytes, work, done)

    # ----------------------------------------------------------------- restart

    def _memory(self, stored: State) -> Memory:
        """Return what the state file says, without a model that is not there."""
        held = bool(stored.model) and self._blobs.has(stored.model)
        return Memory(
            run=stored.run,
            task=stored.task,
            body=stored.body,
            model=stored.model if held else "",
            model_bytes=stored.model_bytes if held else 0,
            last_round=stored.last_round,
            report=stored.report,
        )

    def _resume(self, stored: State, now: float) -> None:
        """Go on with the round that was open: rebuild its sum from the spool."""
        if stored.model:
            self._models = [stored.model]
        opened = stored.round
        if opened is None or not self.core.memory.model:
            self._spool.clear()
            return
        self._open_round = opened
        heads = self._spool.recover(stored.run, opened.order.round)
        for head in heads:
            if head.weight > 0:
                self._add((head.run, head.round, head.agent), head.offer.size, head.weight)
        same_boot = stored.boot == self._boot and opened.began_at <= now
        began_at = opened.began_at if same_boot else now - opened.order.max_wait_ms / 1000
        self.core.resume(
            opened.order, opened.base, began_at, [_restored(h, began_at) for h in heads]
        )

    def _save(self) -> None:
        memory = self.core.memory
        self._file.save(
            State(
                boot=self._boot,
                run=memory.run,
                task=memory.task,
                body=memory.body,
                model=memory.model,
                model_bytes=memory.model_bytes,
                last_round=memory.last_round,
                report=memory.report,
                round=self._open_round,
            )
        )

    # ------------------------------------------------------------------ models

    def _adopt(self, digest: str) -> None:
        """Note a model as the edge's newest, and forget old ones."""
        self._models = [*(d for d in self._models if d != digest), digest][-KEPT_MODELS:]
        self._blobs.collect(set(self._models))

    def _expected(self) -> Manifest:
        """Return the manifest of the run's models, read from the one we hold."""
        if self._manifest is None or self._manifest_run != self.core.memory.run:
            data = self._blobs.get(self.core.memory.model)
            self._manifest = Manifest(tuple(item.spec for item in locate(data)))
            self._manifest_run = self.core.memory.run
        return self._manifest

    def _chunk(self, digest: str, index: int) -> Chunk:
        size, chunk_bytes = self._blobs.size(digest), self.core.settings.chunk_bytes
        start, stop = Layout(size, chunk_bytes).span(index)
        data = self._blobs.read(digest, start, stop - start)
        rnd = self.core.round
        number = rnd.round if rnd is not None else 0
        run = self.core.memory.run
        return Chunk(run=run, round=number, digest=digest, index=index, data=data)

    def _offer(self, key: tuple[str, int, str]) -> UpdateOffer:
        rnd = self.core.round
        assert rnd is not None
        offer = rnd.parts[key[2]].offer
        assert offer is not None
        return offer

    def _layout_of_pull(self, digest: str) -> Layout:
        layout = self.core.pulling
        assert layout is not None, digest
        return layout


def _restored(head: Head, began_at: float) -> Restored:
    return Restored(
        agent=head.agent,
        offer=head.offer,
        completed_at=began_at + head.tau_ms / 1000,
        weight=head.weight,
        norm=head.norm,
        in_time=head.in_time,
    )
