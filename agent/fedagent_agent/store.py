"""The agent's disk: outbox, models, record of opinions, and what neighbours leave.

A kill between any two disk effects is a `checkpoint` that does not return.
"""

import dataclasses
import hashlib
import math
import struct
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fedagent_node.data_dir import write_private
from fedagent_node.effects import Input, Mark, ModelFinished, Run, Write, WriteModel
from fedagent_protocol.errors import ChunkError, hide_password
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import (
    AnyMessage,
    Chunk,
    ContextReport,
    Opinion,
    OpinionCall,
    OpinionMode,
    TrainStats,
    UpdateOffer,
    Volunteer,
)
from fedagent_protocol.signed import Asked, WorkClaim, claim_of, terms
from fedagent_protocol.transfer import Layout

from .book_file import read_book, writing_book
from .core.agent import AgentCore
from .core.effects import (
    CarryUpdate,
    DiskFailed,
    DropOutput,
    DropUpdate,
    FinishModel,
    FlushOutbox,
    MakeIdleUpdate,
    ModelOpened,
    OpenModel,
    OpinionAnswer,
    OpinionStored,
    PendingUpdate,
    StoreOpinion,
    StoreUpdate,
    UpdateStored,
)
from .core.opinions import OpinionRecord
from .core.voucher import NoSite, Voucher
from .errors import DiskError, OpinionBookError
from .members import open_member
from .models_cache import ModelsCache
from .outbox import MAX_BYTES, Outbox
from .peers.core.records import StoreSlot
from .peers.store import PeerDevice
from .privacy_book import PrivacyBook
from .trainer.frames import Cancel, Evaluate, Failed, Mask, Open, Reply, Train, Trained

if TYPE_CHECKING:
    from fedagent_node.data_dir import Identity

    from .config import AgentConfig

TrainerRequest = Open | Train | Mask | Evaluate | Cancel
NOT_ITS_DIGEST = "the model did not hash to its digest"
MAX_RUNS = 1024
"""Runs whose opinions are remembered; the one that was silent for longest is forgotten first."""
_PREFIX = 8
_IDLE_STEP = 1e-4


class _Row(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    spent: float
    mode: OpinionMode
    opinion: Opinion


class _Book(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ever: float = 0.0
    runs: dict[str, _Row] = msgspec.field(default_factory=dict)


class OpinionBook:
    """What opinions have cost, and the answers that cost it: one small file, replaced whole.

    An answer with noise is sent only after it stands here: a device that restarts repeats its
    noise instead of drawing it again, and what its owner grants stays spent. Raises
    `OpinionBookError` if the file is damaged.
    """

    def __init__(self, path: Path, *, checkpoint: Checkpoint = hit) -> None:
        self._path = path
        self._checkpoint = checkpoint
        self._book = read_book(path, _Book(), OpinionBookError)

    @property
    def record(self) -> OpinionRecord:
        """What the evaluator begins with."""
        runs = self._book.runs
        answers = [OpinionAnswer(row.opinion, row.mode) for row in runs.values()]
        return OpinionRecord(
            answers, {run: row.spent for run, row in runs.items()}, self._book.ever
        )

    def keep(self, answer: OpinionAnswer, spent: float) -> None:
        """Keep an answer durably; after an `OpinionBookError` nothing is kept."""
        run = answer.opinion.run
        rows = {name: row for name, row in self._book.runs.items() if name != run}
        rows[run] = _Row(spent=spent, mode=answer.mode, opinion=answer.opinion)
        while len(rows) > MAX_RUNS:
            del rows[next(iter(rows))]
        book = _Book(ever=self._book.ever + answer.opinion.epsilon, runs=rows)
        with writing_book(self._path, OpinionBookError):
            self._checkpoint("agent.opinions.before-write")
            write_private(self._path, msgspec.json.encode(book))
            self._checkpoint("agent.opinions.kept")
        self._book = book


class AgentStore:
    """One agent's data directory.

    Args:
        submit: Hands a request to the trainer; the reply comes as an input of the core.
        checkpoint: Called between any two disk effects.
        outbox_bytes: Maximum of all updates together.

    Raises:
        OutboxError, OpinionBookError, PrivacyBookError: One of them cannot be used.
    """

    def __init__(
        self,
        config: "AgentConfig",
        peers: PeerDevice,
        *,
        submit: Callable[[TrainerRequest], None],
        checkpoint: Checkpoint,
        outbox_bytes: int,
        identity: "Identity | None" = None,
    ) -> None:
        directory = Path(config.data_dir)
        self._stream = hide_password(config.stream)
        self._peers = peers
        self._submit = submit
        self._identity = identity
        self._checkpoint = checkpoint
        self.outbox = Outbox(directory / "outbox", max_bytes=outbox_bytes, checkpoint=checkpoint)
        self._models = ModelsCache(directory / "models", checkpoint=checkpoint)
        self._once = ModelsCache(directory / "once", checkpoint=checkpoint, memory_bytes=0)
        self._once_digest = ""
        self._states = directory / "state"
        self.opinions = OpinionBook(directory / "opinions.json", checkpoint=checkpoint)
        self.privacy = PrivacyBook(directory / "privacy.json", checkpoint=checkpoint)
        self._outputs: dict[int, Path | bytes] = {}
        """Of trainings, by job: the file that is written, or an update made without training."""
        self._results: list[Input] = []

    def write(self, effect: Write, now: float) -> Input | None:  # noqa: ARG002 - of the interface
        """Perform a disk effect; return its result."""
        try:
            match effect:
                case OpenModel(digest=digest):
                    if effect.once:
                        self._once_digest = digest
                    have = self._cache(digest).open(digest, effect.size, effect.chunk_bytes)
                    return ModelOpened(digest, have)
                case WriteModel():
                    self._cache(effect.digest).write(effect.digest, effect.offset, effect.data)
                case FinishModel(digest=digest):
                    size = self._cache(digest).finish(digest)
                    return ModelFinished(digest, size, "" if size else NOT_ITS_DIGEST)
                case MakeIdleUpdate():
                    return self._make_idle_update(effect)
                case StoreUpdate():
                    return self._store_update(effect)
                case CarryUpdate():
                    update = self._claimed(effect.update)
                    self.outbox.carry(effect.old, update)
                    return UpdateStored(update)
                case StoreOpinion():
                    self.opinions.keep(effect.answer, effect.spent)
                    return OpinionStored(effect.answer)
                case DropUpdate():
                    self.outbox.drop(effect.key)
                case DropOutput():
                    if isinstance(output := self._outputs.pop(effect.job, None), Path):
                        output.unlink(missing_ok=True)
                case FlushOutbox():
                    self.outbox.flush()
                case StoreSlot():
                    self._peers.keep(effect)
                case Mark():
                    self._checkpoint(effect.name)
        except DiskError as error:
            return DiskFailed(effect, error.reason)
        except OSError as error:
            if isinstance(effect, OpenModel | WriteModel | FinishModel):
                self._cache(effect.digest).discard(effect.digest)
            return DiskFailed(effect, _in_words(error))
        return None

    def _cache(self, digest: str) -> ModelsCache:
        return self._once if digest == self._once_digest else self._models

    def job(self, effect: Run) -> None:
        """Hand a request to the trainer, with paths instead of names."""
        if isinstance(effect, Mask):
            output = self._outputs[effect.job] = self.outbox.path(effect.out)
            self._submit(replace(effect, out=str(output)))
        if isinstance(effect, Open):
            once = str(self._once.path(effect.once)) if effect.once else ""
            self._submit(replace(effect, offset=self.outbox.offset(self._stream), once=once))
        elif isinstance(effect, Cancel):
            self._submit(effect)
        elif isinstance(effect, Train | Evaluate):
            try:
                model = str(self._models.path(effect.model)) if effect.model else ""
            except OSError as error:
                failed = Failed(job=effect.job, reason="disk", detail=_in_words(error))
                self._results.append(failed)
                return
            state = str(self._states / effect.state) if effect.state else ""
            if isinstance(effect, Train):
                output = self._outputs[effect.job] = self.outbox.path(effect.out)
                self._submit(replace(effect, model=model, out=str(output), state=state))
            else:
                self._submit(replace(effect, model=model, state=state))

    def complete(self, message: AnyMessage) -> AnyMessage:
        """Return an offer with chunk 0, or a chunk with its data; `ChunkError`: it is gone."""
        assert isinstance(message, UpdateOffer | Chunk)
        update = self.outbox.find(message.run, message.round, message.digest)
        if update is None:
            raise ChunkError("the update is gone")
        if isinstance(message, UpdateOffer):
            stop = min(message.size, message.chunk_bytes)
            return replace(message, first=self.outbox.read(update.key, 0, stop) or b"")
        layout = Layout(update.offer.size, update.offer.chunk_bytes)
        data = self.outbox.read(update.key, *layout.span(message.index))
        if data is None:
            raise ChunkError("the update cannot be read")
        return replace(message, data=data)

    def flush(self) -> Iterable[Input]:
        """Return what came of requests that did not reach the trainer."""
        results, self._results = self._results, []
        return results

    def close(self) -> None:
        """Commit what waits, and close the files. Idempotent."""
        self.outbox.close()
        self._peers.close()

    def abandon(self) -> None:
        """Close the files as a kill would leave them; for the testbed."""
        self.outbox.abandon()
        self._peers.close()

    def _make_idle_update(self, effect: MakeIdleUpdate) -> Reply:
        body = _idle_update(self._models.read(effect.model), effect.round)
        if body is None:
            return Failed(job=effect.job, reason="model", detail="not float32 safetensors")
        self._outputs[effect.job] = body
        return Trained(
            job=effect.job,
            digest=hashlib.sha256(body).hexdigest(),
            size=len(body),
            stats=TrainStats(num_samples=1, iterations=max(1, effect.iterations), steps=1),
        )

    def _store_update(self, effect: StoreUpdate) -> Input:
        update, output = self._claimed(effect.update), self._outputs.pop(effect.job)
        offset = (self._stream, effect.offset) if isinstance(output, Path) else None
        try:
            if effect.releases:
                self.privacy.charge(update.key.run, effect.releases)
            self.outbox.put(update, output, offset=offset)
        except DiskError:
            if isinstance(output, Path):
                output.unlink(missing_ok=True)
            raise
        expired = self.outbox.over_limit()
        for key in expired:
            self.outbox.drop(key)
        self._checkpoint("agent.before-offer")
        return UpdateStored(update, tuple(expired))

    def _claimed(self, update: PendingUpdate) -> PendingUpdate:
        """Return an update with the device's signature that it made it."""
        me, offer = self._identity, update.offer
        if me is None:
            return update
        claim = claim_of(me, WorkClaim.offered(offer, update.key.edge, me.id).statement)
        return dataclasses.replace(update, offer=replace(offer, claim=claim))


def open_agent(
    config: "AgentConfig",
    agent: str,
    *,
    submit: Callable[[TrainerRequest], None],
    pending: Callable[[str], int],
    quiet: Callable[[str], float] = lambda _: math.inf,
    identity: "Identity | None" = None,
    voucher: Voucher | None = None,
    checkpoint: Checkpoint = hit,
    outbox_bytes: int = MAX_BYTES,
    idle_opinions: bool = False,
) -> tuple[AgentCore, AgentStore]:
    """Return an agent's core and its disk as the last process left them; errors as of `AgentStore`.

    Without an `identity` there are no neighbours, and nothing is signed: virtual time. Without a
    `voucher` every edge is believed.
    """
    peers = PeerDevice(
        Path(config.data_dir), identity, config.neighbours(), seed=config.seed_of(agent)
    )
    store = AgentStore(
        config,
        peers,
        submit=submit,
        checkpoint=checkpoint,
        outbox_bytes=outbox_bytes,
        identity=identity,
    )
    core = AgentCore(
        config,
        agent=agent,
        boots=store.outbox.boots,
        updates=store.outbox.load(),
        answered=store.outbox.answered(),
        opinions=store.opinions.record,
        releases=store.privacy.releases,
        masking=partial(open_member, Path(config.data_dir), identity),
        claim=partial(_terms_of, identity),
        sign=partial(_answer_of, identity, config.site),
        pending=pending,
        quiet=quiet,
        peering=peers.open,
        voucher=voucher or NoSite(),
        idle_opinions=idle_opinions,
    )
    return core, store


def _terms_of(identity: "Identity | None", edge: str, report: ContextReport) -> bytes:
    """Return the device's signature of the terms in a report; empty in virtual time."""
    if identity is None:
        return b""
    seq, price, available = report.seq, report.price, report.available
    said = terms(edge, identity.id, seq=seq, price=price, available=available)
    return claim_of(identity, said)


def _answer_of(
    identity: "Identity | None",
    site: str,
    call: OpinionCall,
    answer: Opinion | Volunteer,
    edge: str,
) -> bytes:
    """Return the device's signature of what it answers; empty in virtual time."""
    if identity is None:
        return b""
    me, number = identity, call.round
    asked = Asked(site=site, run=call.run, round=number, task=call.task, model=call.model)
    if isinstance(answer, Opinion):
        return claim_of(me, asked.opinion(me.id, answer))
    return claim_of(me, asked.volunteer(me.id, edge))


def _idle_update(model: bytes | None, round_: int) -> bytes | None:
    """Return an update without training, for benches of the wire; it needs no numpy.

    It has the model's own safetensors header, and one small number everywhere that depends on the
    round, so that every round has another model. None if the model is not of float32 tensors.
    """
    if model is None or len(model) < _PREFIX:
        return None
    start = _PREFIX + int.from_bytes(model[:_PREFIX], "little")
    rest = len(model) - start
    if rest < 0 or rest % 4:
        return None
    return model[:start] + struct.pack("<f", _IDLE_STEP * (1 + round_ % 7)) * (rest // 4)


def _in_words(error: OSError) -> str:
    return error.strerror or "the disk failed"
