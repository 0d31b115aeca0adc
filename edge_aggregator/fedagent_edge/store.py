"""The edge's disk: state, models, and what is known of the open round.

Checkpoints: ``edge.chunk_written``, ``edge.complete``, ``edge.spooled``, ``edge.aggregated``,
``edge.model_stored``; the core marks the others: ``edge.round_saved``, ``edge.receipted``,
``edge.reported``, ``edge.spool_cleared``, ``edge.model_saved``.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
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
from fedagent_protocol.messages import AnyMessage, Chunk, EdgeHello, UpdateOffer
from fedagent_protocol.signed import WorkClaim, is_claim
from fedagent_protocol.tensors import (
    Manifest,
    decode_tensors,
    encode_tensors,
    locate,
    tensor_at,
)
from fedagent_protocol.transfer import Layout
from fedagent_task.aggregation import ALL_TRAIN, Arrays, Rules
from fedagent_task.aggregation.combining import combine
from fedagent_task.aggregation.sketch import Signs
from fedagent_task.privacy.mechanism import KeyStream, add_noise
from fedagent_task.secure_aggregation.masked_sum import MaskedSum

from .config import EdgeConfig
from .core.admission import Verdict, check_content
from .core.edge import EdgeCore
from .core.effects import (
    Admit,
    Admitted,
    Commit,
    Committed,
    DiskFailed,
    DiskRefused,
    DiskTried,
    DropSpool,
    EdgeState,
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
from .core.exchange import MAX_MODEL_BYTES
from .reserve import Reserve
from .spool import Journal, Spool

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
        self._manifest: tuple[str, Manifest] | None = None
        self._spool = Spool(directory / "spool")
        self._journal = Journal(directory / "spool" / "round.journal")
        self._reserve = Reserve(directory / "reserve")
        self._kept = KeepWork()
        self._offers: dict[Key, UpdateOffer] = {}
        self._begin_round(None)

    def _begin_round(self, opened: OpenRound | None) -> None:
        """Work for a round from now on, or for none."""
        self._round = opened
        self._base_bytes = self._models.size(opened.base) if opened is not None else 0
        # The same for all jobs of a round, so that none overtakes another.
        self._at_once = self._base_bytes <= SMALL_BYTES
        self._offers = {key: self._offers[key] for key in self._kept.keys & self._offers.keys()}
        self._whole: dict[Key, bytes] = {}
        self._unsynced: list[tuple[Admit, Verdict]] = []

    def load(self, now: float) -> tuple[Memory, ReopenedRound | None]:
        """Return what a restart must know, and the round that was open."""
        memory = read_memory(self._path)
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
        self._begin_round(opened)
        updates = [(record, self._recovered(record, data)) for record, data in entries]
        self._spool.clear(self._offers.keys())
        if opened.boot != self._boot or opened.began_at > now:
            longest = max(opened.order.max_wait_ms, opened.order.deadline_ms) / 1000
            opened = replace(opened, began_at=now - longest - 1.0)
        return memory, ReopenedRound(opened, updates)

    def _recovered(self, record: UpdateRecord, data: bytes) -> Verdict | None:
        """Look again at an update that is on the disk; None if it is damaged, or there is none."""
        key, offer = record.key, record.offer
        if offer is None:
            return None
        try:
            verdict = self._look_at(key, offer, data or None, self._update_manifest())
        except OSError:
            verdict = None
        if verdict is not None and verdict.valid:
            self._offers[key] = offer
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
        """Return a chunk of a model with its data."""
        assert isinstance(message, Chunk)
        digest, index = message.digest, message.index
        try:
            layout = Layout(self._models.size(digest), self._chunk_bytes)
            start, stop = layout.span(index)
            data = self._models.read(digest, start, stop - start)
        except (*_LOST, ProtocolError) as error:
            raise self._lost(digest, str(error)) from error
        if len(data) != stop - start:
            raise self._lost(digest, "its file was cut off")
        return replace(message, data=data)

    def _lost(self, digest: str, detail: str) -> ContentLostError:
        """Remove what is left of a model, so that it is fetched again."""
        with suppress(OSError):
            self._models.drop(digest)
        if self._manifest is not None and self._manifest[0] == digest:
            self._manifest = None
        return ContentLostError(digest, detail[:200])

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
                begun = replace(opened, boot=self._boot, signs=secrets.randbits(63))
                try:
                    whole = self._models.is_whole(opened.base)
                except OSError:
                    whole = False
                if not whole:
                    lost = self._lost(opened.base, "its file is damaged, or gone").lost
                    return ModelLost(opened.run, opened.order.round, lost.digest, lost.detail)
                self._begin_round(begun)
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
            case OpenSpool(offer=offer):
                if not self._is_small(offer):
                    self._spool.begin(key, offer.size)
                self._offers[key] = offer
            case WriteSpool():
                known = self._offers.get(key)
                if known is None:
                    # An earlier effect of the same message failed on the disk.
                    return
                if self._is_small(known):
                    # Written once, together with its verdict.
                    self._whole[key] = effect.data
                    return
                layout = Layout(known.size, known.chunk_bytes)
                self._spool.write(key, layout.span(effect.index)[0], effect.data)
                self._checkpoint("edge.chunk_written")
            case MoveSpool(offer=offer):
                self._offers.pop(effect.old, None)
                self._spool.move(effect.old, key)
                self._offers[key] = offer
            case DropSpool():
                self._offers.pop(key, None)
                self._whole.pop(key, None)
                self._spool.drop(key)

    def _is_small(self, offer: UpdateOffer) -> bool:
        """Return whether an update is one chunk, in a round whose work is all done at once."""
        return self._at_once and offer.size <= min(offer.chunk_bytes, SMALL_BYTES)

    def _clear_round(self) -> None:
        self._begin_round(None)
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
        try:
            for admit, _ in batch:
                self._journal.append(_whole(admit), self._whole.pop(admit.key, b""))
            self._journal.sync()
        except OSError as error:
            return [_failed(admit.key, error) for admit, _ in batch]
        self._checkpoint("edge.spooled")
        return [Admitted(admit.key, verdict) for admit, verdict in batch]

    # -------------------------------------------------------------------- jobs

    def job(self, effect: Run) -> Job | None:
        """Prepare a job; small updates that are valid are admitted by the next flush."""
        match effect:
            case Admit(key=key):
                try:
                    manifest = self._update_manifest()
                except _LOST as error:
                    base = self._round.base if self._round is not None else ""
                    lost = ModelLost(key[0], key[1], base, str(error))
                    return Job("admit", lambda: lost, small=True)
                if (whole := self._whole.get(key)) is None:
                    admit = partial(self._admit, effect, manifest)
                    return Job("admit", admit, self._at_once)
                verdict = self._verdict(effect, whole, manifest)
                if verdict.valid:
                    self._unsynced.append((effect, verdict))
                    return None
                return Job("admit", lambda: Admitted(key, verdict), small=True)
            case Commit():
                commit = partial(self._commit, effect, self._round, dict(self._offers))
                return Job("commit", commit, self._at_once)
            case FinishModel():
                return Job("model", partial(self._finish, effect), effect.size <= SMALL_BYTES)
        raise NotImplementedError(effect)

    def _verdict(self, admit: Admit, whole: bytes | None, manifest: Manifest) -> Verdict:
        offer, agent = admit.offer, admit.key[2]
        work = WorkClaim.offered(offer, admit.edge, agent)
        if admit.edge and not is_claim(offer.claim, agent, work.statement):
            return Verdict("bad_claim", "not signed as the work of this round")
        limits = admit.norm_limit, admit.control_limit
        return self._look_at(admit.key, offer, whole, manifest, limits)

    def _look_at(
        self,
        key: Key,
        offer: UpdateOffer,
        whole: bytes | None,
        manifest: Manifest,
        limits: tuple[float, float] = (0.0, 0.0),
    ) -> Verdict:
        """Verify a whole update, which is in a file if it is not given."""
        opened = self._round
        return check_content(
            self._spool.content(key, offer.size) if whole is None else whole,
            offer.digest,
            manifest,
            limits[0],
            control_limit=limits[1],
            latest=opened.latest if opened is not None else (),
            signs=Signs(opened.signs) if opened is not None and opened.sketched else None,
        )

    def _admit(self, admit: Admit, manifest: Manifest) -> Input:
        """Verify an update in a file, and make it durable."""
        key = admit.key
        try:
            verdict = self._verdict(admit, None, manifest)
            if verdict.valid:
                self._checkpoint("edge.complete")
                self._spool.sync(key)
                self._journal.append(_whole(admit))
                self._journal.sync()
                self._checkpoint("edge.spooled")
        except OSError as error:
            return _failed(key, error)
        return Admitted(key, verdict)

    def _commit(
        self, commit: Commit, opened: OpenRound | None, offers: dict[Key, UpdateOffer]
    ) -> Input:
        """Make base + mean a durable model, unless it is not finite."""
        try:
            data = self._models.get(commit.base)
        except _LOST as error:
            return ModelLost(commit.run, commit.round, commit.base, str(error))
        # A round with updates in the journal is committed at once: nothing can cut it meanwhile.
        small = self._journal.updates() if self._at_once else {}

        def content(agent: str) -> Arrays:
            key = (commit.run, commit.round, agent)
            body = small.get(key) or self._spool.content(key, offers[key].size)
            return {item.spec.name: tensor_at(body, item) for item in locate(body)}

        weight = 0.0
        try:
            manifest = Manifest(tuple(item.spec for item in locate(data)))
            rules = _rules(opened)
            if opened is not None and opened.ring is not None:
                masked = MaskedSum(opened.ring, rules)
                for agent, _ in commit.terms:
                    masked.add(content(agent))
                mean = masked.unmasked(commit.unmask, manifest)
                weight = mean.weight
            else:
                updates = [(partial(content, agent), term) for agent, term in commit.terms]
                mean = combine(commit.rule, updates, rules)
            if commit.deviation:
                mean.change(partial(add_noise, deviation=commit.deviation, stream=KeyStream()))
            tensors = mean.apply(decode_tensors(data, manifest), commit.scale)
            digest, fresh = "", b""
            if all(np.isfinite(array).all() for array in tensors.values()):
                fresh = encode_tensors(tensors)
                digest = self._models.put(fresh)
                self._manifest = (digest, manifest)
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

    def _manifest_of(self, digest: str) -> Manifest:
        if self._manifest is None or self._manifest[0] != digest:
            data = self._models.get(digest)
            self._manifest = (digest, Manifest(tuple(item.spec for item in locate(data))))
        return self._manifest[1]

    def _update_manifest(self) -> Manifest:
        """Return what an update of the round at work holds."""
        opened = self._round
        base = self._manifest_of(opened.base if opened is not None else "")
        if opened is None or opened.ring is None:
            return base
        return opened.ring.manifest(base, frozenset(opened.latest))


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


def _rules(opened: OpenRound | None) -> Rules:
    if opened is None:
        return ALL_TRAIN
    return Rules(mean=frozenset(opened.buffers), latest=frozenset(opened.latest))


def _whole(admit: Admit) -> UpdateRecord:
    return UpdateRecord(key=admit.key, offer=admit.offer, after_s=admit.after_s)


def _failed(key: Key, error: OSError) -> DiskFailed:
    return DiskFailed(key, str(error)[:120])
