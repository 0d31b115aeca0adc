"""What the trainer process does with its requests: one task, one stream, one learner."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_task.errors import TaskFormatError
from fedagent_task.features import fitting, names_of, offset_key, scaled, scaling_of
from fedagent_task.models import Model
from fedagent_task.models import create as create_model
from fedagent_task.moments import LARGEST, Moments
from fedagent_task.recipe import parse_task
from fedagent_task.spec import ModelSpec, TaskSpec

from .arrival_steps import Clock, LoadMeter, parts
from .evaluation import Scorer
from .held_out_samples import HeldOutSamples, Part, ValidationStream
from .learners import NO_TRAINING, Learner, instead_of
from .learners import create as create_learner
from .learners.warm import ready_or_start
from .privacy import PrivacyMissingError, protect
from .spread import Spread
from .streams.base import Samples, Stream, StreamSchema
from .streams.open import create as create_stream
from .streams.spec import StreamError, parse_stream
from .trainer_wire import (
    EvaluationRequest,
    EvaluationResult,
    Failed,
    Open,
    Opened,
    Refused,
    Reply,
    Train,
    Trained,
)
from .update_files import FailedTrainingError, checked_norm, read_model, write_update

_log = logging.getLogger(__name__)

POLL_S = 0.01
"""How often a training asks whether to give up, at most."""

_NO_MEMORY = "the memory limit is too small for this task; raise --memory-limit"

NOTHING_NEW = (
    "nothing new has arrived on the stream, and what was read before an earlier start or run is "
    "not learnt again; --stream replay:FILE repeats a file"
)

_SPARSE_KINDS = ("linear", "logistic", "softmax", "svm")

Cancelled = Callable[[int, float], bool]
"""Tells whether a job was cancelled, after waiting for at most so many seconds."""


@dataclass(frozen=True, slots=True)
class _Work:
    """What `open` makes and `train` and `evaluate` use."""

    task: TaskSpec
    model: Model
    learner: Learner
    stream: Stream
    scorer: Scorer
    slow_s: float
    held: HeldOutSamples
    text: str
    spread: Spread
    apart: ValidationStream | None = None

    @property
    def streams(self) -> tuple[Stream, ...]:
        """What is open: that which is learnt from, and that which is only evaluated by."""
        return (self.stream,) if self.apart is None else (self.stream, self.apart.stream)

    @property
    def offset(self) -> int:
        """Where to go on in the stream so that no sample is lost with this process."""
        return self.held.offset(self.stream.offset)

    @property
    def idle(self) -> bool:
        """Whether nothing is learnt, so that any stream will do."""
        return self.task.learner.name == NO_TRAINING

    @property
    def silent(self) -> bool:
        """Whether opinions stay on the device, and with them what is like one: the loss."""
        return self.task.opinions.mode == "peers"


@dataclass(slots=True)
class _Tally:
    """What the arrival steps of one training did."""

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
        wall: Monotonic seconds.
        processor: Seconds that all threads of this process have used.
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
        self._work: _Work | None = None
        self._unfit = self._arrived = 0
        self._slip_s = 0.0

    def open(self, request: Open) -> Reply:
        """Open the stream for the task, or say what does not fit."""
        former = self._work
        self.close()
        try:
            work = self._work = _prepare(request)
            schemas = [stream.open(self._wall()) for stream in work.streams]
        except (TaskFormatError, StreamError) as error:
            self.close()
            return Refused(job=request.job, key=error.key, detail=str(error)[:1000])
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            self.close()
            return Failed(job=request.job, reason="memory", detail=_NO_MEMORY)
        misfits = () if work.idle else (misfit_of(schema, work.task) for schema in schemas)
        misfit = next((found for found in misfits if found is not None), None)
        if misfit is not None:
            self.close()
            return Refused(job=request.job, key=misfit[0], detail=f"{misfit[0]}: {misfit[1]}")
        self._unfit = self._arrived = 0
        if former is not None:
            _carry_over(former, work)
        schema = schemas[0]
        work.spread.names = schema.names or names_of(work.task.data, schema.features)
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
        except FailedTrainingError as failed:
            return self._failed(request.job, failed, self._work)
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            offset = self._work.offset
            return Failed(job=request.job, reason="memory", detail=_NO_MEMORY, offset=offset)

    def evaluate(self, request: EvaluationRequest) -> Reply:
        """Score a model on the newest samples that are not learnt from yet."""
        if self._work is None:
            return Failed(job=request.job, reason="not_open", detail="no stream is open")
        try:
            return self._evaluate(request, self._work)
        except FailedTrainingError as failed:
            return self._failed(request.job, failed, self._work)
        except PrivacyMissingError as error:
            return Failed(job=request.job, reason="privacy", detail=str(error))
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            return Failed(job=request.job, reason="memory", detail=_NO_MEMORY)

    def close(self) -> None:
        """Let go of the streams."""
        work, self._work = self._work, None
        for stream in work.streams if work is not None else ():
            stream.close()

    def _evaluate(self, request: EvaluationRequest, work: _Work) -> EvaluationResult:
        if work.idle:
            raise FailedTrainingError("idle", "the task learns nothing")
        if request.moments:
            return self._measure(request, work)
        base = read_model(Path(request.model), work.model.manifest())
        spec = work.task.opinions
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            work.scorer.begin(base)
            look = self._first_look if work.apart is None else self._look_apart
            for x, y in look(work):
                work.scorer.add(x, y)
        if not work.scorer.count:
            return EvaluationResult(job=request.job, counters=self._counters(work))
        said = protect(work.scorer.score, spec)
        return EvaluationResult(
            job=request.job,
            score=said.score,
            samples=work.scorer.count,
            metric=work.scorer.metric,
            epsilon=said.epsilon,
            counters=self._counters(work),
        )

    def _measure(self, request: EvaluationRequest, work: _Work) -> EvaluationResult:
        """Add up what has arrived; it may still be learnt from."""
        self._gather(work)
        total = Moments.none(work.task.model.features)
        for x, _ in work.held.newest(work.task.limits.max_samples):
            assert isinstance(x, np.ndarray)
            if (np.abs(x) > LARGEST).any():
                raise FailedTrainingError("stream", f"a feature is over {LARGEST:.0e}")
            total += Moments.of(x.astype(np.float32, copy=False))
        return EvaluationResult(
            job=request.job,
            samples=total.count,
            metric="moments",
            moments=total.encode() if total.count else b"",
            counters=self._counters(work),
        )

    def _first_look(self, work: _Work) -> Iterator[Part]:
        """Yield the newest samples that nobody has learnt from; afterwards that is allowed."""
        held, window = work.held, work.task.opinions.window
        self._gather(work)
        yield from held.newest(window)
        held.scored()
        # What is beyond the window is not scored again: the learner bounds what it keeps.
        for x, y in held.give(len(held) - window):
            work.learner.absorb(x, y)

    def _look_apart(self, work: _Work) -> Iterator[Part]:
        """Yield the newest samples of the stream that is only evaluated by."""
        assert work.apart is not None
        work.apart.put(*self._fitting(work, _take(work.apart.stream, self._wall())))
        return work.apart.newest()

    def _failed(self, job: int, failed: FailedTrainingError, work: _Work) -> Failed:
        return Failed(
            job=job,
            reason=failed.reason,
            detail="; ".join(filter(None, (failed.detail, work.spread.note))),
            offset=work.offset,
            counters=self._counters(work),
        )

    def _train(self, request: Train, work: _Work) -> Trained:
        began = self._wall()
        learner = work.learner
        if not work.idle:
            base = read_model(Path(request.model), work.model.manifest())
            learner.begin(base)
            work.scorer.begin(base)
        meter = LoadMeter(
            request.load_limit_s,
            wall=self._wall,
            processor=self._processor,
            slip_s=self._slip_s,
        )
        # Overflow is found by the checks of samples and update; a warning says no more.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            tally = self._learn(request, work, meter, began)
            if self._cancelled(request.job, work.slow_s):
                raise FailedTrainingError("cancelled")
            update = learner.update()
            norm = checked_norm(update, work.task.limits.norm)
        self._slip_s = meter.slip_s
        body = encode_tensors(update)
        write_update(Path(request.out), body)
        work.held.release()
        arrived, self._arrived = self._arrived, 0
        return Trained(
            job=request.job,
            digest=digest_of(body),
            size=len(body),
            num_samples=min(learner.num_samples, work.task.limits.max_samples),
            iterations=max(1, round(meter.iterations / tally.steps)),
            seconds=self._wall() - began,
            seconds_per_iteration=meter.iterating_s / meter.iterations,
            arrivals=arrived,
            loss=0.0 if work.silent else tally.mean_loss,
            norm=norm,
            offset=work.offset,
            counters=self._counters(work),
            steps=tally.steps,
            train_s=meter.spent_s,
            limited=tally.limited,
            score=work.scorer.score,
            score_n=work.scorer.count,
            note=work.spread.note,
        )

    def _learn(self, request: Train, work: _Work, meter: LoadMeter, began: float) -> _Tally:
        """Do the arrival steps of a round; the load limit may end them early."""
        tally = _Tally()
        for ready in self._arrivals(request.job, work, meter, began):
            with meter:
                for x, y in work.held.give(ready):
                    if not work.idle:
                        work.scorer.look(x, y)
                    work.learner.absorb(x, y)
            if not tally.limited:
                tally.steps += 1
                self._iterate(request, work.learner, meter, tally)
            if tally.limited and work.task.learner.step_s > 0:
                break  # what is still to come waits in the stream for the next round
        if meter.iterations == 0:
            raise FailedTrainingError("no_data", self._nothing(work))
        if work.learner.num_samples == 0:
            # strSAGA takes a sample in at every second iteration: one alone learns nothing.
            raise FailedTrainingError("no_data", "too few iterations to take in a sample")
        return tally

    def _arrivals(self, job: int, work: _Work, meter: LoadMeter, began: float) -> Iterator[int]:
        """Yield how many samples each arrival step takes; a cancel ends the waits between."""
        steps, step_s = work.task.learner.steps, work.task.learner.step_s
        if step_s == 0:
            ready = self._ready(work, meter)
            yield from (part.stop - part.start for part in parts(ready, steps))
            return
        for step in range(steps):
            wait = max(0.0, began + step * step_s - self._wall())
            if self._cancelled(job, wait):
                raise FailedTrainingError("cancelled")
            yield self._ready(work, meter)

    def _ready(self, work: _Work, meter: LoadMeter) -> int:
        """Look at the stream, and return how many samples may be learnt from."""
        with meter:
            self._gather(work)
        if not work.held.ready and not work.learner.num_samples:
            work.held.release()  # a device that no call has reached must not stand idle
        return work.held.ready

    def _gather(self, work: _Work) -> None:
        """Take what arrived since the last look, and hold those samples that fit."""
        start = work.stream.offset
        samples = _take(work.stream, self._wall())
        self._arrived += len(samples)
        if work.idle:
            work.held.put(np.empty((len(samples), 0), np.float32), samples.y, start=start)
        elif len(samples):
            x, y = self._fitting(work, samples)
            work.held.put(x, y, start=start)
            if work.spread.look(x):
                _log.warning("%s", work.spread.warning)

    def _fitting(self, work: _Work, samples: Samples) -> Part:
        """Return those samples that fit the task, scaled."""
        x = scaled(samples.x, work.task.data)
        good = fitting(x, samples.y, work.task.model)
        self._unfit += len(samples) - int(good.sum())
        rows = np.flatnonzero(good)
        return x[rows], samples.y[rows]

    def _nothing(self, work: _Work) -> str:
        """Say why there is nothing to learn from."""
        names = ("missing", "unfit")
        counted = self._counters(work).items()
        refused = [f"{name} {n}" for name, n in counted if name in names or name[:4] == "bad_"]
        if refused:
            return f"all samples were refused ({', '.join(refused)})"
        return NOTHING_NEW if work.stream.offset else "nothing has arrived on the stream yet"

    def _counters(self, work: _Work) -> dict[str, int]:
        own = {"unfit": self._unfit, "not_learnt": work.learner.dropped}
        own["strsaga_replaced"] = int(instead_of(work.task.model, work.task.learner) is not None)
        return {name: n for name, n in {**work.stream.counters, **own}.items() if n}

    def _iterate(self, request: Train, learner: Learner, meter: LoadMeter, tally: _Tally) -> None:
        """Do the iterations of one arrival step, in blocks that the load limit allows."""
        left = request.iterations or learner.default_iterations
        polled = self._wall()
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
            now = self._wall()
            if now - polled >= POLL_S:
                polled = now
                if self._cancelled(request.job, 0.0):
                    raise FailedTrainingError("cancelled")


def lacks_memory(error: Exception) -> bool:
    """Tell whether an error means that memory ran out; torch says so by a `RuntimeError`."""
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    return "allocate memory" in text or "out of memory" in text


def _take(stream: Stream, now: float) -> Samples:
    try:
        return stream.take(now)
    except StreamError as error:
        raise FailedTrainingError("stream", str(error)[:1000]) from error


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
    # A round has no time for a compiler: what is not compiled yet is done in numpy.
    fast = task.learner.name == "strsaga" and ready_or_start()
    rng = np.random.default_rng(seeds)
    learner = create_learner(model, task.learner, rng, compile_loops=fast)
    work = _Work(
        task=task,
        model=model,
        learner=learner,
        stream=stream,
        scorer=Scorer(task, model),
        slow_s=request.slow_s,
        held=HeldOutSamples(),
        text=request.stream,
        # Users and items are numbers, not sizes; raw samples are not what is learnt from.
        spread=Spread(over=task.data.standardize or task.model.kind == "mf"),
    )
    return replace(work, apart=_apart(request, task)) if request.held_out else work


def _carry_over(former: _Work, work: _Work) -> None:
    """Keep samples of a stream that has no past: it will not give them again."""
    same = former.task.data.standardize and former.text == work.text
    if same and former.stream.offset == 0:
        for x, y in former.held.give(len(former.held)):
            work.held.put(scaled(x, work.task.data), y, start=0)


def _apart(request: Open, task: TaskSpec) -> ValidationStream:
    """Make the stream that is only evaluated by; it begins anew with each process."""
    spec = parse_stream(request.held_out)
    stream = create_stream(spec, seed=request.seed + 1, offset=0, labels=task.data.labels)
    return ValidationStream(stream, task.opinions.window)


def misfit_of(schema: StreamSchema, task: TaskSpec) -> tuple[str, str] | None:
    """Return the recipe's key and why the stream does not fit it, or None."""
    model = task.model
    if schema.features != model.features:
        return "model.features", f"task wants {model.features}, the stream has {schema.features}"
    named = tuple(one.name for one in task.data.features)
    if named != schema.names and sorted(named) == sorted(schema.names):
        shown = ", ".join(named)
        return "data.features", f"the stream has them in another order than the task: {shown}"
    linear = scaling_of(task.data).linear and not task.data.standardize
    if schema.sparse and not (linear and model.kind in _SPARSE_KINDS):
        key = "model.kind" if linear else offset_key(task.data)
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
