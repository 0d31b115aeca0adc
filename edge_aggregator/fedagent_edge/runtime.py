"""The edge's core with its disk: synchronous, without clock, thread or network.

The daemon, and the virtual testbed, feed it messages and perform what it returns.
A kill between any two disk effects is a `checkpoint` that does not return: drop the
runtime, and open a new one on the same directory.

Checkpoints: ``edge.round_saved``, ``edge.chunk_written``, ``edge.complete``,
``edge.spooled``, ``edge.receipted``, ``edge.aggregated``, ``edge.reported``,
``edge.spool_cleared``, ``edge.model_stored``, ``edge.model_saved``.
"""

from pathlib import Path

from fedagent_node.blobs import BlobMissingError
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import (
    AgentToEdge,
    Chunk,
    CoordinatorToEdge,
    UpdateOffer,
)
from fedagent_protocol.tensors import Buffer, tensor_at
from fedagent_protocol.transfer import Layout

from .aggregation.mean import RunningMean
from .core.admission import Verdict, check_content, locate_again
from .core.edge import EdgeCore
from .core.effects import (
    Admit,
    AdoptRun,
    Check,
    Commit,
    DropSpool,
    Effect,
    Event,
    FinishModel,
    ForgetRound,
    Key,
    Note,
    NoteEnd,
    OpenModel,
    OpenSpool,
    Publish,
    SaveModel,
    SaveReport,
    SaveRound,
    SendChunk,
    ToAgent,
    ToCoordinator,
    WriteModel,
    WriteSpool,
)
from .core.round import Restored
from .core.settings import EdgeSettings, Memory
from .errors import disk_refused
from .journal import Journal, OpenRound
from .models import Models
from .outward import DiskError, Job, Outward, PublishModel, SendAgent, SendCoordinator
from .spool import Head, Recovered, Spool
from .state import State, StateFile

__all__ = [
    "SMALL_BYTES",
    "EdgeRuntime",
    "Job",
    "Outward",
    "PublishModel",
    "SendAgent",
    "SendCoordinator",
]

SMALL_BYTES = 256 * 1024
"""Models up to this size are handled at once: a hop to another thread costs more."""


class EdgeRuntime:
    """One edge on one data directory.

    Args:
        directory: Where state, models and spool are.
        settings: Of the core.
        now: The caller's monotonic clock.
        boot: Id of the boot that `now` belongs to.
        checkpoint: Called between any two disk effects.

    Raises:
        StateError: The directory's files cannot be used. Any method may raise it.
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
        self._models = Models(directory / "models", max_bytes=settings.max_model_bytes)
        self._spool = Spool(directory / "spool")
        self._journal = Journal(directory / "spool" / "round.journal")
        self._mean = RunningMean()
        self._whole: dict[Key, bytes] = {}
        self._unsynced: list[Admit] = []
        self._positions = 0
        self._base = ""
        self._directory = directory
        self._overdue: list[str] = []
        stored = self._file.load() or State()
        self.core = EdgeCore(settings, self._memory(stored))
        self._resume(stored, now)

    # ------------------------------------------------------------------ inputs

    def lan_up(self, now: float) -> list[Outward]:
        """The agents' broker is connected."""
        return self._perform(self.core.lan_up(now), now)

    def wan_up(self, now: float) -> list[Outward]:
        """The coordinator's broker is connected."""
        return self._perform(self.core.wan_up(now), now)

    def from_agent(
        self, agent: str, message: AgentToEdge, now: float, *, at: float, link_idle: bool
    ) -> list[Outward]:
        """Take in a message of an agent; `at` is when the network had it."""
        effects = self.core.from_agent(agent, message, now, at=at, link_idle=link_idle)
        return self._perform(effects, now)

    def from_coordinator(
        self, coordinator: str, message: CoordinatorToEdge, now: float, *, link_idle: bool
    ) -> list[Outward]:
        """Take in a message of the coordinator; its id is known of beacons only."""
        effects = self.core.from_coordinator(coordinator, message, now, link_idle=link_idle)
        return self._perform(effects, now)

    def flush(self, now: float) -> list[Outward]:
        """Make the small updates durable that were complete together, and receipt them.

        To be called after each batch of messages; `tick` does it too.
        """
        batch, self._unsynced = self._unsynced, []
        if not batch:
            return []
        self._checkpoint("edge.complete")
        try:
            self._store(batch)
        except OSError as error:
            detail = str(error)[:120]
            failed = [self.core.disk_failed(admit.key, detail) for admit in batch]
            return [one for effects in failed for one in self._perform(effects, now)]
        self._checkpoint("edge.spooled")
        outward: list[Outward] = []
        for admit in batch:
            outward += self._perform(self.core.admitted(admit.key, now), now)
        self._overdue.append("edge.receipted")
        return outward

    def tick(self, now: float) -> list[Outward]:
        """Do what is due."""
        flushed = self.flush(now)
        return flushed + self._perform(self.core.tick(now), now)

    def next_due(self, now: float) -> float:
        """Return when `tick` is wanted."""
        return now if self._unsynced else self.core.next_due(now)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def _store(self, batch: list[Admit]) -> None:
        whole = [(admit, self._whole.pop(admit.key, b"")) for admit in batch]
        heads = []
        for admit, data in whole:
            self._positions += 1
            heads.append(_fate_head(admit, self._positions))
            self._journal.append(heads[-1], data)
        self._journal.sync()
        for head, (_, data) in zip(heads, whole, strict=True):
            if head.weight > 0:
                _add(self._mean, data, head.weight)

    # ------------------------------------------------------------ disk effects

    def _perform(self, effects: list[Effect], now: float) -> list[Outward]:
        # What was returned last has gone out by now.
        while self._overdue:
            self._checkpoint(self._overdue.pop(0))
        outward: list[Outward] = []
        for effect in effects:
            outward += self._one(effect, now)
        return outward

    def _one(self, effect: Effect, now: float) -> list[Outward]:
        match effect:
            case ToAgent():
                return [SendAgent(effect.agent, effect.message)]
            case ToCoordinator():
                return [SendCoordinator(effect.message)]
            case Publish():
                return [PublishModel(effect.digest, self._chunk(effect.digest, effect.index))]
            case SendChunk():
                chunk = self._chunk(effect.digest, effect.index)
                return [SendAgent(effect.agent, chunk) if effect.agent else SendCoordinator(chunk)]
            case Check():
                small = effect.key in self._whole
                return self._check_now(effect, now) if small else [self._check(effect)]
            case Admit():
                if effect.key not in self._whole:
                    return [self._admit(effect)]
                self._unsynced.append(effect)
            case Commit():
                return [self._commit(effect)]
            case FinishModel():
                return [self._finish_model(effect)]
            case Event() | Note():
                return [effect]
            case OpenSpool() | WriteSpool() | DropSpool() | NoteEnd():
                return self._write_spool(effect, now)
            case OpenModel() | WriteModel():
                self._write_model(effect)
            case SaveRound() | ForgetRound() | SaveReport() | AdoptRun() | SaveModel():
                self._remember(effect)
        return []

    def _write_spool(
        self, effect: OpenSpool | WriteSpool | DropSpool | NoteEnd, now: float
    ) -> list[Outward]:
        try:
            match effect:
                case OpenSpool():
                    if not self._is_small(effect.offer):
                        self._spool.begin(effect.key, effect.offer)
                case WriteSpool():
                    self._write_chunk(effect)
                case DropSpool():
                    self._whole.pop(effect.key, None)
                    self._spool.drop(effect.key)
                case NoteEnd():
                    self._journal.append(_end_head(effect))
        except OSError as error:
            return self._perform(self.core.disk_failed(effect.key, str(error)[:120]), now)
        return []

    def _write_chunk(self, effect: WriteSpool) -> None:
        live = self.core.live
        part = live.rnd.parts.get(effect.key[2]) if live is not None else None
        if part is None or part.offer is None:
            # An earlier effect of the same message failed on the disk.
            return
        if self._is_small(part.offer):
            # Written once, together with its fate.
            self._whole[effect.key] = effect.data
            return
        layout = Layout(part.offer.size, part.offer.chunk_bytes)
        self._spool.write(effect.key, layout, effect.index, effect.data)
        self._checkpoint("edge.chunk_written")

    def _write_model(self, effect: OpenModel | WriteModel) -> None:
        if isinstance(effect, OpenModel):
            self._models.begin_part(effect.digest)
            return
        try:
            self._models.write_part(effect.digest, effect.offset, effect.data)
        except OSError:
            # The part is damaged now, which its verification will find.
            self.core.counters["disk_failed"] += 1

    def _remember(
        self, effect: SaveRound | ForgetRound | SaveReport | AdoptRun | SaveModel
    ) -> None:
        """Store what a restart must know; drop what it must not find."""
        match effect:
            case SaveRound():
                self._clear_round()
                self._base = effect.base
                self._begin_journal(effect)
                self._checkpoint("edge.round_saved")
            case SaveModel():
                self._save()
                if self.core.memory.model:
                    self._models.hold(self.core.memory.model)
                self._checkpoint("edge.model_saved")
            case SaveReport():
                self._save()
                self._checkpoint("edge.reported")
                if self.core.memory.model:
                    self._models.hold(self.core.memory.model)
                self._clear_round()
                self._checkpoint("edge.spool_cleared")
            case AdoptRun():
                self._save()
                self._clear_round()
            case ForgetRound():
                self._clear_round()

    def _begin_journal(self, effect: SaveRound) -> None:
        opened = OpenRound(
            run=self.core.memory.run,
            boot=self._boot,
            order=effect.order,
            base=effect.base,
            began_at=effect.began_at,
        )
        try:
            self._journal.begin(opened)
        except OSError as error:
            raise disk_refused(self._directory, error) from error

    def _clear_round(self) -> None:
        self._whole.clear()
        self._unsynced.clear()
        self._mean, self._positions = RunningMean(), 0
        try:
            self._journal.clear()
            self._spool.clear()
        except OSError as error:
            raise disk_refused(self._directory, error) from error

    # -------------------------------------------------------------------- jobs

    def _check_now(self, effect: Check, now: float) -> list[Outward]:
        """Check an update of few bytes at once."""
        verdict = check_content(
            self._whole[effect.key],
            digest=effect.offer.digest,
            manifest=self._models.manifest(self._base),
            norm_limit=effect.norm_limit,
        )
        return self._perform(self.core.checked(effect.key, verdict, now), now)

    def _check(self, effect: Check) -> Job:
        offer, spool = effect.offer, self._spool
        manifest, limit = self._models.manifest(self._base), effect.norm_limit

        def work() -> Verdict | DiskError:
            try:
                data = spool.content(effect.key, offer.size)
            except OSError as error:
                return DiskError(str(error)[:120])
            return check_content(data, digest=offer.digest, manifest=manifest, norm_limit=limit)

        def done(result: object, now: float) -> list[Outward]:
            if isinstance(result, DiskError):
                return self._perform(self.core.disk_failed(effect.key, result.detail), now)
            assert isinstance(result, Verdict)
            return self._perform(self.core.checked(effect.key, result, now), now)

        return Job("check", self._job_size(), work, done)

    def _admit(self, effect: Admit) -> Job:
        self._positions += 1
        head, mean = _fate_head(effect, self._positions), self._mean
        spool, journal = self._spool, self._journal

        def work() -> DiskError | None:
            self._checkpoint("edge.complete")
            try:
                journal.sync()
                spool.settle(head)
                self._checkpoint("edge.spooled")
                if head.weight > 0:
                    _add(mean, spool.content(effect.key, effect.offer.size), head.weight)
            except OSError as error:
                return DiskError(str(error)[:120])
            return None

        def done(result: object, now: float) -> list[Outward]:
            if isinstance(result, DiskError):
                return self._perform(self.core.disk_failed(effect.key, result.detail), now)
            outward = self._perform(self.core.admitted(effect.key, now), now)
            self._overdue.append("edge.receipted")
            return outward

        return Job("admit", self._job_size(), work, done)

    def _commit(self, effect: Commit) -> Job:
        mean, models, chunk_bytes = self._mean, self._models, self.core.settings.chunk_bytes

        def work() -> tuple[str, int, bytes]:
            try:
                digest, data = models.put_mean(effect.base, mean)
            except (OSError, BlobMissingError):
                return "", 0, b""
            self._checkpoint("edge.aggregated")
            return digest, len(data), data[:chunk_bytes]

        def done(result: object, now: float) -> list[Outward]:
            assert isinstance(result, tuple)
            digest, size, first = result
            effects = self.core.committed(effect.run, effect.round, digest, size, now, first=first)
            return self._perform(effects, now)

        return Job("commit", self._job_size(), work, done)

    def _finish_model(self, effect: FinishModel) -> Job:
        models = self._models

        def work() -> str:
            try:
                refused = models.finish_part(effect.digest, effect.size)
            except OSError as error:
                return str(error)[:120]
            self._checkpoint("edge.model_stored")
            return refused

        def done(result: object, now: float) -> list[Outward]:
            size = 0 if result else effect.size
            outward = self._perform(self.core.model_ready(effect.digest, size, now), now)
            if result:
                outward.append(Note("", f"the coordinator's model is not usable: {result}"))
            return outward

        return Job("model", effect.size, work, done)

    def _job_size(self) -> int:
        # The same for all jobs of a round, so that none overtakes another.
        return self.core.memory.model_bytes

    # ----------------------------------------------------------------- restart

    def _memory(self, stored: State) -> Memory:
        """Return what the state file says, without a model that is not there."""
        held = self._models.has(stored.model)
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
        model = self.core.memory.model
        if model:
            self._models.hold(model)
        journal = self._journal.read()
        opened = journal.opened
        if (
            opened is None
            or not model
            or (opened.run, opened.base) != (stored.run, model)
            or opened.order.round <= stored.last_round
        ):
            self._clear_round()
            return
        self._base = opened.base
        self.core.memory.last_round = opened.order.round
        found = [Recovered(head, whole=data) for head, data in journal.entries]
        found += self._spool.recover(stored.run, opened.order.round)
        found = [self._take_up(one) for one in sorted(found, key=lambda one: one.head.position)]
        same_boot = opened.boot == self._boot and opened.began_at <= now
        longest = max(opened.order.max_wait_ms, opened.order.deadline_ms) / 1000
        began_at = opened.began_at if same_boot else now - longest - 1.0
        self.core.resume(
            opened.order,
            opened.base,
            began_at,
            [_restored(one.head) for one in found],
            {one.head.agent: one.have for one in found},
        )
        self.core.counters["rounds_resumed"] += 1

    def _take_up(self, one: Recovered) -> Recovered:
        """Put an admitted update into the sum again, unless the disk has damaged it."""
        head = one.head
        self._positions = max(self._positions, head.position)
        if head.offer is None or head.weight <= 0:
            return one
        data: Buffer | None = one.whole
        if data is None:
            data = self._spool.content(head.key, head.offer.size)
        verdict = check_content(
            data,
            digest=head.offer.digest,
            manifest=self._models.manifest(self._base),
            norm_limit=0.0,
        )
        if verdict.valid:
            _add(self._mean, data, head.weight)
            return one
        self.core.counters["spool_damaged"] += 1
        self._spool.drop(head.key)
        return Recovered(Head(run=head.run, round=head.round, agent=head.agent))

    def _save(self) -> None:
        memory = self.core.memory
        self._file.save(
            State(
                run=memory.run,
                task=memory.task,
                body=memory.body,
                model=memory.model,
                model_bytes=memory.model_bytes,
                last_round=memory.last_round,
                report=memory.report,
            )
        )

    # ----------------------------------------------------------------- details

    def _is_small(self, offer: UpdateOffer) -> bool:
        """Whether an update is one chunk, in a round whose work is all done at once."""
        one_chunk = offer.size <= min(offer.chunk_bytes, SMALL_BYTES)
        return one_chunk and self.core.memory.model_bytes <= SMALL_BYTES

    def _chunk(self, digest: str, index: int) -> Chunk:
        data = self._models.chunk(digest, index, self.core.settings.chunk_bytes)
        live = self.core.live
        number = live.rnd.round if live is not None else 0
        return Chunk(run=self.core.memory.run, round=number, digest=digest, index=index, data=data)


def _add(mean: RunningMean, data: Buffer, weight: float) -> None:
    mean.add({item.spec.name: tensor_at(data, item) for item in locate_again(data)}, weight)


def _fate_head(admit: Admit, position: int) -> Head:
    run, number, agent = admit.key
    return Head(
        run=run,
        round=number,
        agent=agent,
        offer=admit.offer,
        status=admit.status,
        tau_ms=admit.tau_ms,
        weight=admit.weight,
        norm=admit.norm,
        position=position,
    )


def _end_head(end: NoteEnd) -> Head:
    run, number, agent = end.key
    return Head(
        run=run,
        round=number,
        agent=agent,
        status=end.status,
        reason=end.reason,
        tau_ms=end.tau_ms,
    )


def _restored(head: Head) -> Restored:
    return Restored(
        agent=head.agent,
        status=head.status,
        reason=head.reason,
        offer=head.offer,
        tau_ms=head.tau_ms,
        weight=head.weight,
        norm=head.norm,
    )
