"""The edge's disk: a journal of what a restart must know, models, and large updates.

Checkpoints: ``edge.chunk_written``, ``edge.complete``, ``edge.spooled``, ``edge.aggregated``,
``edge.model_stored``; the core marks the others: ``edge.round_saved``, ``edge.receipted``,
``edge.reported``, ``edge.spool_cleared``, ``edge.model_saved``.
"""

import errno
import secrets
from collections import Counter
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from fedagent_node.driver import Job
from fedagent_node.effects import (
    ContentLostError,
    FinishModel,
    Input,
    Mark,
    ModelFinished,
    RunJob,
    Write,
    WriteModel,
)
from fedagent_node.errors import DiskError, disk_refused
from fedagent_node.site.credentials import members_of
from fedagent_protocol.errors import DigestError
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import AnyMessage, Chunk, EdgeHello, TrainOrder
from fedagent_protocol.tensors import digest_of

from .at_work import RoundAtWork
from .config import EdgeConfig
from .core.admission import SMALL_BYTES, Verdict
from .core.edge import EdgeCore
from .core.effects import (
    DiskFailed,
    DiskTried,
    DropSpool,
    Ended,
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
from .core.state import EdgeState
from .core.weighing import weighing_of
from .models import LOST, Models
from .spool import Journal, Spool, framed, try_room

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class EdgeStore:
    """One edge's data directory, in a `boot` that times belong to.

    Raises:
        DiskError: The directory's files cannot be used. Any method may raise it.
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
        self._directory, self._boot = directory, boot
        self._counters, self._checkpoint = counters, checkpoint
        self._models = Models(directory / "models", chunk_bytes)
        self._spool = Spool(directory / "spool")
        self._journal = Journal(directory / "spool" / "journal")
        self._begun = partial(
            RoundAtWork,
            models=self._models,
            spool=self._spool,
            journal=self._journal,
            chunk_bytes=chunk_bytes,
            checkpoint=checkpoint,
        )
        self._noted = Memory()
        """What the journal says."""
        self._kept = ForgetRound()
        self._round: RoundAtWork | None = None

    def load(self, now: float) -> tuple[Memory, ReopenedRound | None]:
        """Return what a restart must know, and the round that was open."""
        try:
            found = self._journal.read()
        except (OSError, ValueError) as error:
            hint = "delete the file to start the edge without saved state"
            raise DiskError(self._directory / "spool" / "journal", str(error), hint) from error
        self._noted, memory, opened = found.memory, replace(found.memory), found.opened
        if found.model and digest_of(found.model) == memory.model:
            self._models.small[memory.model] = found.model
        try:
            if memory.model:
                self._models.get(memory.model)
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
        self._round = self._begun(opened, weighing_of(memory.body))
        ended = list[tuple[Ended, Verdict]]()
        for one, place in found.ended.values():
            verdict = self._round.look_again(one, place)
            self._counters["spool_damaged"] += one.offer is not None and not verdict.valid
            if verdict.valid or one.offer is None:
                ended.append((one, verdict))
        self._spool.clear([one.file for one, _ in ended if one.offer is not None])
        if opened.boot != self._boot or opened.began_at > now:
            longest = max(opened.order.max_wait_ms, opened.order.deadline_ms) / 1000
            opened = replace(opened, began_at=now - longest - 1.0)
        return memory, ReopenedRound(opened, ended)

    def holds_once(self) -> str:
        """Return what the task's devices get once, if it is whole; reads all of it."""
        once = self._noted.once
        return once if once and self._models.files.is_whole(once) else ""

    def close(self) -> None:
        """Close the journal. Idempotent."""
        self._journal.close()

    def complete(self, message: AnyMessage, nbytes: int) -> AnyMessage:
        """Return a chunk of a model with its data, or an order with all of its model."""
        if isinstance(message, TrainOrder):
            return replace(message, first=self._models.piece(message.model, 0, nbytes))
        assert isinstance(message, Chunk)
        return self._models.completed(message, nbytes)

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
                    self._models.files.drop_part(effect.digest)
                case WriteModel():
                    self._models.files.write_part(effect.digest, effect.offset, effect.data)
                case TryDisk():
                    return DiskTried(try_room(self._directory, effect.size))
                case ForgetRound():
                    self._kept = effect
                    if self._round is None:  # else it is open on the disk: no room for its end
                        self._spool.clear(effect.files)
        except ContentLostError as error:
            return error.lost
        except OSError as error:
            detail = str(error)[:120]
            match effect:
                case WriteSpool(file=(agent, _)) | DropSpool(file=(agent, _)):
                    return DiskFailed(detail, agent)
                case WriteModel():
                    return DiskFailed(detail, digest=effect.digest)
                case _ if error.errno in _FULL:
                    return DiskFailed(detail)
            raise disk_refused(self._directory, error) from error
        return None

    def _save(self, record: Memory | OpenRound | Ended) -> None:
        if isinstance(record, Memory):
            before, model = self._noted, self._models.small.get(record.model, b"")
            if self._journal.is_long and not record.open_round:
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
            self._round = None
            try:
                self._round = self._begun(record, weighing_of(noted.body))
            except LOST as error:
                raise self._models.lost(record.base, "its file is damaged, or gone") from error
        # It survives a kill at once, and a power cut from the next sync on: that comes before
        # anything is promised to an agent.
        self._journal.append(record)

    def _hold(self, memory: Memory) -> None:
        self._models.hold(memory.model, {memory.once, *self._kept.models})

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
        return at_work.job(effect)

    def _finish(self, finish: FinishModel) -> Input:
        try:
            refused = self._models.finish(finish, once=finish.digest == self._noted.once)
        except OSError as error:
            return DiskFailed(str(error)[:120], digest=finish.digest)
        self._checkpoint("edge.model_stored")
        return ModelFinished(finish.digest, finish.size, refused)


def open_edge(
    config: EdgeConfig, me: EdgeHello, *, now: float, boot: str, checkpoint: Checkpoint = hit
) -> tuple[EdgeCore, EdgeStore]:
    """Open an edge on its data directory; `now` is a time of the boot.

    Raises:
        DiskError: The directory's files cannot be used.
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
