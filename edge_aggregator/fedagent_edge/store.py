"""The edge's disk: state, models, and what is known of the open round.

Checkpoints: ``edge.chunk_written``, ``edge.complete``, ``edge.spooled``, ``edge.aggregated``,
``edge.model_stored``; the core marks the others: ``edge.round_saved``, ``edge.receipted``,
``edge.reported``, ``edge.spool_cleared``, ``edge.model_saved``.
"""

import secrets
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, partial
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
from fedagent_node.site.members import members_of
from fedagent_protocol.errors import DigestError, FedagentError, ProtocolError
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import AnyMessage, Chunk, EdgeHello, UpdateOffer
from fedagent_protocol.tensors import (
    Buffer,
    Manifest,
    decode_tensors,
    encode_tensors,
    locate,
    tensor_at,
)
from fedagent_protocol.transfer import Layout
from fedagent_protocol.work import is_claimed
from fedagent_task.aggregation import ALL_TRAIN, Rules
from fedagent_task.aggregation.sketch import Floats, Signs
from fedagent_task.privacy.mechanism import KeyStream, add_noise
from fedagent_task.secure_aggregation.ring import Ring

from .config import EdgeConfig
from .core.admission import Verdict, check_content
from .core.edge import EdgeCore
from .core.effects import (
    Admit,
    Admitted,
    Check,
    Checked,
    Commit,
    Committed,
    DiskFailed,
    DiskRefused,
    DiskTried,
    DropSpool,
    ForgetRound,
    KeepWork,
    Key,
    Memory,
    ModelLost,
    MoveSpool,
    NoteEnd,
    OpenModel,
    OpenRound,
    OpenSpool,
    ReopenedRound,
    SaveRound,
    SaveState,
    TryDisk,
    UpdateRecord,
    WriteSpool,
)
from .core.state import EdgeState
from .core.transfers import MAX_MODEL_BYTES
from .reserve import Reserve
from .spool import Journal, Spool
from .summing import RoundSum

SMALL_BYTES = 256 * 1024
"""Models up to this size are handled at once: a hop to another thread costs more."""
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
        self._sums: dict[str, array[int]] = {}
        """CRC-32 of each chunk of the models that were seen to be whole."""
        self._manifest: tuple[str, Manifest] | None = None
        self._spool = Spool(directory / "spool")
        self._journal = Journal(directory / "spool" / "round.journal")
        self._reserve = Reserve(directory / "reserve")
        self._kept = KeepWork()
        self._offers: dict[Key, UpdateOffer] = {}
        self._begin_round("")

    def _begin_round(self, base: str, rules: Rules = ALL_TRAIN, ring: Ring | None = None) -> None:
        self._base = base
        self._base_bytes = self._models.size(base) if base else 0
        self._rules, self._positions = rules, 0
        self._ring = ring
        self._sum = RoundSum(rules, ring)
        self._signs: Signs | None = None
        self._offers = {key: self._offers[key] for key in self._kept.keys & self._offers.keys()}
        self._whole: dict[Key, bytes] = {}
        self._unsynced: list[Admit] = []

    def load(self, now: float) -> tuple[Memory, ReopenedRound | None]:
        """Return what a restart must know, and the round that was open."""
        memory = self._load_state()
        self._once = memory.once
        try:
            self._manifest_of(memory.model)
        except (DigestError, BlobMissingError):
            if memory.model:
                self._counters["model_lost"] += 1
            memory.model, memory.model_bytes = "", 0
        except OSError as error:
            # Perhaps for once: what agents have receipts for must not go for it.
            raise disk_refused(self._directory, error) from error
        else:
            self._hold(memory.model)
        opened, entries = self._journal.read()
        if (
            opened is None
            or not memory.model
            or (opened.run, opened.base) != (memory.run, memory.model)
            or opened.order.round <= memory.last_round
        ):
            self._clear_round()
            return memory, None
        self._begin_round(opened.base, _rules(opened), opened.ring)
        self._signs = Signs(opened.signs) if opened.sketched else None
        # What the disk refused to sync may be there, before what the agent sent again.
        last = {record.key: (record, set[int](), data) for record, data in entries}
        found: list[tuple[UpdateRecord, set[int], bytes | None]] = list(last.values())
        spooled = self._spool.recover(opened.run, opened.order.round)
        found += [(record, have, None) for record, have in spooled]
        # In the order in which they were in the sum.
        found.sort(key=lambda one: one[0].position)
        sketches: dict[str, Floats] = {}
        updates = [
            (record, have) for record, have, data in found if self._recover(record, data, sketches)
        ]
        if opened.boot != self._boot or opened.began_at > now:
            longest = max(opened.order.max_wait_ms, opened.order.deadline_ms) / 1000
            opened = replace(opened, began_at=now - longest - 1.0)
        return memory, ReopenedRound(opened, updates, sketches)

    def _recover(
        self, record: UpdateRecord, whole: bytes | None, sketches: dict[str, Floats]
    ) -> bool:
        """Put an admitted update into the sum again; False if the disk has damaged it."""
        key, offer = record.key, record.offer
        self._positions = max(self._positions, record.position)
        if offer is None or record.weight <= 0:
            if offer is not None and record.status is None:
                self._offers[key] = offer
            return True
        data = self._spool.content(key, offer.size) if whole is None else whole
        found = check_content(
            data,
            offer.digest,
            self._update_manifest(),
            latest=self._rules.latest,
            signs=self._signs,
        )
        if found.valid:
            self._sum.admit(record, data)
            if found.sketch is not None:
                sketches[record.agent] = found.sketch
            return True
        self._counters["spool_damaged"] += 1
        self._spool.drop(key)
        return False

    def has_once(self) -> bool:
        """Return whether what the task's devices get once is whole; reads all of it."""
        return bool(self._once) and self._models.is_whole(self._once)

    def close(self) -> None:
        """Close the journal. Idempotent."""
        self._journal.close()

    def complete(self, message: AnyMessage) -> AnyMessage:
        """Return a chunk of a model with its data, as it was when the whole was verified."""
        assert isinstance(message, Chunk)
        digest, index = message.digest, message.index
        try:
            layout = Layout(self._models.size(digest), self._chunk_bytes)
            start, stop = layout.span(index)
            data = self._models.read(digest, start, stop - start)
        except (*_LOST, ProtocolError) as error:
            raise self._lost(digest, str(error)) from error
        sums = self._sums.get(digest, ())
        if len(data) != stop - start or (sums and zlib.crc32(data) != sums[index]):
            raise self._lost(digest, "its file was damaged")
        return replace(message, data=data)

    def _lost(self, digest: str, detail: str) -> ContentLostError:
        """Remove what is left of a model, so that it is fetched again."""
        with suppress(OSError):
            self._models.drop(digest)
        self._sums.pop(digest, None)
        if self._manifest is not None and self._manifest[0] == digest:
            self._manifest = None
        return ContentLostError(digest, detail[:200])

    def _verified(self, digest: str, data: Buffer) -> None:
        """Remember the chunks of a model that hashes to its name."""
        view, step = memoryview(data), self._chunk_bytes
        sums = [zlib.crc32(view[at : at + step]) for at in range(0, len(view), step)]
        self._sums[digest] = array("L", sums)

    # ------------------------------------------------------------ disk effects

    def write(self, effect: Write, now: float) -> Input | None:  # noqa: ARG002 - agents need `now`
        """Perform a disk effect; a failure of the spool is the result, others are raised."""
        match effect:
            case Mark():
                self._checkpoint(effect.name)
            case KeepWork():
                self._kept = effect
            case OpenSpool(key=key) | WriteSpool(key=key) | MoveSpool(key=key) | DropSpool(key=key):
                try:
                    self._write_spool(effect)
                except OSError as error:
                    return _failed(key, error)
            case NoteEnd(record=record):
                try:
                    self._journal.append(record)
                except OSError as error:
                    return _failed(record.key, error)
            case OpenModel():
                self._models.drop_part(effect.digest)
            case WriteModel():
                try:
                    self._models.write_part(effect.digest, effect.offset, effect.data)
                except OSError as error:
                    self._counters["disk_failed"] += 1
                    return DiskRefused(str(error)[:120], effect.digest)
            case TryDisk(size=size):
                return DiskTried(self._reserve.try_room(size))
            case SaveRound(opened=opened):
                self._clear_round()
                try:
                    self._begin_round(opened.base, _rules(opened), opened.ring)
                except _LOST as error:
                    lost = self._lost(opened.base, str(error)).lost
                    return ModelLost(opened.run, opened.order.round, lost.digest, lost.detail)
                begun = replace(opened, boot=self._boot, signs=secrets.randbits(63))
                self._signs = Signs(begun.signs) if begun.sketched else None
                return self._surely(lambda: self._journal.begin(begun), self._directory)
            case SaveState():
                packed = msgspec.msgpack.encode(effect.memory)
                refused = self._surely(lambda: write_private(self._path, packed), self._path)
                self._once = effect.memory.once
                if effect.memory.model:
                    self._hold(effect.memory.model)
                return refused
            case ForgetRound():
                self._clear_round()
        return None

    def _surely(self, write: Callable[[], object], path: Path) -> DiskRefused | None:
        """Write what must not be lost, on a full disk into the room that was kept for it."""
        try:
            write()
        except OSError as full:
            self._reserve.give_up()
            try:
                write()
            except OSError as error:
                raise disk_refused(path, error) from error
            return DiskRefused(str(full)[:120])
        return None

    def _write_spool(self, effect: OpenSpool | WriteSpool | MoveSpool | DropSpool) -> None:
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
                    # Written once, together with its status.
                    self._whole[key] = effect.data
                    return
                layout = Layout(offer.size, offer.chunk_bytes)
                self._spool.write(key, layout, effect.index, effect.data)
                self._checkpoint("edge.chunk_written")
            case MoveSpool():
                self._offers.pop(effect.old, None)
                self._spool.move(effect.old, key, effect.offer)
                self._offers[key] = effect.offer
            case DropSpool():
                self._offers.pop(key, None)
                self._whole.pop(key, None)
                self._spool.drop(key)

    def _is_small(self, offer: UpdateOffer) -> bool:
        """Return whether an update is one chunk, in a round whose work is all done at once."""
        one_chunk = offer.size <= min(offer.chunk_bytes, SMALL_BYTES)
        return one_chunk and self._base_bytes <= SMALL_BYTES

    def _clear_round(self) -> None:
        self._begin_round("")
        try:
            self._journal.clear()
            self._spool.clear(self._kept.keys)
        except OSError as error:
            raise disk_refused(self._directory, error) from error

    def flush(self) -> Iterable[Input]:
        """Make the small updates durable that were complete together."""
        batch, self._unsynced = self._unsynced, []
        if not batch:
            return ()
        self._checkpoint("edge.complete")
        updates = [(self._next(one), self._whole.pop(one.record.key, b"")) for one in batch]
        try:
            for record, data in updates:
                self._journal.append(record, data)
            self._journal.sync()
        except OSError as error:
            return [_failed(one.record.key, error) for one in batch]
        for record, data in updates:
            self._sum.admit(record, data)
        self._checkpoint("edge.spooled")
        return [Admitted(record.key) for record, _ in updates]

    # -------------------------------------------------------------------- jobs

    def job(self, effect: Run) -> Job | None:
        """Prepare a job; small updates are admitted by the next flush."""
        # The same for all jobs of a round, so that none overtakes another.
        small = self._base_bytes <= SMALL_BYTES
        match effect:
            case Check(key=key):
                try:
                    manifest = self._update_manifest()
                except _LOST as error:
                    lost = ModelLost(key[0], key[1], self._base, str(error))
                    return Job("check", lambda: lost, small=True)
                return Job(
                    "check", partial(self._check, effect, self._whole.get(key), manifest), small
                )
            case Admit(record=record):
                if record.key in self._whole:
                    self._unsynced.append(effect)
                    return None
                return Job("admit", partial(self._admit, self._next(effect), self._sum), small)
            case Commit():
                settle = partial(self._commit, effect, self._sum, self._opener(effect))
                return Job("commit", settle, small)
            case FinishModel():
                return Job("model", partial(self._finish, effect), effect.size <= SMALL_BYTES)
        raise NotImplementedError(effect)

    def _next(self, admit: Admit) -> UpdateRecord:
        """Return the record of an update with its place in the sum."""
        self._positions += 1
        return replace(admit.record, position=self._positions)

    def _check(self, check: Check, whole: bytes | None, manifest: Manifest) -> Input:
        key, offer = check.key, check.offer
        if check.edge and not is_claimed(offer, edge=check.edge, agent=key[2]):
            return Checked(key, Verdict("bad_claim", "not signed as the work of this round"))
        try:
            data = self._spool.content(key, offer.size) if whole is None else whole
        except OSError as error:
            return _failed(key, error)
        verdict = check_content(
            data,
            offer.digest,
            manifest,
            check.norm_limit,
            control_limit=check.control_limit,
            latest=self._rules.latest,
            signs=self._signs,
        )
        return Checked(key, verdict)

    def _admit(self, record: UpdateRecord, total: RoundSum) -> Input:
        self._checkpoint("edge.complete")
        try:
            self._journal.sync()
            self._spool.settle(record)
            self._checkpoint("edge.spooled")
            if record.weight > 0 and record.offer is not None:
                total.admit(record, self._spool.content(record.key, record.offer.size))
        except OSError as error:
            return _failed(record.key, error)
        return Admitted(record.key)

    def _commit(self, commit: Commit, total: RoundSum, content: Callable[[str], Buffer]) -> Input:
        """Make base + mean a durable model, unless it is not finite."""
        try:
            data = self._models.get(commit.base)
        except _LOST as error:
            return ModelLost(commit.run, commit.round, commit.base, str(error))
        weight = 0.0
        try:
            manifest = Manifest(tuple(item.spec for item in locate(data)))
            if total.masked is not None:
                mean = total.masked.unmasked(commit.unmask, manifest)
                weight = mean.weight
            else:
                mean = total.settle(commit.rule, commit.terms, content)
            if commit.deviation:
                mean.change(partial(add_noise, deviation=commit.deviation, stream=KeyStream()))
            tensors = mean.apply(decode_tensors(data, manifest), commit.scale)
            digest, fresh = "", b""
            if all(np.isfinite(array).all() for array in tensors.values()):
                fresh = encode_tensors(tensors)
                digest = self._models.put(fresh)
                self._verified(digest, fresh)
                self._manifest = (digest, manifest)
        except (OSError, ProtocolError) as error:
            return Committed(commit.run, commit.round, refused=str(error)[:120])
        except ZeroDivisionError:
            return Committed(commit.run, commit.round)
        self._checkpoint("edge.aggregated")
        first = fresh[: self._chunk_bytes]
        return Committed(commit.run, commit.round, digest, len(fresh), first, weight=weight)

    def _opener(self, commit: Commit) -> Callable[[str], Buffer]:
        """Return what opens an agent's update again: from the journal, or from its file."""
        # A round with updates in the journal is committed at once: nothing can cut it meanwhile.
        small = cache(self._journal.updates) if self._base_bytes <= SMALL_BYTES else dict

        def opened(agent: str) -> Buffer:
            return small().get(agent) or self._spool.whole((commit.run, commit.round, agent))

        return opened

    def _finish(self, finish: FinishModel) -> Input:
        refused = ""
        try:
            self._models.finish_part(finish.digest)
            data = self._models.get(finish.digest)
            self._verified(finish.digest, data)
            for item in locate(data):
                # Of a base that never changes, a mask may be of infinities.
                if finish.digest != self._once and not np.isfinite(tensor_at(data, item)).all():
                    refused = f"tensor {item.spec.name[:64]!r} is not finite"
                    break
            else:
                refused = (
                    "" if len(data) == finish.size else "its size differs from what was announced"
                )
        except (ProtocolError, BlobMissingError) as error:
            refused = str(error)
        except OSError as error:
            return DiskRefused(str(error)[:120], finish.digest)
        self._checkpoint("edge.model_stored")
        return ModelFinished(finish.digest, finish.size, refused)

    # ------------------------------------------------------- models, and state

    def _hold(self, digest: str) -> None:
        self._held = [*(d for d in self._held if d != digest), digest][-KEPT_MODELS:]
        kept = [*self._held, self._once, *self._kept.models]
        self._models.collect(kept)
        self._sums = {one: sums for one, sums in self._sums.items() if one in kept}

    def _manifest_of(self, digest: str) -> Manifest:
        if self._manifest is None or self._manifest[0] != digest:
            data = self._models.get(digest)
            self._verified(digest, data)
            self._manifest = (digest, Manifest(tuple(item.spec for item in locate(data))))
        return self._manifest[1]

    def _update_manifest(self) -> Manifest:
        """Return what an update of the round at work holds."""
        base = self._manifest_of(self._base)
        return base if self._ring is None else self._ring.manifest(base, self._rules.latest)

    def _load_state(self) -> Memory:
        return read_memory(self._path)


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
        once_held=store.has_once(),
        site_members=partial(members_of, Path(config.data_dir)),
    )
    return EdgeCore(state, reopened), store


def _rules(opened: OpenRound) -> Rules:
    return Rules(mean=frozenset(opened.buffers), latest=frozenset(opened.latest))


def _failed(key: Key, error: OSError) -> DiskFailed:
    return DiskFailed(key, str(error)[:120])
