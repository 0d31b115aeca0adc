"""What the trainer process does with its requests: one task, one stream, one learner."""

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.tensors import Manifest, decode_tensors, digest_of, encode_tensors
from fedagent_task.errors import TaskFormatError
from fedagent_task.features import fitting, scaled
from fedagent_task.models import Model
from fedagent_task.models import create as create_model
from fedagent_task.recipe import parse_task
from fedagent_task.spec import ModelSpec, TaskSpec

from .arrival_steps import LoadMeter, parts
from .evaluation import Scorer
from .learners import NO_TRAINING, Learner, Tensors, instead_of
from .learners import create as create_learner
from .streams.base import Samples, Stream, StreamSchema
from .streams.open import create as create_stream
from .streams.spec import StreamError, parse_stream
from .trainer_wire import Failed, Open, Opened, Refused, Reply, Train, Trained

POLL_S = 0.01
"""How often a training asks whether to give up, at most."""

_NO_MEMORY = "the memory limit is too small for this task; raise --memory-limit"

_SPARSE_KINDS = ("linear", "logistic", "softmax", "svm")

Cancelled = Callable[[int, float], bool]
"""Tells whether a job was cancelled, after waiting for at most so many seconds."""


class _FailedTraining(Exception):  # noqa: N818 - a way out of a training, not a defect
    """A training that gives no update; becomes `Failed`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class _Work:
    """What `open` makes and `train` uses."""

    task: TaskSpec
    model: Model
    learner: Learner
    stream: Stream
    scorer: Scorer
    slow_s: float

    @property
    def idle(self) -> bool:
        """Whether nothing is learnt, so that any stream will do."""
        return self.task.learner.name == NO_TRAINING


@dataclass(slots=True)
class _Tally:
    """What the arrival steps of one training did."""

    arrivals: int = 0
    steps: int = 0
    seen: int = 0
    loss: float = 0.0
    limited: bool = False

    @property
    def mean_loss(self) -> float:
        """Loss per sample looked at; 0 where it is not finite."""
        mean = self.loss / max(self.seen, 1)
        return mean if math.isfinite(mean) else 0.0


class Trainer:
    """One task on one stream.

    Args:
        cancelled: Asked between iterations whether to give up.
    """

    def __init__(self, cancelled: Cancelled) -> None:
        self._cancelled = cancelled
        self._work: _Work | None = None
        self._unfit = 0

    def open(self, request: Open) -> Reply:
        """Open the stream for the task, or say what does not fit."""
        self.close()
        try:
            work = _prepare(request)
            schema = work.stream.open(time.monotonic())
        except (TaskFormatError, StreamError) as error:
            return Refused(job=request.job, key=error.key, detail=str(error)[:1000])
        except MemoryError:
            return Failed(job=request.job, reason="memory", detail=_NO_MEMORY)
        misfit = None if work.idle else misfit_of(schema, work.task)
        if misfit is not None:
            work.stream.close()
            return Refused(job=request.job, key=misfit[0], detail=f"{misfit[0]}: {misfit[1]}")
        self._work, self._unfit = work, 0
        return Opened(
            job=request.job,
            features=schema.features,
            dtype=schema.dtype,
            labels=(schema.labels or ())[:1000],
        )

    def train(self, request: Train) -> Reply:
        """Train once; the update is on disk when this returns `Trained`."""
        if self._work is None:
            return Failed(job=request.job, reason="not_open", detail="no stream is open")
        try:
            return self._train(request, self._work)
        except _FailedTraining as failed:
            return Failed(
                job=request.job,
                reason=failed.reason,
                detail=failed.detail,
                offset=self._work.stream.offset,
            )
        except MemoryError:
            offset = self._work.stream.offset
            return Failed(job=request.job, reason="memory", detail=_NO_MEMORY, offset=offset)

    def close(self) -> None:
        """Let go of the stream."""
        if self._work is not None:
            self._work.stream.close()
        self._work = None

    def _train(self, request: Train, work: _Work) -> Trained:
        began = time.monotonic()
        learner = work.learner
        if not work.idle:
            base = _read_model(Path(request.model), work.model.manifest())
            learner.begin(base)
            work.scorer.begin(base)
        meter = LoadMeter(request.load_limit_s, wall=time.monotonic, processor=time.process_time)
        # Overflow is found by the checks of samples and update; a warning says no more.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            tally = self._learn(request, work, meter, began)
            if self._cancelled(request.job, work.slow_s):
                raise _FailedTraining("cancelled")
            update = learner.update()
            norm = _checked_norm(update, work.task.limits.norm)
        body = encode_tensors(update)
        _write(Path(request.out), body)
        return Trained(
            job=request.job,
            digest=digest_of(body),
            size=len(body),
            num_samples=min(learner.num_samples, work.task.limits.max_samples),
            iterations=max(1, round(meter.iterations / tally.steps)),
            seconds=time.monotonic() - began,
            seconds_per_iteration=meter.iterating_s / meter.iterations,
            arrivals=tally.arrivals,
            loss=tally.mean_loss,
            norm=norm,
            offset=work.stream.offset,
            counters=self._counters(work),
            steps=tally.steps,
            train_s=meter.spent_s,
            limited=tally.limited,
            score=work.scorer.score,
            score_n=work.scorer.count,
        )

    def _learn(self, request: Train, work: _Work, meter: LoadMeter, began: float) -> _Tally:
        """Do the arrival steps of a round; the load limit may end them early."""
        tally = _Tally()
        for samples in self._arrivals(request.job, work, began):
            tally.arrivals += len(samples)
            with meter:
                self._absorb(work, samples)
            if not tally.limited:
                tally.steps += 1
                self._iterate(request, work.learner, meter, tally)
            if tally.limited and work.task.learner.step_s > 0:
                break  # what is still to come waits in the stream for the next round
        if meter.iterations == 0:
            raise _FailedTraining("no_data", "nothing has arrived on the stream yet")
        return tally

    def _arrivals(self, job: int, work: _Work, began: float) -> Iterator[Samples]:
        """Yield what each arrival step brings; a cancel ends the waits between them."""
        steps, step_s = work.task.learner.steps, work.task.learner.step_s
        if step_s == 0:
            gathered = _take(work.stream)
            yield from (gathered.rows(part) for part in parts(len(gathered), steps))
            return
        for step in range(steps):
            wait = max(0.0, began + step * step_s - time.monotonic())
            if self._cancelled(job, wait):
                raise _FailedTraining("cancelled")
            yield _take(work.stream)

    def _absorb(self, work: _Work, samples: Samples) -> None:
        """Give the learner those samples that fit."""
        if work.idle:
            work.learner.absorb(np.empty((len(samples), 0), np.float32), samples.y)
        elif len(samples):
            x = scaled(samples.x, work.task.data)
            good = fitting(x, samples.y, work.task.model)
            self._unfit += len(samples) - int(good.sum())
            rows = np.flatnonzero(good)
            x, y = x[rows], samples.y[rows]
            work.scorer.look(x, y)
            work.learner.absorb(x, y)

    def _counters(self, work: _Work) -> dict[str, int]:
        own = {"unfit": self._unfit, "not_learnt": work.learner.dropped}
        own["strsaga_replaced"] = int(instead_of(work.task.model, work.task.learner) is not None)
        return {name: n for name, n in {**work.stream.counters, **own}.items() if n}

    def _iterate(self, request: Train, learner: Learner, meter: LoadMeter, tally: _Tally) -> None:
        """Do the iterations of one arrival step, in blocks that the load limit allows."""
        left = request.iterations or learner.default_iterations
        polled = time.monotonic()
        while left > 0:
            block = meter.block(left)
            if block == 0:
                tally.limited = True
                return
            with meter:
                result = learner.step(block)
            if result.iterations == 0:
                return
            meter.did(result.iterations)
            left -= result.iterations
            tally.seen += result.samples
            tally.loss += result.loss * result.samples
            now = time.monotonic()
            if now - polled >= POLL_S:
                polled = now
                if self._cancelled(request.job, 0.0):
                    raise _FailedTraining("cancelled")


def _take(stream: Stream) -> Samples:
    try:
        return stream.take(time.monotonic())
    except StreamError as error:
        raise _FailedTraining("stream", str(error)[:1000]) from error


def _prepare(request: Open) -> _Work:
    """Make model, learner and stream; nothing is opened yet."""
    task = parse_task(request.task)
    model = create_model(task.model)
    seeds = np.random.SeedSequence(request.seed, spawn_key=(1, request.offset))
    stream = create_stream(
        parse_stream(request.stream),
        seed=request.seed,
        offset=request.offset,
        labels=task.data.labels,
    )
    learner = create_learner(model, task.learner, np.random.default_rng(seeds))
    return _Work(task, model, learner, stream, Scorer(task, model), request.slow_s)


def misfit_of(schema: StreamSchema, task: TaskSpec) -> tuple[str, str] | None:
    """Return the recipe's key and why the stream does not fit it, or None."""
    model = task.model
    if schema.features != model.features:
        return "model.features", f"task wants {model.features}, the stream has {schema.features}"
    if schema.sparse and (task.data.offset or model.kind not in _SPARSE_KINDS):
        key = "data.offset" if task.data.offset else "model.kind"
        return key, f"the stream is sparse: take offset 0 and one of {', '.join(_SPARSE_KINDS)}"
    if not np.can_cast(schema.dtype, task.data.dtype, "same_kind"):
        return "data.dtype", f"task wants {task.data.dtype}, the stream has {schema.dtype}"
    return _labels_misfit(schema.labels, model)


def _labels_misfit(labels: tuple[int, ...] | None, model: ModelSpec) -> tuple[str, str] | None:
    classes = model.num_classes
    if not labels or model.regression or (labels[0] >= 0 and labels[-1] < classes):
        return None
    wrong = labels[0] if labels[0] < 0 else labels[-1]
    key = "model.kind" if model.kind == "logistic" else "model.classes"
    return key, f"task has the classes 0 to {classes - 1}, the stream has {wrong}"


def _read_model(path: Path, manifest: Manifest) -> Tensors:
    try:
        tensors = decode_tensors(path.read_bytes(), manifest)
    except OSError as error:
        raise _FailedTraining("model", error.strerror or "cannot be read") from error
    except ProtocolError as error:
        raise _FailedTraining("model", str(error)[:1000]) from error
    model = {name: tensor.astype(np.float32, copy=False) for name, tensor in tensors.items()}
    if not all(np.isfinite(tensor).all() for tensor in model.values()):
        raise _FailedTraining("model", "the base model is not finite")
    return model


def _checked_norm(update: Tensors, limit: float) -> float:
    """Return the L2 norm; what the edge would reject is not sent."""
    square = sum(float(np.vdot(tensor, tensor)) for tensor in update.values())
    norm = math.sqrt(square) if square >= 0 else math.nan
    if not math.isfinite(norm):
        raise _FailedTraining("diverged", "the update is not finite; lower learner.rate")
    if 0 < limit < norm:
        raise _FailedTraining(
            "norm", f"norm {norm:.4g} is over limits.norm = {limit:g}; lower learner.rate"
        )
    return norm


def _write(path: Path, body: bytes) -> None:
    """Write the whole file durably, or none."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _FailedTraining("disk", error.strerror or "cannot be written") from error
