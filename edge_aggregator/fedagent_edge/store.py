"""The edge's disk: state, models, and the spool of the open round.

Checkpoints: ``edge.chunk_written``, ``edge.complete``, ``edge.spooled``, ``edge.aggregated``,
``edge.model_stored``; the core marks the others: ``edge.round_saved``, ``edge.receipted``,
``edge.reported``, ``edge.spool_cleared``, ``edge.model_saved``.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from fedagent_node.blobs import BlobMissingError
from fedagent_node.data_dir import write_private
from fedagent_node.driver import Job
from fedagent_node.effects import (
    FinishModel,
    Input,
    Mark,
    ModelFinished,
    Run,
    Write,
    WriteModel,
)
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import AnyMessage, Chunk, EdgeHello, UpdateOffer
from fedagent_protocol.tensors import Buffer, tensor_at
from fedagent_protocol.transfer import Layout
from fedagent_task.mean import RunningMean

from .config import EdgeConfig
from .core.admission import Verdict, check_content, locate_again
from .core.edge import EdgeCore
from .core.effects import (
    Admit,
    Admitted,
    Check,
    Checked,
    Commit,
    Committed,
    DiskFailed,
    DropSpool,
    ForgetRound,
    Key,
    Memory,
    NoteEnd,
    OpenModel,
    OpenSpool,
    SaveRound,
    SaveState,
    WriteSpool,
)
from .core.round import OpenedRound, Restored
from .core.state import EdgeState
from .core.transfers import MAX_MODEL_BYTES
from .errors import EdgeStateError, disk_refused
from .journal import Journal, OpenRound
from .models import EdgeModels
from .spool import Head, Recovered, Spool

SMALL_BYTES = 256 * 1024
"""Models up to this size are handled at once: a hop to another thread costs more."""


class EdgeStore:
    """One edge's data directory.

    Args:
        boot: Id of the boot that times belong to.

    Raises:
        EdgeStateError: The directory's files cannot be used. Any method may raise it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        chunk_bytes: int,
        boot: str,
        counters: Counter[str],
        checkpoint: Checkpoint = hit,
    ) -> None:
        self._directory = directory
        self._chunk_bytes = chunk_bytes
        self._boot = boot
        self._counters = counters
        self._checkpoint = checkpoint
        self._path = directory / "state.msgpack"
        self._models = EdgeModels(directory / "models", max_bytes=MAX_MODEL_BYTES)
        self._spool = Spool(directory / "spool")
        self._journal = Journal(directory / "spool" / "round.journal")
        self._base = ""
        self._base_bytes = 0
        self._begin_round("")

    def _begin_round(self, base: str) -> None:
        self._base = base
        self._base_bytes = self._models.size(base) if base else 0
        self._mean, self._positions = RunningMean(), 0
        self._offers: dict[Key, UpdateOffer] = {}
        self._whole: dict[Key, bytes] = {}
        self._unsynced: list[Admit] = []

    def load(self, now: float) -> tuple[Memory, OpenedRound | None]:
        """Return what a restart must know, and the round that was open."""
        memory = self._load_state()
        if not self._models.has(memory.model):
            memory.model, memory.model_bytes = "", 0
        if memory.model:
            self._models.hold(memory.model)
        journal = self._journal.read()
        opened = journal.opened
        if (
            opened is None
            or not memory.model
            or (opened.run, opened.base) != (memory.run, memory.model)
            or opened.order.round <= memory.last_round
        ):
            self._clear_round()
            return memory, None
        self._begin_round(opened.base)
        found = [Recovered(head, whole=data) for head, data in journal.entries]
        found += self._spool.recover(opened.run, opened.order.round)
        found = [self._recover(one) for one in sorted(found, key=lambda one: one.head.position)]
        same_boot = opened.boot == self._boot and opened.began_at <= now
        longest = max(opened.order.max_wait_ms, opened.order.deadline_ms) / 1000
        began_at = opened.began_at if same_boot else now - longest - 1.0
        known = [_restored(one.head) for one in found]
        have = {one.head.agent: one.have for one in found}
        return memory, OpenedRound(opened.order, opened.base, began_at, known, have)

    def _recover(self, one: Recovered) -> Recovered:
        """Put an admitted update into the sum again, unless the disk has damaged it."""
        head = one.head
        self._positions = max(self._positions, head.position)
        if head.offer is None or head.weight <= 0:
            if head.offer is not None and head.status is None:
                self._offers[head.key] = head.offer
            return one
        data: Buffer | None = one.whole
        if data is None:
            data = self._spool.content(head.key, head.offer.size)
        if self._verdict(head.offer, norm_limit=0.0)(data).valid:
            _add(self._mean, data, head.weight)
            return one
        self._counters["spool_damaged"] += 1
        self._spool.drop(head.key)
        return Recovered(Head(run=head.run, round=head.round, agent=head.agent))

    def close(self) -> None:
        """Close the journal. Idempotent."""
        self._journal.close()

    def complete(self, message: AnyMessage) -> AnyMessage:
        """Return a chunk of a model with its data."""
        assert isinstance(message, Chunk)
        data = self._models.chunk(message.digest, message.index, self._chunk_bytes)
        return msgspec.structs.replace(message, data=data)

    # ------------------------------------------------------------ disk effects

    def write(self, effect: Write, now: float) -> Input | None:  # noqa: ARG002 - agents need `now`
        """Perform a disk effect; a failure of the spool is the result, others are raised."""
        match effect:
            case Mark():
                self._checkpoint(effect.name)
            case OpenSpool() | WriteSpool() | DropSpool() | NoteEnd():
                try:
                    self._write_spool(effect)
                except OSError as error:
                    return DiskFailed(effect.key, str(error)[:120])
            case OpenModel():
                self._models.begin_part(effect.digest)
            case WriteModel():
                try:
                    self._models.write_part(effect.digest, effect.offset, effect.data)
                except OSError:
                    # The part is damaged now, which its verification will find.
                    self._counters["disk_failed"] += 1
            case SaveRound():
                self._clear_round()
                self._begin_round(effect.base)
                self._begin_journal(effect)
            case SaveState():
                self._save_state(effect.memory)
                if effect.memory.model:
                    self._models.hold(effect.memory.model)
            case ForgetRound():
                self._clear_round()
        return None

    def _write_spool(self, effect: OpenSpool | WriteSpool | DropSpool | NoteEnd) -> None:
        key = effect.key
        match effect:
            case OpenSpool():
                if not self._is_small(effect.offer):
                    self._spool.begin(key, effect.offer)
                self._offers[key] = effect.offer
            case WriteSpool():
                offer = self._offers.get(key)
                if offer is None:
                    # An earlier effect of the same message failed on the disk.
                    return
                if self._is_small(offer):
                    # Written once, together with its fate.
                    self._whole[key] = effect.data
                    return
                layout = Layout(offer.size, offer.chunk_bytes)
                self._spool.write(key, layout, effect.index, effect.data)
                self._checkpoint("edge.chunk_written")
            case DropSpool():
                self._offers.pop(key, None)
                self._whole.pop(key, None)
                self._spool.drop(key)
            case NoteEnd():
                self._journal.append(_head_of_end(effect))

    def _is_small(self, offer: UpdateOffer) -> bool:
        """Return whether an update is one chunk, in a round whose work is all done at once."""
        one_chunk = offer.size <= min(offer.chunk_bytes, SMALL_BYTES)
        return one_chunk and self._base_bytes <= SMALL_BYTES

    def _begin_journal(self, effect: SaveRound) -> None:
        opened = OpenRound(
            run=effect.run,
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
        self._begin_round("")
        try:
            self._journal.clear()
            self._spool.clear()
        except OSError as error:
            raise disk_refused(self._directory, error) from error

    def flush(self) -> Iterable[Input]:
        """Make the small updates durable that were complete together."""
        batch, self._unsynced = self._unsynced, []
        if not batch:
            return ()
        self._checkpoint("edge.complete")
        try:
            self._append(batch)
        except OSError as error:
            return [DiskFailed(admit.key, str(error)[:120]) for admit in batch]
        self._checkpoint("edge.spooled")
        return [Admitted(admit.key) for admit in batch]

    def _append(self, batch: list[Admit]) -> None:
        whole = [self._whole.pop(admit.key, b"") for admit in batch]
        heads = [self._head(admit) for admit in batch]
        for head, data in zip(heads, whole, strict=True):
            self._journal.append(head, data)
        self._journal.sync()
        for head, data in zip(heads, whole, strict=True):
            if head.weight > 0:
                _add(self._mean, data, head.weight)

    # -------------------------------------------------------------------- jobs

    def job(self, effect: Run) -> Job | None:
        """Prepare a job; small updates are admitted by the next flush."""
        # The same for all jobs of a round, so that none overtakes another.
        small = self._base_bytes <= SMALL_BYTES
        match effect:
            case Check():
                return Job("check", self._check(effect), small)
            case Admit():
                if effect.key in self._whole:
                    self._unsynced.append(effect)
                    return None
                return Job("admit", self._admit(effect), small)
            case Commit():
                return Job("commit", self._commit(effect), small)
            case FinishModel():
                return Job("model", self._finish_model(effect), effect.size <= SMALL_BYTES)
        raise NotImplementedError(effect)

    def _verdict(self, offer: UpdateOffer, *, norm_limit: float) -> Callable[[Buffer], Verdict]:
        """Return what checks the content of an update to the open round's model."""
        return functools.partial(
            check_content,
            digest=offer.digest,
            manifest=self._models.manifest(self._base),
            norm_limit=norm_limit,
        )

    def _check(self, effect: Check) -> Callable[[], Input]:
        key, size, whole = effect.key, effect.offer.size, self._whole.get(effect.key)
        verdict = self._verdict(effect.offer, norm_limit=effect.norm_limit)

        def work() -> Input:
            try:
                data = self._spool.content(key, size) if whole is None else whole
            except OSError as error:
                return DiskFailed(key, str(error)[:120])
            return Checked(key, verdict(data))

        return work

    def _admit(self, effect: Admit) -> Callable[[], Input]:
        head, mean = self._head(effect), self._mean

        def work() -> Input:
            self._checkpoint("edge.complete")
            try:
                self._journal.sync()
                self._spool.settle(head)
                self._checkpoint("edge.spooled")
                if head.weight > 0:
                    _add(mean, self._spool.content(effect.key, effect.offer.size), head.weight)
            except OSError as error:
                return DiskFailed(effect.key, str(error)[:120])
            return Admitted(effect.key)

        return work

    def _head(self, admit: Admit) -> Head:
        self._positions += 1
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
            position=self._positions,
        )

    def _commit(self, effect: Commit) -> Callable[[], Input]:
        mean = self._mean

        def work() -> Input:
            try:
                digest, data = self._models.put_mean(effect.base, mean)
            except (OSError, BlobMissingError):
                return Committed(effect.run, effect.round)
            self._checkpoint("edge.aggregated")
            first = data[: self._chunk_bytes]
            return Committed(effect.run, effect.round, digest, len(data), first)

        return work

    def _finish_model(self, effect: FinishModel) -> Callable[[], Input]:
        def work() -> Input:
            try:
                refused = self._models.finish_part(effect.digest, effect.size)
            except OSError as error:
                refused = str(error)[:120] or "the disk failed"
            else:
                self._checkpoint("edge.model_stored")
            return ModelFinished(effect.digest, effect.size, refused)

        return work

    # ------------------------------------------------------------------- state

    def _load_state(self) -> Memory:
        try:
            return msgspec.msgpack.decode(self._path.read_bytes(), type=Memory)
        except FileNotFoundError:
            return Memory()
        except (msgspec.DecodeError, ValueError, OSError) as error:
            hint = "delete the file to start with an empty edge"
            raise EdgeStateError(self._path, str(error)[:120], hint) from error

    def _save_state(self, memory: Memory) -> None:
        try:
            write_private(self._path, msgspec.msgpack.encode(memory))
        except OSError as error:
            raise disk_refused(self._path, error) from error


def open_edge(
    config: EdgeConfig, me: EdgeHello, *, now: float, boot: str, checkpoint: Checkpoint = hit
) -> tuple[EdgeCore, EdgeStore]:
    """Open an edge on its data directory; `now` is a time of the boot.

    Raises:
        EdgeStateError: The directory's files cannot be used.
    """
    counters: Counter[str] = Counter()
    store = EdgeStore(
        Path(config.data_dir),
        chunk_bytes=config.chunk_bytes,
        boot=boot,
        counters=counters,
        checkpoint=checkpoint,
    )
    memory, opened = store.load(now)
    return EdgeCore(EdgeState(config, me, memory, counters), opened), store


def _add(mean: RunningMean, data: Buffer, weight: float) -> None:
    mean.add({item.spec.name: tensor_at(data, item) for item in locate_again(data)}, weight)


def _head_of_end(end: NoteEnd) -> Head:
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
