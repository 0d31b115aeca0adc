"""The edge's disk: a journal of what a restart must know, models, and large updates.

Checkpoints: ``edge.chunk_written``, ``edge.complete``, ``edge.spooled``, ``edge.aggregated``,
``edge.model_stored``; the core marks the others: ``edge.round_saved``, ``edge.receipted``,
``edge.reported``, ``edge.spool_cleared``, ``edge.model_saved``.
"""

import errno
import secrets
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from fedagent_node.blobs import BlobStore
from fedagent_node.driver import Job
from fedagent_node.effects import (
    ContentLost,
    ContentLostError,
    FinishModel,
    Input,
    Mark,
    ModelFinished,
    RunJob,
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
    digest_of,
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
    Ended,
    File,
    ForgetRound,
    Keep,
    Kept,
    Memory,
    OpenModel,
    OpenRound,
    ReopenedRound,
    Save,
    TryDisk,
    WriteSpool,
)
from .core.exchange import MAX_MODEL_BYTES
from .core.state import EdgeState
from .core.weighing import Weighing, weighing_of
from .spool import FOLD_BYTES, Journal, Place, Spool, framed, try_room

KEPT_PIECES = 8
"""Pieces of models that are kept in memory, of up to 256 KiB each."""
KEPT_MODELS = 3
"""The last that the edge held."""
_LOST = (DigestError, OSError)
"""What reading a model raises that is of no more use; a failing disk answers with `OSError`."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


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

    weighing: Weighing
    base: Manifest
    updates: Manifest
    at_once: bool  # whether its jobs are small: all of them, so that none overtakes another
    signs: Signs | None  # of the sketches of its updates, where directions are looked at
    small: dict[File, bytes | Place] = field(default_factory=dict)
    """The small updates that were admitted, or where the journal has them."""


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
        self._models = BlobStore(directory / "models", max_bytes=MAX_MODEL_BYTES)
        # Several agents get the same piece within moments.
        self._whole = lru_cache(maxsize=KEPT_PIECES)(self._completed)
        self._small: dict[str, bytes] = {}
        """Models that the journal has, with the memory that names them."""
        self._held: list[str] = []
        self._spool = Spool(directory / "spool")
        self._journal = Journal(directory / "spool" / "journal")
        self._noted = Memory()
        """What the journal says."""
        self._kept = ForgetRound()
        self._round: _AtWork | None = None

    def _begin_round(self, opened: OpenRound) -> None:
        """Work for a round from now on; one of `_LOST` without its base."""
        self._round = None
        data, weighing = self._model(opened.base), weighing_of(self._noted.body)
        base = updates = Manifest(tuple(item.spec for item in locate(data)))
        if weighing.ring is not None:
            updates = weighing.ring.manifest(base, frozenset(weighing.rules.latest))
        signs = Signs(opened.signs) if weighing.robust.directions else None
        self._round = _AtWork(weighing, base, updates, len(data) <= SMALL_BYTES, signs)

    def load(self, now: float) -> tuple[Memory, ReopenedRound | None]:
        """Return what a restart must know, and the round that was open."""
        try:
            found = self._journal.read()
        except (OSError, ValueError) as error:
            hint = "delete the file to start the edge without saved state"
            raise EdgeStateError(self._directory / "spool" / "journal", str(error), hint) from error
        self._noted, memory, opened = found.memory, replace(found.memory), found.opened
        if found.model and digest_of(found.model) == memory.model:
            self._small[memory.model] = found.model
        try:
            if memory.model:
                self._model(memory.model)
                self._hold(memory)
        except DigestError:
            self._counters["model_lost"] += 1
            memory.model, memory.model_bytes = "", 0
        except OSError as error:
            # Perhaps for once: what agents have receipts for must not go for it.
            raise disk_refused(self._directory, error) from error
        if opened is None or (opened.run, opened.base) != (memory.run, memory.model):
            self._spool.clear(())
            return memory, None
        self._begin_round(opened)
        ended = [
            (one, verdict)
            for one, place in found.ended.values()
            if (verdict := self._looked_at_again(one, place)).valid or one.offer is None
        ]
        self._spool.clear([one.file for one, _ in ended if one.offer is not None])
        if opened.boot != self._boot or opened.began_at > now:
            longest = max(opened.order.max_wait_ms, opened.order.deadline_ms) / 1000
            opened = replace(opened, began_at=now - longest - 1.0)
        return memory, ReopenedRound(opened, ended)

    def _looked_at_again(self, one: Ended, place: Place) -> Verdict:
        """Look again at an update that is on the disk; it may be damaged."""
        at_work = self._round
        assert at_work is not None
        if one.offer is None:
            return Verdict(str(one.status))
        if place[1]:
            at_work.small[one.file] = place
        try:
            verdict = _look_at(at_work, self._content(at_work, one.file), one.offer.digest)
        except (OSError, ValueError):
            verdict = Verdict("lost")
        self._counters["spool_damaged"] += not verdict.valid
        return verdict

    def holds_once(self) -> str:
        """Return what the task's devices get once, if it is whole; reads all of it."""
        once = self._noted.once
        return once if once and self._models.is_whole(once) else ""

    def close(self) -> None:
        """Close the journal. Idempotent."""
        self._journal.close()

    def complete(self, message: AnyMessage, nbytes: int) -> AnyMessage:
        """Return a chunk of a model with its data, or an order with all of its model."""
        if isinstance(message, TrainOrder):
            return replace(message, first=self._piece(message.model, 0, nbytes))
        assert isinstance(message, Chunk)
        return self._whole(message, nbytes)

    def _completed(self, chunk: Chunk, nbytes: int) -> Chunk:
        return replace(chunk, data=self._piece(chunk.digest, chunk.index, nbytes))

    def _model(self, digest: str) -> bytes:
        small = self._small.get(digest)
        return self._models.get(digest) if small is None else small

    def _piece(self, digest: str, index: int, nbytes: int) -> bytes:
        small, start = self._small.get(digest), index * self._chunk_bytes
        if small is not None:
            return small[start : start + nbytes]
        try:
            data = self._models.read(digest, start, nbytes)
        except _LOST as error:
            raise self._lost(digest, str(error)) from error
        if len(data) != nbytes:
            raise self._lost(digest, "its file was cut off")
        return data

    def _lost(self, digest: str, detail: str) -> ContentLostError:
        self._whole.cache_clear()
        with suppress(OSError):
            self._models.drop(digest)
        return ContentLostError(digest, detail[:200])

    # ------------------------------------------------------------ disk effects

    def write(self, effect: Write, now: float) -> Input | None:  # noqa: ARG002 - agents need `now`
        """Perform a disk effect; return its result, a failure too where the core can go on."""
        try:
            match effect:
                case Mark():
                    self._checkpoint(effect.name)
                case Save():
                    self._save(effect.record)
                    return Kept(effect.owed) if effect.owed else None
                case WriteSpool():
                    self._spool.write(effect.file, effect.offset, effect.data)
                    self._checkpoint("edge.chunk_written")
                case DropSpool():
                    self._spool.drop(effect.file)
                case OpenModel():
                    self._models.drop_part(effect.digest)
                case WriteModel():
                    self._models.write_part(effect.digest, effect.offset, effect.data)
                case TryDisk():
                    return DiskTried(try_room(self._directory, effect.size))
                case ForgetRound():
                    self._kept = effect
                    if self._round is None:  # else it is open on the disk: no room for its end
                        self._spool.clear(effect.files)
        except ContentLostError as error:
            return error.lost
        except OSError as error:
            match effect:
                case WriteSpool(file=(agent, _)) | DropSpool(file=(agent, _)):
                    return _failed(error, agent)
                case WriteModel():
                    return _failed(error, digest=effect.digest)
                case _ if error.errno in _FULL:
                    return _failed(error)
            raise disk_refused(self._directory, error) from error
        return None

    def _save(self, record: Memory | OpenRound | Ended) -> None:
        if isinstance(record, Memory):
            before, model = self._noted, self._small.get(record.model, b"")
            if self._journal.end > FOLD_BYTES and not record.open_round:
                self._journal.begin_with(framed(record, model))
            else:
                # Large, and the same for a whole run.
                body = b"" if record.body == before.body else record.body
                model = b"" if record.model == before.model else model
                self._journal.append(replace(record, body=body), model)
            self._noted = record
            self._journal.sync()
            if not record.open_round:
                self._round = None
            if record.model:
                self._hold(record)
            return
        if isinstance(record, OpenRound):
            noted = self._noted
            if (record.run, record.order.task, record.base) != (noted.run, noted.task, noted.model):
                raise OSError(errno.ENOSPC, "what the round is of found no room")
            record = replace(record, boot=self._boot, signs=secrets.randbits(63))
            try:
                self._begin_round(record)
            except _LOST as error:
                raise self._lost(record.base, "its file is damaged, or gone") from error
        # It survives a kill at once, and a power cut from the next sync on: that comes before
        # anything is promised to an agent.
        self._journal.append(record)

    def flush(self) -> None:
        """Do nothing: no effect waits."""

    # -------------------------------------------------------------------- jobs

    def job(self, effect: RunJob) -> Job:
        """Prepare a job."""
        if isinstance(effect, FinishModel):
            return Job("model", partial(self._finish, effect), effect.size <= SMALL_BYTES)
        at_work = self._round
        if at_work is None and isinstance(effect, Keep):  # the disk has the end of their round
            return Job("keep", partial(Kept, tuple(one.key for one in effect.ended)), small=True)
        assert at_work is not None
        work: partial[Input]
        match effect:
            case Commit():
                work = partial(self._commit, effect, at_work)
            case Keep():
                work = partial(self._keep, effect, at_work)
            case _:
                assert isinstance(effect, Admit)
                work = partial(self._admit, effect, at_work)
        return Job(type(effect).__name__.lower(), work, at_work.at_once)

    def _admit(self, admit: Admit, at_work: _AtWork) -> Input:
        offer, agent = admit.offer, admit.key[2]
        work = WorkClaim.offered(offer, admit.edge, agent)
        if admit.edge and not is_claim(offer.claim, agent, work.statement):
            verdict = Verdict("bad_claim", "not signed as the work of this round")
        else:
            try:
                content = admit.whole or self._spool.content((agent, offer.digest))
                verdict = _look_at(at_work, content, offer.digest, admit.norm_limit)
            except OSError as error:
                return _failed(error, agent)
        self._checkpoint("edge.complete")
        if admit.whole and verdict.valid:
            at_work.small[agent, offer.digest] = admit.whole
        return Admitted(admit.key, verdict)

    def _keep(self, keep: Keep, at_work: _AtWork) -> Input:
        """Have updates in the journal, or in files that it names, with one sync for all."""
        places: dict[File, Place] = {}
        try:
            self._spool.sync(*(one.file for one in keep.ended if one.file not in at_work.small))
            for ended in keep.ended:
                held = at_work.small.get(ended.file, b"")
                place = self._journal.append(ended, held if isinstance(held, bytes) else b"")
                if held:
                    places[ended.file] = place
            self._journal.sync()
        except OSError as error:
            return Kept((), str(error)[:120])
        at_work.small.update(places)
        self._checkpoint("edge.spooled")
        return Kept(tuple(one.key for one in keep.ended))

    def _content(self, at_work: _AtWork, file: File) -> Buffer:
        small = at_work.small.get(file)
        if isinstance(small, tuple):
            return self._journal.data(small)
        return self._spool.content(file) if small is None else small

    def _commit(self, commit: Commit, at_work: _AtWork) -> Input:
        """Make base + mean a durable model, unless it is not finite."""
        weighing, manifest = at_work.weighing, at_work.base
        try:
            data = self._model(commit.base)
        except _LOST as error:
            return ContentLost(commit.base, str(error))

        def content(file: File) -> Arrays:
            body = self._content(at_work, file)
            return {item.spec.name: tensor_at(body, item) for item in locate(body)}

        weight = 0.0
        try:
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
                digest = digest_of(fresh) if at_work.at_once else self._models.put(fresh)
        except (OSError, ProtocolError) as error:
            return Committed(commit.run, commit.round, refused=str(error)[:120])
        except ZeroDivisionError:
            return Committed(commit.run, commit.round)
        if at_work.at_once and digest:
            self._small[digest] = fresh
        self._checkpoint("edge.aggregated")
        first = fresh[: Layout(len(fresh), self._chunk_bytes).first_bytes()] if fresh else b""
        return Committed(commit.run, commit.round, digest, len(fresh), first, weight=weight)

    def _finish(self, finish: FinishModel) -> Input:
        # Of a base that never changes, a mask may be of infinities.
        refused, once = "", finish.digest == self._noted.once
        small = finish.size <= SMALL_BYTES and not once
        try:
            self._models.finish_part(finish.digest, durable=not small)
            data = self._models.get(finish.digest)
            if len(data) != finish.size:
                refused = "its size differs from what was announced"
            for item in locate(data):
                if not once and not np.isfinite(tensor_at(data, item)).all():
                    refused = f"tensor {item.spec.name[:64]!r} is not finite"
            if small and not refused:
                # It goes to the journal, with the memory that names it.
                self._small[finish.digest] = data
                self._models.drop(finish.digest)
        except ProtocolError as error:
            refused = str(error)
        except OSError as error:
            return _failed(error, digest=finish.digest)
        self._checkpoint("edge.model_stored")
        return ModelFinished(finish.digest, finish.size, refused)

    def _hold(self, memory: Memory) -> None:
        """Keep a model, and forget those of long ago."""
        digest = memory.model
        if digest in self._held[-1:]:
            return
        self._held = [*(d for d in self._held if d != digest), digest][-KEPT_MODELS:]
        keep = {*self._held, memory.once, *self._kept.models}
        self._small = {digest: data for digest, data in self._small.items() if digest in keep}
        self._models.collect(keep)


def _look_at(at_work: _AtWork, content: Buffer, digest: str, norm_limit: float = 0.0) -> Verdict:
    weighing = at_work.weighing
    return check_content(
        content,
        digest,
        at_work.updates,
        norm_limit,
        control_limit=weighing.control_limit,
        latest=weighing.rules.latest,
        signs=at_work.signs,
    )


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


def _failed(error: OSError, agent: str = "", digest: str = "") -> DiskFailed:
    return DiskFailed(str(error)[:120], agent, digest)
