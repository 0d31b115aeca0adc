"""The numeric work of the trainer: trainings and evaluations on one open task."""

import hashlib
import math
import mmap
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedagent_agent.learners import Learner, Tensors
from fedagent_agent.learners.base import FailedTrainingError
from fedagent_agent.learners.user import UserLearner
from fedagent_agent.streams.spec import StreamError
from fedagent_node.data_dir import passing
from fedagent_protocol.errors import FedagentError, ProtocolError
from fedagent_protocol.messages import NO_COURSE, TrainStats
from fedagent_protocol.tensors import Buffer, Manifest, decode_tensors, tensor_parts
from fedagent_task.errors import NotInstalledError, TaskFormatError
from fedagent_task.moments import LARGEST, Moments
from fedagent_task.privacy.accountant import deviation_of
from fedagent_task.privacy.mechanism import clipped, noised
from fedagent_task.secure_aggregation.ring import (
    MASKED,
    add_masks,
    most_weight,
    ring_of,
    vector_of,
)
from fedagent_task.travelling import CONTROL

from .frames import (
    Evaluate,
    Evaluated,
    Failed,
    Job,
    Mask,
    Masked,
    Open,
    Opened,
    Reply,
    Train,
    Trained,
)
from .load_meter import Clock, LoadMeter, parts
from .open_task import OpenTask
from .scoring import protect

MAPPED_BYTES = 4 << 20
"""Size from which a model's file is mapped: such a one is never written to again."""

POLL_S = 0.01
"""How often a training asks whether to give up, at most."""

_NO_MEMORY = "the memory limit is too small for this task; raise --memory-limit"

Cancelled = Callable[[int, float], bool]
"""Returns whether a job was cancelled, after waiting for at most so many seconds."""


@dataclass(slots=True)
class _Tally:
    """What the arrival steps of one training did."""

    steps: int = 0
    seen: int = 0
    loss: float = 0.0
    limited: bool = False
    lacks: str = ""

    @property
    def mean_loss(self) -> float:
        mean = self.loss / max(self.seen, 1)
        return mean if math.isfinite(mean) else 0.0


class Trainer:
    """Does jobs on one task at a time; between iterations it asks whether it was cancelled.

    `wall` is monotonic seconds, `processor` what all threads of this process have used.
    """

    def __init__(
        self,
        cancelled: Cancelled,
        *,
        wall: Clock = time.monotonic,
        processor: Clock = time.process_time,
    ) -> None:
        self._cancelled = cancelled
        self._wall, self._processor = wall, processor
        self._open: OpenTask | None = None

    def answer(self, job: Job) -> Reply:
        """Do a job; what can be foreseen to go wrong is an answer."""
        try:
            if isinstance(job, Open):
                return self._reopen(job)
            if self._open is None:
                return Failed(job=job.job, reason="not_open", detail="no stream is open")
            if isinstance(job, Evaluate):
                return self._evaluate(job, self._open)
            if isinstance(job, Mask):
                return _mask(job, self._open)
            return self._train(job, self._open)
        except NotInstalledError as error:
            return Failed(job=job.job, reason="privacy", detail=str(error))
        except (FedagentError, MemoryError, RuntimeError) as error:
            if lacks_memory(error.__cause__ if isinstance(error, FedagentError) else error):
                if isinstance(job, Open):
                    self.close()
                offset, mark = self._open.place if self._open is not None else (None, "")
                detail = _NO_MEMORY
                return Failed(job=job.job, reason="memory", detail=detail, offset=offset, mark=mark)
            if isinstance(error, FailedTrainingError):
                return self._failed(job, error)
            if isinstance(error, TaskFormatError):
                return Failed(job=job.job, reason="error", detail=str(error)[:1000])
            raise

    def close(self) -> None:
        """Close the streams."""
        task, self._open = self._open, None
        if task is not None:
            task.close()

    def _reopen(self, request: Open) -> Reply:
        former = self._open
        self.close()
        try:
            task = self._open = OpenTask(request)
            task.open(self._wall())
        except (TaskFormatError, StreamError) as error:
            self.close()
            return Failed(job=request.job, reason="schema", detail=str(error)[:1000])
        if former is not None:
            task.carry_over(former)
        return Opened(job=request.job)

    def _failed(self, job: Job, failed: FailedTrainingError) -> Failed:
        task = self._open
        assert task is not None
        task.state.forget()  # a training that came to nothing leaves no trace of itself
        return Failed(
            job=job.job,
            reason=failed.reason,
            detail="; ".join(filter(None, (failed.detail, task.note)))[:1000],
            offset=task.place.offset,
            mark=task.place.mark,
            counters=task.counters,
        )

    # ------------------------------------------------------------- evaluation

    def _evaluate(self, job: Evaluate, task: OpenTask) -> Evaluated:
        if job.moments:
            return self._add_up(job, task)
        scorer = task.scorer
        base = _read_model(job, task.manifest)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            scorer.begin(_whole(base, task, job))
            for x, y in task.newest(self._wall()):
                scorer.add(x, y)
        if not scorer.count:
            return Evaluated(job=job.job, counters=task.counters)
        score, epsilon = protect(scorer.score, task.task.opinions)
        return Evaluated(
            job=job.job,
            score=score,
            samples=scorer.count,
            metric=scorer.metric,
            epsilon=epsilon,
            counters=task.counters,
        )

    def _add_up(self, job: Evaluate, task: OpenTask) -> Evaluated:
        """Sum what has arrived; it may still be learnt from."""
        task.gather(self._wall())
        total = Moments.none(task.task.model.features)
        for x, _ in task.held.newest(task.task.limits.max_samples):
            assert isinstance(x, np.ndarray)
            if (np.abs(x) > LARGEST).any():
                raise FailedTrainingError("stream", f"a feature is over {LARGEST:.0e}")
            total += Moments.of(x.astype(np.float32, copy=False))
        total = total.called(task.names)
        return Evaluated(
            job=job.job,
            samples=total.count,
            metric="moments",
            moments=total.encode() if total.count else b"",
            counters=task.counters,
        )

    # --------------------------------------------------------------- training

    def _train(self, job: Train, task: OpenTask) -> Trained:
        began = self._wall()
        learner, scorer = task.learner, task.scorer
        base = _read_model(job, task.manifest)
        whole = _whole(base, task, job)
        learner.begin(base, job.round)
        scorer.begin(whole)
        _give_back(base)
        meter = LoadMeter(job.load_limit_s, self._wall, self._processor)
        # Overflow is found by the checks of samples and update; a warning says no more.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            tally = self._learn(job, task, meter, began)
            if self._cancelled(job.job, task.request.slow_s):
                raise FailedTrainingError("cancelled")
            update = _released(learner.update(), task)
        digest, size = _write_update(passing(job.out), update)
        _keep_state(task, job)
        _give_back(base)
        task.held.release()
        arrived, task.arrived = task.arrived, 0
        # Where neighbours decide, scores stay on the device, and with them the loss.
        guarded = task.task.privacy.wanted
        private = task.task.opinions.mode == "peers" or guarded
        samples = min(learner.num_samples, task.task.limits.max_samples)
        stats = TrainStats(
            num_samples=1 if guarded else samples,
            arrivals=0 if guarded else arrived,
            iterations=max(1, round(meter.iterations / tally.steps)),
            steps=tally.steps,
            limited=tally.limited,
            seconds_per_iteration=meter.iterating_s / meter.iterations,
            loss=0.0 if private else tally.mean_loss,
            score=0.0 if guarded else scorer.score,
            score_n=0 if guarded else scorer.count,
            course=NO_COURSE if private else learner.course,
        )
        return Trained(
            job=job.job,
            digest=digest,
            size=size,
            stats=stats,
            train_s=meter.spent_s,
            offset=task.place.offset,
            mark=task.place.mark,
            counters=task.counters,
            note=task.note,
        )

    def _learn(self, job: Train, task: OpenTask, meter: LoadMeter, began: float) -> _Tally:
        tally = _Tally()
        for ready in self._arrivals(job.job, task, meter, began):
            with meter:
                for x, y in task.held.give(ready):
                    task.scorer.look(x, y)
                    task.learner.absorb(x, y)
            if not tally.limited:
                tally.steps += 1
                self._iterate(job, task.learner, meter, tally)
            if tally.limited and task.task.learner.step_s > 0:
                break  # what is still to come waits in the stream for the next round
        if meter.iterations == 0:
            raise FailedTrainingError("no_data", tally.lacks or task.no_data_reason)
        if task.learner.num_samples == 0:
            # strSAGA takes a sample in at every second iteration: one alone learns nothing.
            raise FailedTrainingError("no_data", "too few iterations to use a single sample")
        return tally

    def _arrivals(self, job: int, task: OpenTask, meter: LoadMeter, began: float) -> Iterator[int]:
        """Yield how many samples each arrival step takes; a cancel ends the waits between."""
        steps, step_s = task.task.learner.steps, task.task.learner.step_s
        if step_s == 0:
            ready = self._ready(task, meter)
            yield from (part.stop - part.start for part in parts(ready, steps))
            return
        for step in range(steps):
            wait = max(0.0, began + step * step_s - self._wall())
            if self._cancelled(job, wait):
                raise FailedTrainingError("cancelled")
            yield self._ready(task, meter)

    def _ready(self, task: OpenTask, meter: LoadMeter) -> int:
        with meter:
            task.gather(self._wall())
        if not task.held.ready and not task.learner.num_samples:
            task.held.release()  # a device that no call has reached must not stand idle
        return task.held.ready

    def _iterate(self, job: Train, learner: Learner, meter: LoadMeter, tally: _Tally) -> None:
        left = job.iterations or learner.default_iterations
        polled = self._wall()
        if isinstance(learner, UserLearner):
            learner.stop = lambda: meter.is_over or self._cancelled(job.job, 0.0)
        while left > 0:
            block = meter.block(left)
            if block == 0:
                tally.limited = True
                return
            if isinstance(learner, UserLearner):
                block = left  # it stops by itself
            try:
                with meter:
                    result = learner.step(block)
            except FailedTrainingError as failed:
                if failed.reason != "no_data":
                    raise
                tally.lacks = failed.detail  # a later arrival step may have enough
                return
            if result.iterations == 0:
                return
            meter.did(result.iterations)
            left -= result.iterations
            tally.seen += result.samples
            tally.loss += result.loss * result.samples
            now = self._wall()
            if now - polled >= POLL_S:
                polled = now
                if self._cancelled(job.job, 0.0):
                    raise FailedTrainingError("cancelled")


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether memory ran out; torch reports that by a `RuntimeError`."""
    text = str(error).lower() if isinstance(error, RuntimeError) else ""
    told = "allocate memory" in text or "out of memory" in text
    return told or isinstance(error, MemoryError)


def _read_model(job: Train | Evaluate, manifest: Manifest) -> Tensors:
    try:
        tensors = decode_tensors(job.small or _content(passing(job.model)), manifest)
    except OSError as error:
        raise FailedTrainingError("model", error.strerror or "cannot be read") from error
    except ProtocolError as error:
        raise FailedTrainingError("model", str(error)[:1000]) from error
    model = {name: tensor.astype(np.float32, copy=False) for name, tensor in tensors.items()}
    if not all(np.isfinite(tensor).all() for tensor in model.values()):
        raise FailedTrainingError("model", "the base model is not finite")
    return model


def _content(path: Path) -> Buffer:
    """Return a file's bytes; a large one is mapped, so that the system may take its pages back."""
    with path.open("rb") as file:
        if path.stat().st_size < MAPPED_BYTES:
            return file.read()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _give_back(base: Tensors) -> None:
    """Let go of a mapped model's pages: what was learnt is compared with it at the end only."""
    owner: object = next(iter(base.values()), None)
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview) and isinstance(owner.obj, mmap.mmap):
        owner.obj.madvise(mmap.MADV_DONTNEED)


def _released(update: Tensors, task: OpenTask) -> Tensors:
    """Return what may leave the device of an update: checked, and clipped and noised if asked."""
    privacy = task.task.privacy
    _check_norm(update, 0.0 if privacy.wanted else task.task.limits.norm, task.uncounted)
    if not privacy.wanted:
        return update
    short = clipped(update, privacy.clip, dropped=task.uncounted)
    if privacy.mode == "central":
        return short
    return noised(short, deviation_of(privacy), dropped=task.uncounted)


def _mask(job: Mask, task: OpenTask) -> Masked:
    """Write an update anew as integers under masks; the plain one is gone with that."""
    spec, out = task.task, passing(job.out)
    ring = ring_of(spec.secure_aggregation, most_weight(spec.weighting, spec.limits))
    try:
        update = decode_tensors(out.read_bytes(), task.manifest)
    except (OSError, ProtocolError) as error:
        raise FailedTrainingError("disk", str(error)[:1000]) from error
    vector = vector_of(update, job.weight, ring, task.uncounted)
    add_masks(vector, job.seeds, ring)
    digest, size = _write_update(out, {MASKED: vector.view(ring.dtype)})
    return Masked(job=job.job, digest=digest, size=size)


def _check_norm(update: Tensors, limit: float, uncounted: Collection[str]) -> None:
    """Fail what the edge would reject: the L2 norm over the model's tensors is above `limit`."""
    squares = {name: float(np.vdot(tensor, tensor)) for name, tensor in update.items()}
    square = sum(n for name, n in squares.items() if name not in uncounted)
    norm = math.sqrt(square) if square >= 0 else math.nan
    if not math.isfinite(norm) or not math.isfinite(sum(squares.values())):
        raise FailedTrainingError("diverged", "the update is not finite; lower learner.rate")
    if 0 < limit < norm:
        detail = f"norm {norm:.4g} is over limits.norm = {limit:g}; lower learner.rate"
        raise FailedTrainingError("norm", detail)


def _write_update(path: Path, update: Mapping[str, npt.NDArray[np.generic]]) -> tuple[str, int]:
    """Write an update; return its digest, which shows if a power cut damaged it, and its size."""
    hasher, size = hashlib.sha256(), 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            for part in tensor_parts(update):
                hasher.update(part)
                size += file.write(part)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise FailedTrainingError("disk", error.strerror or "cannot be written") from error
    return hasher.hexdigest(), size


def _whole(base: Tensors, task: OpenTask, job: Train | Evaluate) -> Tensors:
    """Return the model as this device has it: without control variates, with what stays here.

    The learner has then what the device kept of this run.
    """
    if job.state:
        task.state.bring(task.learner, Path(job.state))
    model = {name: tensor for name, tensor in base.items() if not name.startswith(CONTROL)}
    return {**model, **task.learner.local}


def _keep_state(task: OpenTask, job: Train) -> None:
    """Keep what the device has of the round; an update that goes without it is taken back."""
    try:
        task.state.keep(task.learner, Path(job.state) if job.state else None)
    except OSError as error:
        task.state.forget()
        passing(job.out).unlink(missing_ok=True)
        raise FailedTrainingError("disk", error.strerror or "cannot be written") from error
