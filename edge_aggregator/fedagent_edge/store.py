"""The edge's disk: state, models, and what is known of the open round.

Checkpoints: ``edge.chunk_written``, ``edge.complete``, ``edge.spooled``, ``edge.aggregated``,
``edge.model_stored``; the core marks the others: ``edge.round_saved``, ``edge.receipted``,
``edge.reported``, ``edge.spool_cleared``, ``edge.model_saved``.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from fedagent_node.blobs import BlobMissingError, BlobStore
from fedagent_node.data_dir import write_private
from fedagent_node.driver import Job
from fedagent_node.effects import (
    ContentLostError,
    FinishModel,
    Input,
    Mark,
    ModelFinished,
    Run,
    Write,
    WriteModel,
)
from fedagent_node.site.credentials import members_of
from fedagent_protocol.errors import DigestError, FedagentError, ProtocolError
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import AnyMessage, Chunk, EdgeHello, TrainOrder
from fedagent_protocol.signed import WorkClaim, is_claim
from fedagent_protocol.tensors import (
    Buffer,
    Manifest,
    decode_tensors,
    encode_tensors,
    locate,
    tensor_at,
)
from fedagent_protocol.transfer import Layout
from fedagent_task.aggregation import Arrays
from fedagent_task.aggregation.alignment import Signs
from fedagent_task.aggregation.combining import combine
from fedagent_task.privacy.mechanism import KeyStream, add_noise
from fedagent_task.secure_aggregation.ring import MaskedSum

from .config import EdgeConfig
from .core.admission import SMALL_BYTES, Verdict, check_content
from .core.edge import EdgeCore
from .core.effects import (
    Admit,
    Admitted,
    Commit,
    Committed,
    DiskFailed,
    DiskTried,
    DropSpool,
    EdgeState,
    File,
    ForgetRound,
    Memory,
    ModelLost,
    OpenModel,
    OpenRound,
    ReopenedRound,
    SaveRound,
    SaveState,
    TryDisk,
    UpdateRecord,
    WriteSpool,
)
from .core.exchange import MAX_MODEL_BYTES
from .core.weighing import Weighing, weighing_of
from .reserve import Reserve
from .spool import Journal, Spool

KEPT_MODELS = 3
"""The last that the edge held."""
_LOST = (DigestError, BlobMissingError, OSError)
"""What reading a model raises that is of no more use; a failing disk answers with `OSError`."""


class EdgeStateError(FedagentError):
    """Raised when the edge's own files cannot be read or written."""

    template = "{path}: {reason}"

    path: Path
    reason: str
    hint: str


def disk_refused(path: Path, error: OSError) -> EdgeStateError:
    """Return the error for a disk that does not take what must not be lost."""
    hint = "make room or fix the disk, then start the edge again"
    return EdgeStateError(path, error.strerror or str(error), hint)


@dataclass(frozen=True, slots=True)
class _AtWork:
    """The round at work."""

    opened: OpenRound
    weighing: Weighing
    manifest: Manifest  # of its updates
    at_once: bool  # whether its jobs are small: all of them, so that none overtakes another


class EdgeStore:
    """One edge's data directory, in a `boot` that times belong to.

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
        self._models = BlobStore(directory / "models", max_bytes=MAX_MODEL_BYTES)
        self._held: list[str] = []
        self._once = ""
        self._spool = Spool(directory / "spool")
        self._journal = Journal(directory / "spool" / "round.journal")
        self._reserve = Reserve(directory / "reserve")
        self._kept = ForgetRound()
        self._body = b""
        self._round: _AtWork | None = None
        self._unsynced: list[Admit] = []

    def _begin_round(self, opened: OpenRound) -> None:
        """Work for a round from now on; one of `_LOST` without its base."""
        data = self._models.get(opened.base)
        manifest, weighing = _manifest_of(data), weighing_of(self._body)
        if weighing.ring is not None:
            manifest = weighing.ring.manifest(manifest, frozenset(weighing.rules.latest))
        self._round = _AtWork(opened, weighing, manifest, len(data) <= SMALL_BYTES)

    def load(self, now: float) -> tuple[Memory, ReopenedRound | None]:
        """Return what a restart must know, and the round that was open."""
        memory = read_memory(self._path)
        self._once, self._body = memory.once, memory.body
        try:
            if memory.model:
                self._models.get(memory.model)
                self._hold(memory.model)
        except (DigestError, BlobMissingError):
            self._counters["model_lost"] += 1
            memory.model, memory.model_bytes = "", 0
        except OSError as error:
            # Perhaps for once: what agents have receipts for must not go for it.
            raise disk_refused(self._directory, error) from error
        opened, entries = self._journal.read()
        if (
            opened is None
            or not memory.model
            or (opened.run, opened.base) != (memory.run, memory.model)
            or opened.order.round <= memory.last_round
        ):
            self._forget_round(ForgetRound())
            return memory, None
        self._begin_round(opened)
        looked_at = [(record, self._recovered(record, data)) for record, data in entries]
        updates = [(record, verdict) for record, verdict in looked_at if verdict is not None]
        self._spool.clear([record.file for record, _ in updates])
        if opened.boot != self._boot or opened.began_at > now:
            longest = max(opened.order.max_wait_ms, opened.order.deadline_ms) / 1000
            opened = replace(opened, began_at=now - longest - 1.0)
        return memory, ReopenedRound(opened, updates)

    def _recovered(self, record: UpdateRecord, data: bytes) -> Verdict | None:
        """Look again at an update that is on the disk; None if it is damaged."""
        assert self._round is not None
        try:
            content = data or self._spool.content(record.file)
            verdict = _look_at(self._round, content, record.offer.digest)
        except (OSError, ValueError):
            verdict = Verdict("lost")
        if verdict.valid:
            return verdict
        self._counters["spool_damaged"] += 1
        return None

    def holds_once(self) -> str:
        """Return what the task's devices get once, if it is whole; reads all of it."""
        return self._once if self._once and self._models.is_whole(self._once) else ""

    def close(self) -> None:
        """Close the journal. Idempotent."""
        self._journal.close()

    def complete(self, message: AnyMessage) -> AnyMessage:
        """Return a chunk of a model with its data, or an order with all of its model."""
        if isinstance(message, TrainOrder):
            return replace(message, first=self._piece(message.model, 0))
        assert isinstance(message, Chunk)
        return replace(message, data=self._piece(message.digest, message.index))

    def _piece(self, digest: str, index: int) -> bytes:
        try:
            layout = Layout(self._models.size(digest), self._chunk_bytes)
            start, stop = layout.span(index)
            data = self._models.read(digest, start, stop - start)
        except (*_LOST, ProtocolError) as error:
            raise self._lost(digest, str(error)) from error
        if len(data) != stop - start:
            raise self._lost(digest, "its file was cut off")
        return data

    def _lost(self, digest: str, detail: str) -> ContentLostError:
        """Remove what is left of a model, so that it is fetched again."""
        with suppress(OSError):
            self._models.drop(digest)
        return ContentLostError(digest, detail[:200])

    # ------------------------------------------------------------ disk effects

    def write(self, effect: Write, now: float) -> Input | None:  # noqa: ARG002 - agents need `now`
        """Perform a disk effect; a failure of the spool is the result, others are raised."""
        match effect:
            case Mark():
                self._checkpoint(effect.name)
            case WriteSpool(file=file):
                return _tried(file, lambda: self._write_spool(effect))
            case DropSpool(file=file):
                return _tried(file, lambda: self._spool.drop(file))
            case OpenModel():
                self._models.drop_part(effect.digest)
            case WriteModel():
                try:
                    self._models.write_part(effect.digest, effect.offset, effect.data)
                except OSError as error:
                    self._counters["disk_failed"] += 1
                    return _failed(error, digest=effect.digest)
            case TryDisk(size=size):
                return DiskTried(self._reserve.try_room(size))
            case SaveRound(opened=opened):
                begun = replace(opened, boot=self._boot, signs=secrets.randbits(63))
                try:
                    self._begin_round(begun)
                except _LOST:
                    lost = self._lost(opened.base, "its file is damaged, or gone").lost
                    return ModelLost(opened.run, opened.order.round, lost.digest, lost.detail)
                return self._surely(lambda: self._journal.begin(begun), self._directory)
            case SaveState():
                packed = msgspec.msgpack.encode(effect.memory)
                refused = self._surely(lambda: write_private(self._path, packed), self._path)
                self._once, self._body = effect.memory.once, effect.memory.body
                if effect.memory.model:
                    self._hold(effect.memory.model)
                return refused
            case ForgetRound():
                self._forget_round(effect)
        return None

    def _surely(self, write: Callable[[], object], path: Path) -> DiskFailed | None:
        """Write what must not be lost, on a full disk into the room that was kept for it."""
        try:
            write()
        except OSError as full:
            self._reserve.give_up()
            try:
                write()
            except OSError as error:
                raise disk_refused(path, error) from error
            return _failed(full)
        return None

    def _write_spool(self, chunk: WriteSpool) -> None:
        self._spool.write(chunk.file, chunk.offset, chunk.data)
        self._checkpoint("edge.chunk_written")

    def _forget_round(self, kept: ForgetRound) -> None:
        self._kept, self._round, self._unsynced = kept, None, []
        try:
            self._journal.clear()
            self._spool.clear(kept.files)
        except OSError as error:
            raise disk_refused(self._directory, error) from error

    def flush(self) -> Iterable[Input]:
        """Admit the small updates that were complete together."""
        batch, self._unsynced = self._unsynced, []
        return self._admit(self._round, batch) if self._round is not None and batch else ()

    # -------------------------------------------------------------------- jobs

    def job(self, effect: Run) -> Job | None:
        """Prepare a job; small updates are admitted by the next flush."""
        if isinstance(effect, FinishModel):
            return Job("model", partial(self._finish, effect), effect.size <= SMALL_BYTES)
        at_work = self._round
        assert at_work is not None
        if isinstance(effect, Commit):
            return Job("commit", partial(self._commit, effect, at_work), at_work.at_once)
        assert isinstance(effect, Admit)
        if effect.whole:
            self._unsynced.append(effect)
            return None
        admit = partial(self._admit, at_work, [effect])
        return Job("admit", lambda: admit()[0], at_work.at_once)

    def _admit(self, at_work: _AtWork, batch: Sequence[Admit]) -> list[Input]:
        """Verify complete updates, and make those durable that are valid, with one sync."""
        try:
            checked = [(admit, self._verdict(at_work, admit)) for admit in batch]
            self._checkpoint("edge.complete")
            for admit, verdict in checked:
                if not verdict.valid:
                    continue
                record = UpdateRecord(admit.key, admit.after_s, admit.offer)
                if not admit.whole:
                    self._spool.sync(record.file)
                self._journal.append(record, admit.whole)
            self._journal.sync()
            self._checkpoint("edge.spooled")
        except OSError as error:
            return [_failed(error, admit.key[2]) for admit in batch]
        return [Admitted(admit.key, verdict) for admit, verdict in checked]

    def _verdict(self, at_work: _AtWork, admit: Admit) -> Verdict:
        offer, agent = admit.offer, admit.key[2]
        work = WorkClaim.offered(offer, admit.edge, agent)
        if admit.edge and not is_claim(offer.claim, agent, work.statement):
            return Verdict("bad_claim", "not signed as the work of this round")
        content = admit.whole or self._spool.content((agent, offer.digest))
        return _look_at(at_work, content, offer.digest, admit.norm_limit)

    def _commit(self, commit: Commit, at_work: _AtWork) -> Input:
        """Make base + mean a durable model, unless it is not finite."""
        weighing = at_work.weighing
        try:
            data = self._models.get(commit.base)
        except _LOST as error:
            return ModelLost(commit.run, commit.round, commit.base, str(error))
        # A round with updates in the journal is committed at once: nothing can cut it meanwhile.
        small = self._journal.updates() if at_work.at_once else {}

        def content(file: File) -> Arrays:
            body = small.get((commit.run, commit.round, file[0])) or self._spool.content(file)
            return {item.spec.name: tensor_at(body, item) for item in locate(body)}

        weight = 0.0
        try:
            manifest = _manifest_of(data)
            if weighing.ring is not None:
                masked = MaskedSum(weighing.ring, weighing.rules)
                for file, _ in commit.terms:
                    masked.add(content(file))
                mean = masked.unmasked(commit.unmask, manifest)
                weight = mean.weight
            else:
                updates = [(partial(content, file), term) for file, term in commit.terms]
                mean = combine(weighing.robust, updates, weighing.rules)
            if weighing.deviation:
                mean.change(partial(add_noise, deviation=weighing.deviation, stream=KeyStream()))
            tensors = mean.apply(decode_tensors(data, manifest), commit.scale)
            digest, fresh = "", b""
            if all(np.isfinite(array).all() for array in tensors.values()):
                fresh = encode_tensors(tensors)
                digest = self._models.put(fresh)
        except (OSError, ProtocolError) as error:
            return Committed(commit.run, commit.round, refused=str(error)[:120])
        except ZeroDivisionError:
            return Committed(commit.run, commit.round)
        self._checkpoint("edge.aggregated")
        first = fresh[: self._chunk_bytes]
        return Committed(commit.run, commit.round, digest, len(fresh), first, weight=weight)

    def _finish(self, finish: FinishModel) -> Input:
        refused = ""
        try:
            self._models.finish_part(finish.digest)
            data = self._models.get(finish.digest)
            if len(data) != finish.size:
                refused = "its size differs from what was announced"
            for item in locate(data):
                # Of a base that never changes, a mask may be of infinities.
                if finish.digest != self._once and not np.isfinite(tensor_at(data, item)).all():
                    refused = f"tensor {item.spec.name[:64]!r} is not finite"
        except (ProtocolError, BlobMissingError) as error:
            refused = str(error)
        except OSError as error:
            return _failed(error, digest=finish.digest)
        self._checkpoint("edge.model_stored")
        return ModelFinished(finish.digest, finish.size, refused)

    def _hold(self, digest: str) -> None:
        self._held = [*(d for d in self._held if d != digest), digest][-KEPT_MODELS:]
        self._models.collect([*self._held, self._once, *self._kept.models])


def _look_at(at_work: _AtWork, content: Buffer, digest: str, norm_limit: float = 0.0) -> Verdict:
    sketched = at_work.weighing.robust.directions
    return check_content(
        content,
        digest,
        at_work.manifest,
        norm_limit,
        control_limit=at_work.weighing.control_limit,
        latest=at_work.weighing.rules.latest,
        signs=Signs(at_work.opened.signs) if sketched else None,
    )


def _manifest_of(model: Buffer) -> Manifest:
    return Manifest(tuple(item.spec for item in locate(model)))


def read_memory(path: Path) -> Memory:
    """Return what an edge's file says, nothing without one.

    Raises:
        EdgeStateError: It cannot be used.
    """
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Memory)
    except FileNotFoundError:
        return Memory()
    except (msgspec.DecodeError, ValueError, OSError) as error:
        hint = "delete the file to start the edge without saved state"
        raise EdgeStateError(path, str(error)[:120], hint) from error


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
    memory, reopened = store.load(now)
    state = EdgeState(
        config,
        me,
        memory,
        counters,
        once_held=store.holds_once(),
        site_members=partial(members_of, Path(config.data_dir)),
    )
    return EdgeCore(state, reopened), store


def _tried(file: File, write: Callable[[], object]) -> DiskFailed | None:
    try:
        write()
    except OSError as error:
        return _failed(error, file[0])
    return None


def _failed(error: OSError, agent: str = "", digest: str = "") -> DiskFailed:
    return DiskFailed(str(error)[:120], agent, digest)
