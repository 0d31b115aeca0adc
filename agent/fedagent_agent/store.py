"""What the core asks of the agent's disk, effect by effect.

`books` is its one SQLite file, `models` a cache of files. A kill between any two disk effects is a
`checkpoint` that does not return.
"""

import hashlib
import random
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fedagent_node.effects import Input, Mark, ModelFinished, RunJob, Write, WriteModel
from fedagent_node.errors import DiskError
from fedagent_protocol.errors import ProtocolError, hide_password
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import AnyMessage, Chunk, TrainStats, UpdateOffer

from .books import Books
from .core.agent import AgentCore
from .core.effects import (
    CarryUpdate,
    DiskFailed,
    DropOutput,
    DropUpdate,
    FinishModel,
    MakeIdleUpdate,
    ModelOpened,
    OpenModel,
    OpinionStored,
    StoreOpinion,
    StoreUpdate,
    UpdateStored,
)
from .core.vouching import Voucher
from .models import ModelsCache
from .peers.core.records import StoreSlot
from .peers.core.selection import PeerAccess
from .peers.core.transport import PeerTransport
from .peers.seal import PeerSeal
from .site import Signatures
from .trainer.frames import Cancel, Evaluate, Failed, Mask, Open, Reply, Train, Trained

if TYPE_CHECKING:
    from fedagent_node.data_dir import Identity

    from .config import AgentConfig

TrainerRequest = Open | Train | Mask | Evaluate | Cancel
NOT_ITS_DIGEST = "the model did not hash to its digest"
_MEMBER = "fedagent_agent.members:open_member"
_PREFIX = 8
_IDLE_STEP = 1e-4


class AgentStore:
    """Does what the core asks of one agent's data directory; `BooksError`: it cannot be used.

    `submit` hands a request to the trainer; the reply comes as an input of the core.
    """

    def __init__(
        self,
        config: "AgentConfig",
        signatures: Signatures,
        submit: Callable[[TrainerRequest], None],
        checkpoint: Checkpoint,
    ) -> None:
        directory = Path(config.data_dir)
        self._stream = hide_password(config.stream)
        self._signatures = signatures
        self._submit, self._checkpoint = submit, checkpoint
        self.books = Books(directory, checkpoint=checkpoint)
        self._models = ModelsCache(directory / "models", checkpoint)
        self._once = ModelsCache(directory / "once", checkpoint, _to_disk=True)
        self._once_digest = ""
        self._states = directory / "state"
        self._outputs: dict[int, Path] = {}
        """The files that trainings write, by job."""
        self._writes: dict[type[Write], Callable[[Any], Input | None]] = {
            OpenModel: self._receive,
            WriteModel: self._receive,
            FinishModel: self._receive,
            MakeIdleUpdate: self._make_idle_update,
            DropOutput: self._drop_output,
            StoreUpdate: self._store_update,
            CarryUpdate: self._carry_update,
            DropUpdate: lambda e: self.books.drop(e.key),
            StoreOpinion: self._store_opinion,
            StoreSlot: self.books.keep_slot,
            Mark: lambda e: self._checkpoint(e.name),
        }

    def write(self, effect: Write, now: float) -> Input | None:  # noqa: ARG002 - of the interface
        """Perform a disk effect; return its result."""
        try:
            return self._writes[type(effect)](effect)
        except DiskError as error:
            return DiskFailed(effect, error.reason)
        except OSError as error:
            if isinstance(effect, OpenModel | WriteModel | FinishModel):
                self._cache(effect.digest).discard(effect.digest)
            return DiskFailed(effect, error.strerror or "the disk failed")

    def job(self, effect: RunJob) -> None:
        """Hand a request to the trainer, with paths instead of names."""
        assert isinstance(effect, TrainerRequest)
        if isinstance(effect, Train | Mask):
            output = self._outputs[effect.job] = self.books.path(effect.out)
            effect = replace(effect, out=str(output))
        if isinstance(effect, Train | Evaluate):
            model = str(self._models.path(effect.model)) if effect.model else ""
            state = str(self._states / effect.state) if effect.state else ""
            small = self._models.small(effect.model)
            effect = replace(effect, model=model, small=small, state=state)
        elif isinstance(effect, Open):
            once = str(self._once.path(effect.once)) if effect.once else ""
            offset, mark = self.books.place(self._stream)
            effect = replace(effect, offset=offset, mark=mark, once=once)
        self._submit(effect)

    def complete(self, message: AnyMessage, nbytes: int) -> AnyMessage:
        """Return an offer or a chunk with bytes of the update; `ProtocolError`: it is gone."""
        assert isinstance(message, UpdateOffer | Chunk)
        index = message.index if isinstance(message, Chunk) else 0
        data = self.books.piece(message.run, message.round, message.digest, index, nbytes)
        if data is None:
            raise ProtocolError("the update is gone", "bad_chunk")
        if isinstance(message, Chunk):
            return replace(message, data=data)
        return replace(message, first=data)

    def flush(self) -> None:
        """Do nothing: no effect waits."""

    def close(self) -> None:
        """Close the files. Idempotent."""
        self.books.close()

    # ----------------------------------------------------------------- models

    def _cache(self, digest: str) -> ModelsCache:
        return self._once if digest == self._once_digest else self._models

    def _receive(self, effect: OpenModel | WriteModel | FinishModel) -> Input | None:
        digest = effect.digest
        if isinstance(effect, OpenModel) and effect.once:
            self._once_digest = digest
        cache = self._cache(digest)
        match effect:
            case OpenModel():
                return ModelOpened(digest, cache.open(digest, effect.size, effect.chunk_bytes))
            case WriteModel():
                cache.write(digest, effect.offset, effect.data)
                return None
            case FinishModel():
                size = cache.finish(digest)
                return ModelFinished(digest, size, "" if size else NOT_ITS_DIGEST)

    # ---------------------------------------------------------------- updates

    def _make_idle_update(self, effect: MakeIdleUpdate) -> Reply:
        model = self._models.small(effect.model) or self._models.path(effect.model).read_bytes()
        body = _idle_update(model, effect.round)
        if body is None:
            return Failed(job=effect.job, reason="model", detail="not float32 safetensors")
        output = self.books.path(effect.out)
        try:
            output.write_bytes(body)
        except OSError:
            output.unlink(missing_ok=True)
            raise
        self._outputs[effect.job] = output
        return Trained(
            job=effect.job,
            digest=hashlib.sha256(body).hexdigest(),
            size=len(body),
            stats=TrainStats(num_samples=1, iterations=max(1, effect.iterations), steps=1),
        )

    def _drop_output(self, effect: DropOutput) -> None:
        if (output := self._outputs.pop(effect.job, None)) is not None:
            output.unlink(missing_ok=True)

    def _store_update(self, effect: StoreUpdate) -> Input:
        update, output = self._signatures.work(effect.update), self._outputs.pop(effect.job)
        place = (self._stream, *effect.place) if effect.place is not None else None
        try:
            expired = self.books.put(update, output, place=place, releases=effect.releases)
        except DiskError:
            output.unlink(missing_ok=True)
            raise
        return UpdateStored(update, tuple(expired))

    def _carry_update(self, effect: CarryUpdate) -> Input:
        update = self._signatures.work(effect.update)
        self.books.carry(effect.old, update)
        return UpdateStored(update)

    def _store_opinion(self, effect: StoreOpinion) -> Input:
        self.books.keep(effect.answer, effect.spent)
        return OpinionStored(effect.answer)


def open_agent(
    config: "AgentConfig",
    agent: str,
    *,
    submit: Callable[[TrainerRequest], None],
    pending: Callable[[str], int],
    identity: "Identity | None" = None,
    voucher: Voucher | None = None,
    checkpoint: Checkpoint = hit,
    idle_opinions: bool = False,
) -> tuple[AgentCore, AgentStore]:
    """Return an agent's core and its disk as the last process left them; errors as of `AgentStore`.

    Without an `identity` there are no neighbours, and nothing is signed: virtual time. Without a
    `voucher` every edge is believed.
    """
    directory, signatures = Path(config.data_dir), Signatures(identity, config.site)
    store = AgentStore(config, signatures, submit, checkpoint)
    books = store.books

    def peering(counters: Counter[str]) -> PeerAccess | str:
        """Open keys and memory when neighbours are first needed; else return why not."""
        if identity is None:
            return "no identity to seal envelopes with"
        try:
            start, arms = books.begin_peers(int(time.time())), books.arms()
        except DiskError as error:
            return str(error)
        declared = {peer: far for peer, far in config.neighbours().items() if peer != agent}
        seal = PeerSeal(identity, start, reserved=frozenset(declared))
        return PeerAccess(
            me=agent,
            incarnation=start,
            transport=PeerTransport(seal, counters),
            rng=random.Random(config.seed_of(agent)),  # noqa: S311 - no secret
            arms=arms,
            declared=declared,
        )

    core = AgentCore(
        config,
        agent=agent,
        survived=books.survived(),
        masking=lambda key, spec: (
            # Keys cost an idle device several megabytes.
            resolve_name(_MEMBER)(directory, identity, key, spec) if identity else None
        ),
        claim=signatures.terms,
        sign=signatures.answer,
        pending=pending,
        peering=peering,
        voucher=voucher,
        idle_opinions=idle_opinions,
    )
    return core, store


def _idle_update(model: bytes, round_: int) -> bytes | None:
    """Return an update without training, for benches of the wire; it needs no numpy.

    It has the model's own safetensors header, and one small number everywhere that depends on the
    round, so that every round has another model. None if the model is not of float32 tensors.
    """
    if len(model) < _PREFIX:
        return None
    start = _PREFIX + int.from_bytes(model[:_PREFIX], "little")
    rest = len(model) - start
    if rest < 0 or rest % 4:
        return None
    return model[:start] + struct.pack("<f", _IDLE_STEP * (1 + round_ % 7)) * (rest // 4)
